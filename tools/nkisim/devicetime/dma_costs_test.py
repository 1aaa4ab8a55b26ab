"""Costs of DMAs by hand, from the documented constants: descriptors, engines, who makes them, and rates."""

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
import nkisim
from common import hardware
from devicetime import constants, nodes
from devicetime.cost import GPSIMD, SYNC, Machine

C = constants.TRN2
MACHINES = {name: Machine(hardware.get(name), constants.of(hardware.get(name))) for name in ("trn2", "trn3")}


def costs(body, shape, *, target="trn2", dtype=np.float32):
    """Costs of a kernel's DMAs: `body` is given x in HBM, of this shape."""

    @nki.jit
    def kernel(x):
        body(x)
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x)
        return out

    options = nkisim.Options(target=target, numerics=False)
    (core,) = nkisim.run(kernel, np.zeros(shape, dtype), options=options).cores
    moves = [record for record in core.stream[:-1] if record.op.startswith("dma")]
    return [nodes._cost(record, MACHINES[target]) for record in moves]


def sbuf(shape, dtype=nl.float32, **where):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf, **where)


def hbm(shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm)


def each_ns(row_bytes, rate=1.0):
    """A descriptor of as many bytes on one engine."""
    return C.dma_descriptor_ns + row_bytes / (C.dma_engine_bytes_per_ns * rate)


def test_a_load_by_software_descriptors():
    """128 rows of 2 KiB: 8 for each of 16 engines, made 8 at a time."""
    (found,) = costs(lambda x: nisa.dma_copy(sbuf((128, 512)), x), (128, 512))
    made, moved = C.software_dge_descriptor_ns, found.transfer
    assert found.engine == GPSIMD
    assert found.hold_ns == found.done_ns == pytest.approx(C.software_dge_ns + 128 * made)
    assert (moved.first_engine, moved.engines) == (0, 16)
    assert moved.engine_ns == pytest.approx(8 * each_ns(2048))
    assert moved.hbm_bytes == 128 * 2048
    assert moved.ready_ns == pytest.approx(C.software_dge_ns + 8 * made + C.dma_fetch_ns)
    assert moved.stagger_ns == pytest.approx(8 * made)
    assert moved.tail_ns == pytest.approx(C.dma_fetch_ns + each_ns(2048))


def test_an_engine_has_eight_partitions_and_the_slowest_counts():
    """20 rows: three engines, of which one moves seven."""
    (found,) = costs(lambda x: nisa.dma_copy(sbuf((20, 512)), x), (20, 512))
    assert (found.transfer.first_engine, found.transfer.engines) == (0, 3)
    assert found.transfer.engine_ns == pytest.approx(7 * each_ns(2048))


def test_partitions_choose_the_engines():
    """16 partitions from 64 on, by address or by view, are those of engines 8 and 9."""

    def body(x):
        nisa.dma_copy(sbuf((16, 512), address=(64, 0)), x)
        nisa.dma_copy(sbuf((128, 512))[64:80], x)

    for found in costs(body, (16, 512)):
        assert (found.transfer.first_engine, found.transfer.engines) == (8, 2)


def test_a_row_in_pieces_has_a_descriptor_for_each():
    """128 partitions of 4 runs of 256 B: 512 descriptors, engines begin when their first 8 are there."""
    (found,) = costs(lambda x: nisa.dma_copy(sbuf((128, 4, 128))[:, :, 0:64], x), (128, 4, 64))
    made = C.software_dge_descriptor_ns
    assert found.hold_ns == pytest.approx(C.software_dge_ns + 512 * made)
    assert found.transfer.engine_ns == pytest.approx(32 * each_ns(256))
    assert found.transfer.stagger_ns == pytest.approx(8 * made)


@pytest.mark.parametrize(("columns", "parts"), [(256, 2), (1024, 8), (16384, 16)])
def test_runs_in_hbm_are_cut_for_the_engines(columns, parts):
    """Not below 512 B: 1 KiB makes two, 64 KiB sixteen. HBM is read and written."""
    (found,) = costs(lambda x: nisa.dma_copy(hbm((1, columns)), x), (1, columns))
    assert found.hold_ns == pytest.approx(C.software_dge_ns + parts * C.software_dge_descriptor_ns)
    assert found.transfer.engine_ns == pytest.approx(each_ns(4 * columns / parts))
    assert found.transfer.engines == 16
    assert found.transfer.hbm_bytes == 2 * 4 * columns


def test_a_cast_moves_the_wider_type():
    (found,) = costs(lambda x: nisa.dma_copy(sbuf((128, 512), nl.bfloat16), x), (128, 512))
    assert found.transfer.engine_ns == pytest.approx(8 * each_ns(2048))
    (found,) = costs(lambda x: nisa.dma_copy(hbm((128, 512), nl.bfloat16), x[:, 0:512]), (128, 1024))
    assert found.transfer.engine_ns == pytest.approx(8 * each_ns(2048))
    assert found.transfer.hbm_bytes == 128 * 512 * (4 + 2)


def test_who_makes_the_descriptors():
    def body(x):
        nisa.dma_copy(sbuf((128, 512)), x, dge_mode=nisa.dge_mode.none)
        nisa.dma_copy(sbuf((128, 512)), x, dge_mode=nisa.dge_mode.hwdge)
        nisa.dma_copy(sbuf((128, 512)), x, dge_mode=nisa.dge_mode.unknown)

    static, in_hardware, unknown = costs(body, (128, 512))
    assert (static.engine, static.hold_ns, static.transfer.ready_ns) == (SYNC, C.dma_trigger_ns, C.dma_static_start_ns)
    assert (in_hardware.engine, in_hardware.hold_ns) == (SYNC, C.hardware_dge_ns)
    assert in_hardware.transfer.ready_ns == C.hardware_dge_ns + C.dma_fetch_ns
    assert static.transfer.stagger_ns == in_hardware.transfer.stagger_ns == 0
    assert static.transfer.tail_ns == in_hardware.transfer.tail_ns == 0
    assert unknown.engine == GPSIMD


def test_direct_transposes():
    """By hardware; from HBM at 90 % of a copy's rate, from SBUF at 50 %, a descriptor per 64 elements of bf16."""

    def body(x):
        tile = sbuf((128, 64), nl.bfloat16)
        nisa.dma_copy(tile, x)
        nisa.dma_transpose(sbuf((64, 128), nl.bfloat16), x)
        nisa.dma_transpose(sbuf((64, 128), nl.bfloat16), tile)

    _, from_hbm, from_sbuf = costs(body, (128, 64), dtype=nl.bfloat16)
    assert from_hbm.engine == from_sbuf.engine == SYNC
    assert from_hbm.transfer.engines == 8
    assert from_hbm.transfer.engine_ns == pytest.approx(16 * each_ns(128, 0.9))
    assert from_sbuf.transfer.engine_ns == pytest.approx(16 * each_ns(128, 0.5))


def test_a_transpose_of_few_rows_has_short_runs():
    """16 rows of 64: what is written has 64 rows of 16 elements."""
    (found,) = costs(lambda x: nisa.dma_transpose(sbuf((16, 64), nl.bfloat16), x), (64, 16), dtype=nl.bfloat16)
    assert found.transfer.engines == 2
    assert found.transfer.engine_ns == pytest.approx(32 * each_ns(32, 0.9))


def gathered(transposed):
    """32 rows of a table chosen by an index, of 128 bf16."""

    def body(x):
        index = sbuf((32, 1), nl.uint32)
        nisa.memset(index, 0)
        rows = x.ap(pattern=[[128, 32], [1, 128]], vector_offset=index, indirect_dim=0)
        if transposed:
            nisa.dma_transpose(sbuf((128, 32), nl.bfloat16), rows)
        else:
            nisa.dma_copy(sbuf((32, 128), nl.bfloat16), rows)

    (found,) = costs(body, (100, 128), dtype=nl.bfloat16)
    return found


@pytest.mark.parametrize("transposed", [False, True])
def test_gathers_are_made_by_gpsimd_row_by_row(transposed):
    found = gathered(transposed)
    assert found.engine == GPSIMD
    assert found.hold_ns == pytest.approx(C.software_dge_ns + 32 * C.software_dge_descriptor_ns)
    expected = 2 * each_ns(256, 0.9) if transposed else 8 * each_ns(256)
    assert found.transfer.engine_ns == pytest.approx(expected)


def test_rows_gathered_within_hbm_are_descriptors_each():
    """32 rows of 256 B, although what is written is one run."""

    def body(x):
        index = sbuf((32, 1), nl.uint32)
        nisa.memset(index, 0)
        rows = x.ap(pattern=[[128, 32], [1, 128]], vector_offset=index, indirect_dim=0)
        nisa.dma_copy(hbm((32, 128), nl.bfloat16), rows)

    (found,) = costs(body, (100, 128), dtype=nl.bfloat16)
    assert found.hold_ns == pytest.approx(C.software_dge_ns + 32 * C.software_dge_descriptor_ns)
    assert found.transfer.engine_ns == pytest.approx(2 * each_ns(256))


@pytest.mark.parametrize(("target", "rate"), [("trn2", 0.5), ("trn3", 1.0)])
def test_sums_by_dma_run_at_half_rate_on_trn2(target, rate):
    def body(x):
        nisa.dma_compute(hbm((128, 512)), [x, x], nl.add)

    (found,) = costs(body, (128, 512), target=target)
    speed = constants.of(hardware.get(target)).dma_engine_bytes_per_ns
    assert found.transfer.hbm_bytes == 3 * 128 * 2048
    assert found.transfer.engine_ns == pytest.approx(C.dma_descriptor_ns + 128 * 2048 / 16 / (speed * rate))


@nki.jit
def swap(x, through):
    me = nl.program_id(0)
    tile, other = (nl.ndarray((32, 256), x.dtype, nl.sbuf) for _ in range(2))
    nisa.dma_copy(tile, x)
    nisa.sendrecv(tile, other, 1 - me, 1 - me, pipe_id=0, dma_engine=through)
    out = nl.ndarray((2, *x.shape), x.dtype, nl.shared_hbm)
    nisa.dma_copy(out[me], other)
    return out


@pytest.mark.parametrize("through", [nisa.dma_engine.dma, nisa.dma_engine.gpsimd_dma])
def test_exchanges_go_through_the_dma_engines_or_gpsimds_own(through):
    options = nkisim.Options(target="trn2", numerics=False)
    core = nkisim.run(swap[2], np.zeros((32, 256), np.float32), through, options=options).cores[0]
    (moved,) = [nodes._cost(record, MACHINES["trn2"]).transfer for record in core.stream if record.op == "sendrecv"]
    assert moved is not None
    by_dma = 8 * each_ns(1024)
    by_gpsimd = 32 * 1024 / C.gpsimd_dma_bytes_per_ns
    assert moved.engine_ns == pytest.approx(by_dma if through is nisa.dma_engine.dma else by_gpsimd)
    assert moved.hbm_bytes == 0
