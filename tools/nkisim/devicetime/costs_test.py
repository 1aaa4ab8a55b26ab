"""Costs of single instructions: published measurements within 5 %, documented formulas by hand."""

import dataclasses

import numpy as np
import pytest
from ml_dtypes import bfloat16

import nki
import nki.isa as nisa
import nki.language as nl
import nkisim
from common import hardware
from devicetime import constants, nodes
from devicetime.cost import GPSIMD, SYNC, Machine
from devicetime.predict import predict

C = constants.TRN2
MACHINES = {name: Machine(hardware.get(name), constants.of(hardware.get(name))) for name in ("trn2", "trn3")}


def costs(body, *, target="trn2"):
    """Costs of the instructions that a kernel body issues, by call."""

    @nki.jit
    def kernel(x):
        body()
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x)
        return out

    options = nkisim.Options(target=target, numerics=False)
    (core,) = nkisim.run(kernel, np.zeros((1, 1), np.float32), options=options).cores
    return [
        nodes._cost(record, MACHINES[target]) for record in core.stream[:-1] if record.engine is not nisa.engine.dma
    ]


def sbuf(shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)


def psum(shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.psum)


def matmul(k, m, n, dtype, **kwargs):
    def body():
        shape = (k, 2) if "perf_mode" in kwargs else (k,)
        nisa.nc_matmul(psum((m, n)), sbuf((*shape, m), dtype), sbuf((*shape, n), dtype), **kwargs)

    (found,) = costs(body)
    return found


@pytest.mark.parametrize(
    ("k", "m", "n", "dtype", "cycles"),
    [
        (128, 128, 512, nl.bfloat16, 512),
        (128, 128, 1, nl.bfloat16, 64),
        (128, 1, 128, nl.bfloat16, 128),
        (128, 1, 1, nl.bfloat16, 1),
        (64, 128, 128, nl.float32, 512),
    ],
)
def test_matmul_interval(k, m, n, dtype, cycles):
    found = matmul(k, m, n, dtype)
    held = cycles / 2.4 + C.tensor_issue_ns * (2 if dtype is nl.float32 else 1)
    assert found.hold_ns == pytest.approx(held)
    assert found.done_ns == pytest.approx(held + C.tensor_fill_ns)


def test_fp8_with_double_rows_contracts_256_in_the_time_of_128():
    found = matmul(128, 128, 512, nl.float8_e4m3, perf_mode=nisa.matmul_perf_mode.double_row)
    assert found.hold_ns == pytest.approx(512 / 2.4 + C.tensor_issue_ns)
    assert found.activity == pytest.approx(1.0, abs=0.02)


def test_activity_is_the_share_of_the_array():
    full = 512 / (512 + 2.4 * C.tensor_issue_ns)
    assert matmul(128, 128, 512, nl.bfloat16).activity == pytest.approx(full)
    assert matmul(64, 32, 512, nl.bfloat16).activity == pytest.approx(full / 8)
    assert matmul(128, 128, 1, nl.bfloat16).activity == pytest.approx(1 / (64 + 2.4 * C.tensor_issue_ns))


def test_a_product_of_fp32_and_tf32_takes_fp32s_passes_on_either_side():
    def body():
        for left, right in ((nl.float32, nl.tfloat32), (nl.tfloat32, nl.float32), (nl.tfloat32, nl.tfloat32)):
            nisa.nc_matmul(psum((128, 128)), sbuf((128, 128), left), sbuf((128, 128), right))

    passes = [(found.hold_ns - C.tensor_issue_ns) * 2.4 / 128 for found in costs(body)]
    assert passes == pytest.approx([4 + C.tensor_issue_ns * 2.4 / 128] * 2 + [1])


def test_fp32_matmul_as_measured():
    """KO.pe_II: 859 ns for 128x128x512; KO.mm_latency: about 600 ns for one of its two passes."""
    found = matmul(128, 128, 512, nl.float32)
    assert found.hold_ns == pytest.approx(859.4, rel=0.001)
    assert found.hold_ns / 2 + C.tensor_fill_ns == pytest.approx(600, rel=0.05)


def vector(op, target="trn2"):
    found = costs(op, target=target)
    return found[-1].hold_ns, found[-1].done_ns


def test_vector_as_measured():
    """KO.dve_1: 512 fp32 columns from PSUM, 604 ns apart, 690 ns long; KO.dve_2: from SBUF, 342 and 419 to 428 ns."""

    def from_psum():
        nisa.tensor_copy(dst=sbuf((128, 512)), src=psum((128, 512)), engine=nisa.engine.vector)

    def from_sbuf():
        nisa.tensor_copy(dst=sbuf((128, 512)), src=sbuf((128, 512)), engine=nisa.engine.vector)

    assert vector(from_psum) == pytest.approx((604, 690), rel=0.05)
    assert vector(from_sbuf) == pytest.approx((342, 423.5), rel=0.05)


@pytest.mark.parametrize(
    ("source", "target", "elements_per_cycle"),
    [
        (lambda: sbuf((128, 512), nl.bfloat16), lambda: sbuf((128, 512), nl.bfloat16), 4),
        (lambda: psum((128, 512), nl.bfloat16), lambda: sbuf((128, 512), nl.bfloat16), 2),
        (lambda: sbuf((128, 1024), nl.bfloat16)[:, 0:1024:2], lambda: sbuf((128, 512), nl.bfloat16), 2),
        (lambda: sbuf((128, 512)), lambda: sbuf((128, 512), nl.bfloat16), 2),
        (lambda: psum((128, 512)), lambda: sbuf((128, 512), nl.bfloat16), 1),
    ],
)
def test_vector_copy_modes(source, target, elements_per_cycle):
    def body():
        nisa.tensor_copy(dst=target(), src=source(), engine=nisa.engine.vector)

    assert vector(body)[0] == pytest.approx((512 / elements_per_cycle + 68) / 0.96)


@pytest.mark.parametrize(
    ("body", "cycles"),
    [
        (lambda: nisa.tensor_tensor(sbuf((128, 256)), sbuf((128, 256)), sbuf((128, 256)), nl.add), 256),
        (lambda: nisa.tensor_tensor(sbuf((128, 256)), psum((128, 256)), sbuf((128, 256)), nl.add), 256),
        (lambda: nisa.tensor_reduce(sbuf((128, 1)), nl.add, sbuf((128, 256)), axis=1), 256),
        (lambda: nisa.reciprocal(sbuf((128, 32)), sbuf((128, 32))), 256),
        (lambda: nisa.max8(sbuf((128, 8)), sbuf((128, 256))), 256),
    ],
)
def test_vector_formulas(body, cycles):
    assert vector(body)[0] == pytest.approx((cycles + 68) / 0.96)


B, F = nl.bfloat16, nl.float32


@pytest.mark.parametrize(
    ("body", "cycles"),
    [
        (lambda: nisa.tensor_tensor(sbuf((128, 256), B), sbuf((128, 256), B), sbuf((128, 256), B), nl.add), 128),
        (lambda: nisa.tensor_tensor(sbuf((128, 256), F), sbuf((128, 256), B), sbuf((128, 256), B), nl.add), 256),
        (lambda: nisa.tensor_tensor(sbuf((128, 256), B), psum((128, 256), B), sbuf((128, 256), B), nl.add), 256),
        (
            lambda: nisa.scalar_tensor_tensor(
                *(sbuf((128, 256), B), sbuf((128, 256), B), nl.multiply, sbuf((128, 1)), nl.add, sbuf((128, 256), B))
            ),
            128,
        ),
        (
            lambda: nisa.tensor_tensor_scan(
                sbuf((128, 256)), sbuf((128, 256)), sbuf((128, 256)), initial=0.0, op0=nl.add, op1=nl.add
            ),
            512,
        ),
        (lambda: nisa.bn_aggr(sbuf((128, 2)), sbuf((128, 96))), 13 / 3 * 96),
        (lambda: nisa.tensor_copy_predicated(sbuf((128, 256)), sbuf((128, 256)), sbuf((128, 256), nl.uint32)), 512),
        (lambda: nisa.tensor_copy_predicated(sbuf((128, 256)), psum((128, 256)), sbuf((128, 256), nl.uint32)), 256),
        (lambda: nisa.tensor_reduce(sbuf((128, 1), B), nl.add, sbuf((128, 256), B), axis=1), 128),
        (lambda: nisa.tensor_reduce(sbuf((128, 1), B), nl.multiply, sbuf((128, 256), B), axis=1), 256),
        (lambda: nisa.tensor_reduce(sbuf((128, 1), F), nl.add, sbuf((128, 256), B), axis=1), 256),
        (lambda: nisa.tensor_copy(sbuf((128, 512)), sbuf((128, 1024))[:, 0:1024:2], nisa.engine.vector), 256),
    ],
)
def test_vector_formulas_by_types_and_memories(body, cycles):
    """Two inputs from SBUF share the data path, 16 bits double it, PSUM gives the second input a way of its own."""
    assert vector(body)[0] == pytest.approx((cycles + 68) / 0.96)


def test_dynamic_addresses_take_600_cycles_at_least():
    def moved(columns, engine):
        def body():
            tile, index = sbuf((128, 4, columns)), sbuf((1, 1), nl.int32)
            nisa.memset(index, 0)
            register = nisa.register_alloc(0)
            nisa.register_load(register, index)
            nisa.tensor_copy(sbuf((128, columns)), tile.select(1, register), engine=engine)

        return costs(body)[-1].hold_ns

    vector_engine, scalar_engine = nisa.engine.vector, nisa.engine.scalar
    assert moved(64, vector_engine) == pytest.approx((600 + 68) / 0.96)
    assert moved(2048, vector_engine) == pytest.approx((1024 + 68) / 0.96)
    assert moved(64, scalar_engine) == pytest.approx((600 + 68) / 1.2)


def test_topk_is_4n_and_k():
    """n: values of 16 partitions."""

    def body():
        nisa.topk(sbuf((16, 8), B), sbuf((16, 8), nl.uint32), sbuf((16, 10), B), 150)

    (found,) = costs(body)
    assert found.hold_ns == found.done_ns == pytest.approx((4 * 150 + 8) / 1.2)


def test_gpsimd_is_a_fixed_part_and_a_cycle_per_element():
    (found,) = costs(lambda: nisa.memset(sbuf((128, 90)), 0.0, engine=nisa.engine.gpsimd))
    assert found.hold_ns == found.done_ns == pytest.approx((150 + 90) / 1.2)


def test_scalar_reductions_take_64_cycles_more():
    def reduced():
        nisa.activation_reduce(sbuf((128, 256)), nl.exp, sbuf((128, 256)), nl.add, sbuf((128, 1)))

    def plain():
        nisa.activation(sbuf((128, 256)), nl.exp, sbuf((128, 256)))

    assert costs(plain)[0].hold_ns == pytest.approx((256 + 68) / 1.2)
    assert costs(reduced)[0].hold_ns == pytest.approx((256 + 64 + 68) / 1.2)


def test_copies_need_no_function_table():
    def body():
        nisa.activation(sbuf((128, 8)), nl.copy, sbuf((128, 8)))
        nisa.activation(sbuf((128, 8)), nl.tanh, sbuf((128, 8)))
        nisa.tensor_copy(sbuf((128, 8)), sbuf((128, 8)), engine=nisa.engine.scalar)

    assert [found.table for found in costs(body)] == [None, "tanh", None]


def test_trn3_doubles_copies_of_16_bits_only():
    def exponential():
        nisa.activation(sbuf((128, 512), B), nl.exp, sbuf((128, 512), B))

    def wide():
        nisa.tensor_copy(sbuf((128, 512)), sbuf((128, 512), B), engine=nisa.engine.scalar)

    for body in (exponential, wide):
        assert costs(body, target="trn3")[0].hold_ns == pytest.approx((512 + 68) / 1.2)


def test_quantising_takes_four_elements_a_cycle():
    def body():
        nisa.quantize_mx(sbuf((128, 128), nl.float8_e4m3fn_x4), sbuf((128, 512), B), sbuf((128, 128), nl.uint8))

    assert vector(body, "trn3")[0] == pytest.approx((128 + 68) / 1.2)


@pytest.mark.parametrize(
    ("shape", "dtype", "cycles"),
    [((128, 32), nl.bfloat16, 128), ((32, 128), nl.bfloat16, 64), ((128, 128), nl.float32, 256), ((8, 8), B, 8)],
)
def test_transposes_stream_the_partitions(shape, dtype, cycles):
    """max(P, min(64, F)) cycles: the input is the stationary, P columns of an identity move. fp32: 4 passes at 2x."""

    def body():
        nisa.nc_transpose(psum(shape[::-1], dtype), sbuf(shape, dtype), nisa.engine.tensor)

    (found,) = costs(body)
    instructions = 2 if dtype is nl.float32 else 1
    assert found.hold_ns == pytest.approx(cycles / 2.4 + instructions * C.tensor_issue_ns)


def test_loading_a_wide_stationary_shows_behind_a_narrow_product():
    """128 columns at four a cycle are 32 cycles and hide behind the product's 64; at one a cycle they do not."""
    slow = Machine(hardware.get("trn2"), dataclasses.replace(C, tensor_load_columns_per_cycle=1))

    @nki.jit
    def kernel(x):
        nisa.nc_matmul(psum((128, 32)), sbuf((128, 128), B), sbuf((128, 32), B))
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x)
        return out

    options = nkisim.Options(target="trn2", numerics=False)
    (core,) = nkisim.run(kernel, np.zeros((1, 1), np.float32), options=options).cores
    held = [nodes._cost(core.stream[0], machine).hold_ns for machine in (MACHINES["trn2"], slow)]
    assert held == pytest.approx([cycles / 2.4 + C.tensor_issue_ns for cycles in (64, 128)])


def test_a_barrier_of_one_core_takes_its_constant():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, *x.shape), x.dtype, nl.shared_hbm)
        nisa.dma_copy(dst=out[nl.program_id(0)], src=x)
        nisa.core_barrier(out, (0, 1))
        return out

    options = nkisim.Options(target="trn2", numerics=False)
    core = nkisim.run(kernel[2], np.zeros((1, 1), np.float32), options=options).cores[0]
    (found,) = [nodes._cost(r, MACHINES["trn2"]) for r in core.stream if r.op == "core_barrier"]
    assert found.hold_ns == found.done_ns == C.core_barrier_ns


@pytest.mark.parametrize(("partitions", "columns", "measured_ns"), [(4, 4096, 3709), (128, 128, 400)])
def test_activation_as_measured(partitions, columns, measured_ns):
    """ACT.4096 and ACT.128."""

    def body():
        nisa.activation(sbuf((partitions, columns), nl.bfloat16), nl.exp, sbuf((partitions, columns), nl.bfloat16))

    (found,) = costs(body)
    assert found.table == "exp"
    assert found.done_ns == pytest.approx(measured_ns, rel=0.05)


def test_trn3_is_faster_where_it_is_documented_to_be():
    def transposed():
        nisa.nc_transpose(psum((128, 128), nl.bfloat16), sbuf((128, 128), nl.bfloat16), nisa.engine.tensor)

    def copied():
        nisa.tensor_copy(sbuf((128, 512), nl.bfloat16), sbuf((128, 512), nl.bfloat16), engine=nisa.engine.scalar)

    issue = C.tensor_issue_ns
    assert costs(transposed)[0].hold_ns - issue == pytest.approx(
        2 * (costs(transposed, target="trn3")[0].hold_ns - issue)
    )
    assert costs(copied)[0].hold_ns == pytest.approx((512 + 68) / 1.2)
    assert costs(copied, target="trn3")[0].hold_ns == pytest.approx((256 + 68) / 1.2)


@nki.jit
def load_exp_store(x):
    tile, made = (nl.ndarray(x.shape, x.dtype, nl.sbuf) for _ in range(2))
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x)
    nisa.activation(dst=made, op=nl.exp, data=tile)
    nisa.dma_copy(dst=out, src=made)
    return out


def loaded(shape):
    """The first load's events, and the activation's, of the vendor's example."""
    options = nkisim.Options(target="trn2", numerics=False)
    timeline = predict(nkisim.run(load_exp_store, np.zeros(shape, bfloat16), options=options))
    tracks = [timeline.tracks[t].short_name for t in timeline.track]
    return timeline, tracks.index("GpSimd"), tracks.index("DMA 0"), tracks.index("Scalar")


def test_a_load_on_all_engines_as_measured():
    """DMA.ex2: 739 ns to the first byte, 468 ns from there to the last, about 1500 ns to the activation."""
    timeline, trigger, moved, activated = loaded((128, 128))
    assert timeline.start_ns[moved] - timeline.start_ns[trigger] == pytest.approx(739, rel=0.05)
    assert timeline.end_ns[moved] - timeline.start_ns[moved] == pytest.approx(468, rel=0.05)
    assert timeline.start_ns[activated] - timeline.start_ns[trigger] == pytest.approx(1500, rel=0.05)


def test_a_load_on_one_engine_as_measured():
    """DMA.ex1: 1416 ns for four rows of 8 KiB on one engine."""
    timeline, _, moved, _ = loaded((4, 4096))
    assert timeline.end_ns[moved] - timeline.start_ns[moved] == pytest.approx(1416, rel=0.05)


@nki.jit
def every_kind_of_dma(x):
    rows = nl.ndarray((16, 128), x.dtype, nl.sbuf)
    turned = nl.ndarray((128, 16), x.dtype, nl.sbuf)
    index = nl.ndarray((16, 1), nl.uint32, nl.sbuf)
    nisa.iota(index, [[1, 1]], channel_multiplier=1)
    chosen = x.ap(pattern=[[128, 16], [1, 128]], vector_offset=index, indirect_dim=0)
    nisa.dma_copy(rows, x)
    for mode in (nisa.dge_mode.none, nisa.dge_mode.hwdge, nisa.dge_mode.swdge):
        nisa.dma_copy(rows, x, dge_mode=mode)
    nisa.dma_transpose(turned, x)
    nisa.dma_compute(rows, [x, x], nl.add)
    nisa.dma_compute(rows, [rows, chosen], nl.add)
    nisa.dma_compute(chosen, [chosen, rows], nl.add)
    return x


def test_who_makes_the_descriptors_of_each_dma():
    """By the deep-dive on descriptor generation and the docstrings of the calls; GpSimd where the compiler decides."""
    options = nkisim.Options(numerics=False)
    (core,) = nkisim.run(every_kind_of_dma, np.zeros((16, 128), bfloat16), options=options).cores
    found = [nodes._cost(record, MACHINES["trn3"]) for record in core.stream if record.engine is nisa.engine.dma]
    static, hardware_made = (SYNC, C.dma_trigger_ns), (SYNC, C.hardware_dge_ns)
    software = (GPSIMD, C.software_dge_ns + 16 * C.software_dge_descriptor_ns)
    expected = [software, static, hardware_made, software, hardware_made, static, software, software]
    assert [cost.engine for cost in found] == [engine for engine, _ in expected]
    assert [cost.hold_ns for cost in found] == pytest.approx([hold for _, hold in expected])
