"""Baselines against a recount from their definitions, and the simulated stream against both."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.budget import BudgetError
from common.hardware import TRN3
from kernels.qkv_cte.bench import baselines, measure
from kernels.qkv_cte.planning import plan
from kernels.qkv_cte.planning.dims import Dims
from kernels.qkv_cte.planning.plan import HbmBytes

SHAPES = st.builds(
    Dims,
    batch=st.integers(1, 2),
    seqlen=st.integers(1, 700).map(lambda half: 2 * half),
    hidden=st.integers(1, 12).map(lambda n: 128 * n),
    width=st.integers(1, 6000),
    cores=st.sampled_from([1, 2]),
    bias_bytes=st.sampled_from([0, 2, 4]),
)


def recount(dims, call_widths, degrees, all_resident):
    """Bytes of all cores, one load at a time."""
    moved = {"weights": 0, "activations": 0, "channels": 0, "outputs": 0}
    for _ in range(dims.cores):
        for width, degree, resident in zip(call_widths, degrees, all_resident, strict=True):
            moved["channels"] += 4 * width * (4 + dims.bias_bytes)
            tokens_left, first_block = dims.tokens // dims.cores, True
            while tokens_left > 0:
                tokens = min(tokens_left, 128 * degree)
                if first_block or not resident:
                    moved["weights"] += dims.hidden * width
                moved["activations"] += tokens * (dims.hidden + 4)
                moved["outputs"] += tokens * width * 2
                tokens_left, first_block = tokens_left - tokens, False
    return HbmBytes(**moved)


def measured(plans):
    return measure.add_hbm(measure.run(call).hbm for call in plans)


@settings(max_examples=15, deadline=None)
@given(dims=SHAPES)
def test_pinned_moves_what_its_definition_says(dims):
    calls = baselines.pinned(dims, TRN3)
    widths = [call.dims.width for call in calls]
    assert sum(widths) == dims.width
    assert len(calls) == math.ceil(math.ceil(dims.width / 512) / 8)
    assert all(width % 512 == 0 for width in widths[:-1])
    for call in calls:
        banks = math.ceil(call.dims.width / 512)
        assert call.schedule.num_i_groups == 1
        assert call.schedule.degree * banks <= 8
        assert call.schedule.resident_h_tiles in (0, dims.h_tiles)
    degrees = [call.schedule.degree for call in calls]
    resident = [call.schedule.resident_h_tiles == dims.h_tiles for call in calls]
    assert measured(calls) == recount(dims, widths, degrees, resident)


@settings(max_examples=15, deadline=None)
@given(dims=SHAPES)
def test_chunked_streams_every_weight_in_every_block(dims):
    (call,) = baselines.chunked(dims, TRN3)
    assert call.schedule.resident_h_tiles == 0
    assert call.schedule.degree <= plan.make(dims, TRN3).schedule.degree
    assert measured([call]) == recount(dims, [dims.width], [call.schedule.degree], [False])


def test_pinned_degree_is_what_the_width_leaves_of_eight_banks():
    for width, degree in ((512, 8), (1024, 4), (1025, 2), (2048, 2), (2049, 1), (3584, 1), (4096, 1)):
        (call,) = baselines.pinned(Dims(1, 4096, 512, width), TRN3)
        assert call.schedule.degree == degree, width


def test_wan22_cross_attention_is_cut_into_two_calls_of_whole_heads():
    calls = baselines.pinned(Dims(1, 1184, 5120, 5120, 2), TRN3)
    assert [call.dims.width for call in calls] == [2560, 2560]


def test_neither_moves_less_than_the_minimum():
    for dims in (Dims(1, 9452, 5120, 3840, 2), Dims(1, 2000, 5120, 5120, 1)):
        minimum = plan.make(dims, TRN3).minimum.total
        for baseline in baselines.BASELINES.values():
            assert measured(baseline(dims, TRN3)).total >= minimum


def test_what_fits_nowhere_is_refused():
    with pytest.raises(BudgetError, match="SBUF"):
        baselines.chunked(Dims(1, 128, 512, 60000), TRN3)
