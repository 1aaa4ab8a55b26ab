"""The plan against hand-made arithmetic and against what a simulated run allocates and moves."""

import dataclasses
import functools
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nkisim
from common.budget import BudgetError
from common.hardware import TRN2, TRN3
from kernels.adaln_quant.device.kernel import adaln, row_quantise
from kernels.adaln_quant.oracle.cases import CORNERS, WAN22
from kernels.adaln_quant.planning import plan
from kernels.adaln_quant.planning.dims import Dims, Modulation
from nkisim.record import hbm_traffic, is_hbm

DIMS = Dims(batch=1, seqlen=256, hidden=1024)
DTYPES = {2: torch.bfloat16, 4: torch.float32}


def run_without_values(made):
    dims, empty = made.dims, functools.partial(torch.empty, device="meta")
    x = empty(dims.batch, dims.seqlen, dims.hidden, dtype=DTYPES[dims.input_bytes])
    options = nkisim.Options(target=made.hardware.name, numerics=False)
    if dims.modulation is Modulation.none:
        return nkisim.run(row_quantise[dims.cores], x, made.config, options=options)
    shape = (dims.batch, dims.hidden) if dims.modulation is Modulation.batch else x.shape
    vectors = [empty(*shape, dtype=DTYPES[dims.modulation_bytes]) for _ in range(2)]
    return nkisim.run(adaln[dims.cores], x, *vectors, made.config, dims.quantised, options=options)


def on_chip(core):
    """Name, first byte and bytes of every SBUF and PSUM tensor that instructions touched."""
    touched = set()
    for record in core.stream:
        for region in (*record.writes, *record.reads):
            tensor = region.allocation
            if tensor.address is not None:
                touched.add((tensor.name, tensor.address[1], tensor.row_bytes))
    return touched


def assert_exact(made):
    finished = run_without_values(made)
    assert len(finished.cores) == made.dims.cores
    allocations = made.sbuf.allocations
    planned = {(a.name, a.address_bytes, a.bytes_per_partition) for a in allocations}
    moved: Counter[str] = Counter()
    for core in finished.cores:
        assert on_chip(core) ^ planned == set()
        assert core.memory.sbuf_peak_bytes == made.sbuf.peak_bytes
        assert core.memory.psum_peak_banks == 0
        for name, traffic in hbm_traffic(core.stream).items():
            assert (traffic.written_bytes if name != "output" else traffic.read_bytes) == 0
            moved[name] += traffic.read_bytes + traffic.written_bytes
    assert moved["x"] == made.hbm.rows
    assert moved["scale"] + moved["shift"] == made.hbm.modulation
    assert moved["output"] == made.hbm.outputs
    assert moved.total() == made.hbm.total
    assert made.sbuf.peak_bytes == sum(a.bytes_per_partition + a.padding_bytes for a in made.sbuf.allocations)
    return finished


@pytest.mark.parametrize("case", [*CORNERS, *WAN22], ids=lambda case: case.name)
def test_plan_is_what_a_run_allocates_and_moves(case):
    assert_exact(case.plan())


@st.composite
def random_plans(draw):
    cores = draw(st.sampled_from([1, 2]))
    modulation = draw(st.sampled_from(list(Modulation)))
    target, quantised = TRN3, True
    if modulation is not Modulation.none:
        quantised = draw(st.booleans())
        target = TRN3 if quantised else draw(st.sampled_from([TRN2, TRN3]))
    dims = Dims(
        batch=draw(st.integers(1, 4)),
        seqlen=cores * draw(st.integers(1, 700)),
        hidden=4 * draw(st.integers(1, 1700)),
        cores=cores,
        modulation=modulation,
        quantised=quantised,
        input_bytes=draw(st.sampled_from([2, 4])),
        modulation_bytes=0 if modulation is Modulation.none else draw(st.sampled_from([2, 4])),
    )
    return dims, target


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(drawn=random_plans())
def test_any_plan_is_what_a_run_allocates_and_moves(drawn):
    """Or it does not fit, which only rows do that are wider than Wan2.2's."""
    dims, target = drawn
    try:
        made = plan.make(dims, target)
    except BudgetError:
        assert dims.hidden > 5120
        return
    assert_exact(made)


def test_wan22_by_hand():
    """H = 5,120 in bf16, one batch: scale and shift, and 36,112 more for each of four S-tiles under way."""
    made = WAN22[0].plan()
    s_tile = 2 * 5120 + 4 * 5120 + 5124 + 4 * (10 * 6 + 3 + 4)
    fixed = 2 * 4 * 5120 + 4
    assert (s_tile, fixed) == (36_112, 40_964)
    assert made.sbuf.capacity_bytes == 245_752
    assert made.sbuf.peak_bytes == fixed + 4 * s_tile
    assert made.hbm.rows == 9452 * 5120 * 2
    assert made.minimum.modulation == 2 * 2 * 5120 * 4
    assert made.hbm.modulation == 4 * made.minimum.modulation
    assert made.hbm.outputs == 9452 * 5124
    assert made.hbm.total - made.minimum.total == made.hbm.modulation - made.minimum.modulation


def test_depth_is_what_fits():
    """As many S-tiles under way as help and there are; wide rows and vectors of two batches leave room for fewer."""
    dims = Dims(batch=1, seqlen=2048, hidden=5120, input_bytes=4)
    small = 4 * (10 * 6 + 3 + 4) + 4
    assert plan.make(dims, TRN3).depth == (245_752 - 4 - 2 * 4 * 5120) // (9 * 5120 + small) == 4
    batches = dataclasses.replace(dims, batch=2)
    assert plan.make(batches, TRN3).depth == (245_752 - 4 - 4 * 4 * 5120) // (9 * 5120 + small) == 3
    assert plan.make(dataclasses.replace(dims, seqlen=256), TRN3).depth == 2
    rows = dataclasses.replace(dims, input_bytes=2, modulation=Modulation.none, modulation_bytes=0)
    assert plan.make(rows, TRN3).depth == 8
    assert plan.make(dataclasses.replace(rows, hidden=13_824), TRN3).depth == 245_752 // (4 * 13_824 + 20) == 4


@pytest.mark.parametrize("case", WAN22, ids=lambda case: case.name)
def test_dmas_move_whole_rows(case):
    """Runs below 2 KiB would leave the DMA engines under their bandwidth. A whole row is the longest run there is."""
    made = dataclasses.replace(case, seqlen=260).plan()
    row_bytes = {
        "x": case.hidden * case.dtype.itemsize,
        "scale": case.hidden * case.modulation_dtype.itemsize,
        "shift": case.hidden * case.modulation_dtype.itemsize,
        "output": case.hidden + 4 if case.quantised else case.hidden * 2,
    }
    for core in run_without_values(made).cores:
        moved = [region for record in core.stream for region in (*record.reads, *record.writes) if is_hbm(region)]
        assert {region.allocation.name for region in moved} >= {"x", "output"}
        for region in moved:
            assert region.strides[-1] == 1
            assert region.shape[-1] * region.dtype.itemsize == row_bytes[region.allocation.name]


def test_table_names_every_allocation():
    made = WAN22[0].plan()
    text = str(made)
    for allocation in made.sbuf.allocations:
        assert allocation.name in text
    assert "[4726 tokens x 5120] per core of trn3, 2 cores, 1 sections of 37 S-tiles, modulation batch" in text


def test_quantised_rows_on_trn2_are_refused_by_name():
    with pytest.raises(ValueError, match="target is 'trn2'; accepted with quantised rows: 'trn3'"):
        plan.make(DIMS, TRN2)


def test_arguments_of_other_types_are_refused_by_name():
    with pytest.raises(TypeError, match=r"^dims must be a Dims, got None"):
        plan.make(None, TRN3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^hardware must be a Hardware, got 'trn3'"):
        plan.make(DIMS, "trn3")  # type: ignore[arg-type]


def test_what_does_not_fit_is_refused():
    with pytest.raises(BudgetError, match=r"SBUF of trn3: .* needs [\d,]+ B per partition"):
        plan.make(dataclasses.replace(DIMS, hidden=40_000), TRN3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"seqlen": -3}, "seqlen must be at least 1, got -3"),
        ({"hidden": 1026}, "hidden is 1026; accepted: a multiple of 4"),
        ({"cores": 3}, "lnc is 3; accepted: 1 or 2"),
        ({"cores": 0}, "lnc is 0; accepted: 1 or 2"),
        (
            {"seqlen": 255, "cores": 2},
            "seqlen is 255 on 2 cores; accepted: a multiple of 2, padded by the caller with zero rows",
        ),
        ({"input_bytes": 1}, "input_bytes is 1; accepted: 2 or 4"),
        ({"modulation_bytes": 0}, "modulation_bytes is 0 with Modulation.batch; accepted: 2 or 4"),
        ({"modulation": Modulation.none}, "modulation_bytes is 4 with Modulation.none; accepted: 0"),
        (
            {"modulation": Modulation.none, "modulation_bytes": 0, "quantised": False},
            "quantised is False with Modulation.none; accepted: True, else there is nothing to do",
        ),
    ],
)
def test_bad_sizes_are_refused_by_name(changes, message):
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the whole message is compared
        dataclasses.replace(DIMS, **changes)
    assert str(refusal.value) == message
