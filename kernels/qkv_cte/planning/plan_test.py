"""The plan against hand-made arithmetic and against what a simulated run allocates and moves."""

import dataclasses
import functools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import schedule
from common.hardware import TRN2, TRN3
from common.tiling import ceil_div
from kernels.qkv_cte.device.config import Flow
from kernels.qkv_cte.oracle import norm_rope_cases
from kernels.qkv_cte.oracle.cases import CORNERS, WAN22, Case
from kernels.qkv_cte.planning import pass_plan, plan
from kernels.qkv_cte.planning.dims import Dims
from kernels.qkv_cte.planning.flow_plan import can_be_early
from kernels.qkv_cte.planning.plan_checks import assert_exact

DIMS = Dims(batch=1, seqlen=256, hidden=1024, width=512)


@pytest.mark.parametrize("case", [*CORNERS, *WAN22], ids=lambda case: case.name)
def test_plan_is_what_a_run_allocates_and_moves(case):
    assert_exact(case.plan)


ALONE = [dataclasses.replace(call, groups=None) for call in norm_rope_cases.WAN22]
"""Plans do not depend on the groups, and a run of one rank has none."""


EARLY = [norm_rope_cases.early(call, kept, 3) for call, kept in zip(ALONE[:-1], (1, 30, 2, 2), strict=True)]


@pytest.mark.parametrize(
    "call", [*norm_rope_cases.CALLS, *norm_rope_cases.EARLY_CALLS, *ALONE, *EARLY], ids=lambda call: call.name
)
def test_plan_with_a_pass_is_what_a_run_allocates_and_moves(call):
    assert_exact(call.plan)


@st.composite
def passes(draw, dims):
    """Some pass over segments of a third of the width, or over all of it."""
    single = draw(st.booleans())
    width = dims.width if single else dims.width // 3
    head_dim = draw(st.sampled_from([divisor for divisor in range(1, width + 1) if width % divisor == 0]))
    even = head_dim % 2 == 0
    sizes = st.sampled_from([0, 2, 4])
    return pass_plan.make_pass(
        dims,
        num_heads=width // head_dim,
        num_kv_heads=0 if single else width // head_dim,
        head_dim=head_dim,
        q_gamma_bytes=draw(sizes),
        k_gamma_bytes=0 if single else draw(sizes),
        cache_bytes=draw(sizes) if even else 0,
    ), draw(st.sampled_from([0, head_dim]))


@st.composite
def forced_plans(draw):
    cores = draw(st.sampled_from([1, 2]))
    dims = Dims(
        batch=draw(st.integers(1, 3)),
        seqlen=cores * draw(st.integers(1, 900)),
        hidden=128 * draw(st.integers(1, 14)),
        width=draw(st.integers(1, 2600)),
        cores=cores,
        bias_bytes=draw(st.sampled_from([0, 2, 4])),
    )
    degree = draw(st.none() | st.integers(1, min(8, dims.s_tiles)))
    resident = draw(st.none() | st.integers(0, dims.h_tiles))
    policy = functools.partial(schedule.force, degree=degree, resident_h_tiles=resident)
    norm_rope, nbsd_head_dim = None, 0
    if draw(st.booleans()):
        dims = dataclasses.replace(dims, width=3 * ceil_div(dims.width, 3))
        norm_rope, nbsd_head_dim = draw(passes(dims))
    return plan.make(dims, TRN3, policy, norm_rope, nbsd_head_dim, draw(flows(dims, norm_rope)))


@st.composite
def flows(draw, dims, norm_rope):
    """Some flow that the call may have."""
    chunk_buffers, scalar_every, one_engine = draw(st.integers(1, 4)), draw(st.integers(0, 3)), draw(st.booleans())
    is_early = draw(st.booleans()) and can_be_early(dims, norm_rope)
    scaled = is_early and norm_rope.sum_columns > 0
    kept = draw(st.integers(0, dims.s_tiles)) if scaled else 0
    loads = draw(st.integers(1, min(3, dims.s_tiles - kept))) if scaled and kept < dims.s_tiles else 0
    return Flow(is_early, kept, loads, chunk_buffers, scalar_every, one_engine)


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(made=forced_plans())
def test_any_plan_is_what_a_run_allocates_and_moves(made):
    assert_exact(made)


def test_self_attention_tp4_by_hand():
    """I = 3,840: 37,896 fixed, 12,804 per S-tile, 153,600 of weights; 54,256 left for S-tiles make 4 of them."""
    made = WAN22[0].plan
    fixed = 4 * 3840 + 512 + 2 * 3840 + 2 * 2048 + 2 * 5124
    s_tile = 2 * 3840 + 10 * 512 + 4
    weights = 10 * 4 * 3840
    assert (fixed, s_tile, weights) == (37_896, 12_804, 153_600)
    assert (245_752 - fixed - weights) // s_tile == 4
    assert made.sbuf.capacity_bytes == 245_752
    assert made.sbuf.peak_bytes == fixed + weights + 4 * s_tile
    assert numbers(made) == (4, 2, 4, 10, "full")
    assert [(block.num_s_tiles, block.banks_per_group) for block in made.schedule.blocks] == [(4, 2)] * 9 + [(1, 8)]
    assert made.hbm.weights == 2 * 5120 * 3840 == made.minimum.weights
    assert made.hbm.activations == 9452 * 5124
    assert made.hbm.outputs == 9452 * 3840 * 2
    assert made.hbm.channels == 4 * made.minimum.channels == 4 * 2 * (4 + 2) * 3840


def test_self_attention_tp8_by_hand():
    """I = 1,920: 26,376 fixed, 76,800 of weights, and 8 S-tiles of 8,964, which is where PSUM ends."""
    made = WAN22[1].plan
    assert numbers(made) == (8, 1, 4, 10, "full")
    assert made.sbuf.peak_bytes == 26_376 + 76_800 + 8 * 8_964


def test_cross_attention_by_hand():
    """I = 5,120: 45,576 fixed and 15,364 per S-tile; all weights, 204,800, do not fit.

    Queries: 5 S-tiles and chunk buffers of a bank leave 119,260. Keys and values: 2 S-tiles and chunk buffers of 4
    banks leave 153,064. An H-tile takes 20,480.
    """
    queries, keys, values = (case.plan for case in WAN22[2:])
    assert 245_752 - 45_576 - 5 * 15_364 - 2 * 2048 == 119_260
    assert numbers(queries) == (5, 1, 10, 119_260 // 20_480, "graduated")
    assert 245_752 - 45_576 - 2 * 15_364 - 2 * 8192 == 153_064
    assert numbers(keys) == numbers(values) == (2, 4, 3, 153_064 // 20_480, "graduated")
    assert queries.hbm.weights == 2 * 5120 * 5120


def numbers(made):
    chosen = made.schedule
    return (chosen.degree, chosen.banks_per_group, chosen.num_i_groups, chosen.resident_h_tiles, chosen.prefetch)


def test_pass_of_self_attention_tp4_by_hand():
    """I = 3,840 and Q, K of 1,280: the projection gains sums and a scratch row, which its degree of 4 has room for."""
    made, plain = norm_rope_cases.WAN22[0].plan, WAN22[0].plan
    sums, squares = 2 * 37 * 4, 2 * 1280
    assert made.sbuf.peak_bytes == plain.sbuf.peak_bytes + sums + squares
    assert numbers(made) == numbers(plain)
    kept = sums + 2 * 1280 * 2
    rotating = 2 * (1280 * (2 + 4 + 4) + 128 * 4 * 4)
    ends = [a.end_bytes for a in made.sbuf.allocations if a.scope == "norm and RoPE pass"]
    assert max(ends) == sums + kept + rotating
    assert made.hbm.gammas == 4 * made.minimum.gammas == 4 * 2 * 2 * 1280 * 2
    assert made.hbm.rope_caches == 2 * 9452 * 128 * 4
    assert made.hbm.norm_rope_reads == made.hbm.norm_rope_writes == 9452 * 2 * 1280 * 2


def test_rope_goes_into_evictions_only_where_banks_hold_whole_heads():
    """Heads of 96: the first bank ends 32 columns into one of K's. A norm alone may be cut anywhere."""
    cut = norm_rope_cases.NormRopeCase(
        Case("cut", 129, 128, 4, "full", num_kv_heads=2, head_dim=96), flow=Flow(early=True, kept_tiles=2)
    )
    with pytest.raises(ValueError, match=r"flow.early is True; accepted: False, .* where a PSUM bank cuts a head"):
        assert cut.plan
    assert_exact(dataclasses.replace(cut, rope=False).plan)
    whole = dataclasses.replace(cut.case, num_heads=2, num_kv_heads=1, head_dim=128)
    assert_exact(dataclasses.replace(cut, case=whole).plan)


def test_streamed_weights_are_read_once_per_block():
    """3 H-tiles, of 512, 512 and 128 rows; 3 S-blocks; the first tile is resident."""
    dims = Dims(batch=1, seqlen=600, hidden=1152, width=1000, bias_bytes=0)
    made = plan.make(dims, TRN3, functools.partial(schedule.force, degree=2, resident_h_tiles=1))
    assert made.hbm.weights == (512 + 3 * (512 + 128)) * 1000
    assert made.minimum.weights == 1152 * 1000


def test_table_names_every_allocation_and_the_reasons():
    made = WAN22[2].plan
    text = str(made)
    for allocation in (*made.sbuf.allocations, *made.psum.allocations):
        assert allocation.name in text
    for reason in made.schedule.why:
        assert reason in text
    assert "degree 5, 1 banks per group, 10 I-groups, 1 S-blocks, graduated prefetch" in text


def test_trn2_is_refused_by_name():
    with pytest.raises(ValueError, match="target is 'trn2'; accepted: 'trn3'"):
        plan.make(DIMS, TRN2)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("dims must be a Dims, got None", {"dims": None}),
        ("hardware must be a Hardware, got 'trn3'", {"hardware": "trn3"}),
        ("norm_rope must be a NormRopePass, got 1", {"norm_rope": 1}),
        ("nbsd_head_dim must be an integer, got 1.5", {"nbsd_head_dim": 1.5}),
        ("flow must be a Flow, got None", {"flow": None}),
        ("stages must be a Stages, got ()", {"stages": ()}),
    ],
)
def test_arguments_of_other_types_are_refused_by_name(message, changes):
    with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
        plan.make(**{"dims": DIMS, "hardware": TRN3, **changes})


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"needs [\d,]+ of 245,752 B per partition"):
        plan.make(dataclasses.replace(DIMS, width=40_000), TRN3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "batch is 0; accepted: an integer from 1"),
        ({"seqlen": -3}, "seqlen is -3; accepted: an integer from 1"),
        ({"width": 1.5}, "width is 1.5; accepted: an integer from 1"),
        ({"hidden": True}, "hidden is True; accepted: an integer from 1"),
        (
            {"hidden": 1000},
            "hidden is 1000; accepted: a multiple of 128 "
            "(zero rows up to 1024 would cost 2.4% more weights and products)",
        ),
        ({"cores": 3}, "lnc is 3; accepted: 1 or 2"),
        ({"cores": 0}, "lnc is 0; accepted: 1 or 2"),
        (
            {"seqlen": 255, "cores": 2},
            "seqlen is 255 on 2 cores; accepted: a multiple of 2, padded by the caller with zero rows",
        ),
        ({"bias_bytes": 1}, "bias_bytes is 1; accepted: 0 (no bias), 2 or 4"),
    ],
)
def test_bad_sizes_are_refused_by_name(changes, message):
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the whole message is compared
        dataclasses.replace(DIMS, **changes)
    assert str(refusal.value) == message
