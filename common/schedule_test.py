"""The schedule choice against brute force that shares nothing with it but the rule in the documentation."""

import dataclasses
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.budget import BudgetError, PsumLedger, SbufLedger
from common.hardware import TRN2, TRN3
from common.schedule import (
    Demand,
    choose,
    force,
    upstream_chunked,
    upstream_pinned,
    upstream_sub_calls,
)


@st.composite
def demands(draw):
    """Demands around every limit: narrow and wide outputs, one block and many, much SBUF and little."""
    num_i_banks = draw(st.integers(1, 30))
    bytes_per_bank = draw(st.sampled_from([4, 512, 2048, 4096]))
    narrow = draw(st.integers(0, bytes_per_bank - 1))
    return Demand(
        hardware=draw(st.sampled_from([TRN2, TRN3])),
        num_s_tiles=draw(st.one_of(st.integers(1, 10), st.integers(1, 60))),
        num_i_banks=num_i_banks,
        num_h_tiles=draw(st.integers(1, 27)),
        fixed_bytes=draw(st.one_of(st.integers(0, 100_000), st.integers(0, 240_000))),
        bytes_per_s_tile=draw(st.one_of(st.integers(1, 40_000), st.integers(1, 250_000))),
        resident_weight_tile_bytes=num_i_banks * bytes_per_bank - narrow,
        chunk_weight_bytes_per_bank=bytes_per_bank,
        chunk_weight_buffers=draw(st.integers(1, 4)),
    )


def widest_group(demand, num_s_tiles):
    """Most banks per I-group that still give each of `num_s_tiles` S-tiles banks of its own, by trial."""
    fitting = [banks for banks in range(1, demand.num_i_banks + 1) if banks * num_s_tiles <= 8]
    return max(fitting, default=0)


def brute_force_blocks(demand, degree):
    """S-tiles per block and banks per I-group, dealing out S-tiles one block at a time."""
    blocks, left = [], demand.num_s_tiles
    while left:
        size = min(left, degree)
        blocks.append((size, widest_group(demand, size)))
        left -= size
    return blocks


def brute_force_fits(demand, degree, resident):
    blocks = brute_force_blocks(demand, degree)
    if any(banks == 0 for _, banks in blocks):
        return False
    sizes = [demand.fixed_bytes] + [demand.bytes_per_s_tile] * degree
    sizes += [demand.resident_weight_tile_bytes] * resident
    if resident < demand.num_h_tiles:
        widest = max(banks for _, banks in blocks)
        columns = min(widest * demand.chunk_weight_bytes_per_bank, demand.resident_weight_tile_bytes)
        sizes += [columns] * demand.chunk_weight_buffers
    return sum(sizes) <= demand.hardware.sbuf_usable_bytes_per_partition


def brute_force_choice(demand, degrees=None):
    """(degree, N) of the rule, by trying every pair; None when no pair fits."""
    degrees = degrees or range(1, min(demand.num_s_tiles, 12) + 1)
    full = [degree for degree in degrees if brute_force_fits(demand, degree, demand.num_h_tiles)]
    if full:
        return max(full), demand.num_h_tiles
    streaming = [degree for degree in degrees if brute_force_fits(demand, degree, 0)]
    if not streaming:
        return None
    degree = max(streaming)
    counts = range(demand.num_h_tiles)
    return degree, max(count for count in counts if brute_force_fits(demand, degree, count))


def assert_keeps_the_limits(schedule):
    """Allocate what the schedule says, on ledgers of the hardware; cover every S-tile and every bank once."""
    demand = schedule.demand
    sbuf = SbufLedger(demand.hardware)
    if demand.fixed_bytes:
        sbuf.allocate("fixed", demand.fixed_bytes, alignment_bytes=1)
    for index in range(schedule.degree):
        sbuf.allocate(f"S-tile {index}", demand.bytes_per_s_tile, alignment_bytes=1)
    for index in range(schedule.resident_h_tiles):
        sbuf.allocate(f"H-tile {index}", demand.resident_weight_tile_bytes, alignment_bytes=1)
    if schedule.chunk_buffer_bytes:
        for index in range(demand.chunk_weight_buffers):
            sbuf.allocate(f"chunk {index}", schedule.chunk_buffer_bytes, alignment_bytes=1)
    assert schedule.sbuf_used_bytes == sbuf.peak_bytes
    assert schedule.sbuf_available_bytes == demand.hardware.sbuf_usable_bytes_per_partition

    s_tiles: list[int] = []
    psum = PsumLedger(demand.hardware)
    for number, block in enumerate(schedule.blocks):
        s_tiles += range(block.first_s_tile, block.first_s_tile + block.num_s_tiles)
        assert block.num_s_tiles <= schedule.degree
        assert block.banks_per_group == widest_group(demand, block.num_s_tiles)
        covered = [bank for group in block.i_groups for bank in range(group.start, group.stop)]
        assert covered == list(range(demand.num_i_banks))
        for group in block.i_groups:
            assert group.size <= block.banks_per_group
            with psum.scope(f"group {group.index}"):
                for s_tile in range(block.num_s_tiles):
                    psum.allocate(f"{number}.{group.index}.{s_tile}", group.size)
            if schedule.prefetch != "full":
                assert group.size <= schedule.chunk_buffer_banks
    assert s_tiles == list(range(demand.num_s_tiles))
    assert schedule.banks_per_group == schedule.blocks[0].banks_per_group
    assert schedule.num_i_groups == len(schedule.blocks[0].i_groups)


def tile_loads(schedule):
    """Count every (H-tile, bank) read while walking the loops, in units of full-width H-tiles."""
    demand = schedule.demand
    resident = set(range(schedule.resident_h_tiles))
    reads = [(h_tile, bank) for h_tile in resident for bank in range(demand.num_i_banks)]
    for block in schedule.blocks:
        for group in block.i_groups:
            for h_tile in range(demand.num_h_tiles):
                if h_tile not in resident:
                    reads += [(h_tile, bank) for bank in range(group.start, group.stop)]
    assert len(reads) % demand.num_i_banks == 0
    return len(reads) // demand.num_i_banks


def test_10000_random_demands_keep_the_limits_and_follow_the_rule():
    seen: Counter[str] = Counter()

    @settings(max_examples=10_000, derandomize=True, deadline=None, database=None)
    @given(demand=demands())
    def check(demand):
        expected = brute_force_choice(demand)
        if expected is None:
            seen["refused"] += 1
            with pytest.raises(BudgetError):
                choose(demand)
            return
        schedule = choose(demand)
        assert (schedule.degree, schedule.resident_h_tiles) == expected
        assert_keeps_the_limits(schedule)
        seen[schedule.prefetch] += 1
        seen[f"degree {schedule.degree}"] += 1
        short_last_block = schedule.blocks[-1].banks_per_group > schedule.banks_per_group
        seen["last block with wider groups"] += short_last_block
        seen["that needs wider chunk buffers"] += short_last_block and schedule.prefetch != "full"
        seen["back-off"] += "back-off" in " ".join(schedule.why)

    check()
    reached = ["refused", "full", "graduated", "chunked", "back-off"]
    reached += ["last block with wider groups", "that needs wider chunk buffers"]
    reached += [f"degree {degree}" for degree in range(1, 9)]
    assert {case: seen[case] for case in reached if seen[case] < 50} == {}


@settings(max_examples=1_000, derandomize=True, deadline=None, database=None)
@given(demand=demands(), extra=st.integers(0, 50_000))
def test_less_sbuf_never_gives_a_better_schedule(demand, extra):
    def rank(asked):
        try:
            schedule = choose(asked)
        except BudgetError:
            return (False, 0, 0)
        return (schedule.prefetch == "full", schedule.degree, schedule.resident_h_tiles)

    given_rank = rank(demand)
    assert rank(dataclasses.replace(demand, fixed_bytes=demand.fixed_bytes + extra)) <= given_rank
    assert rank(dataclasses.replace(demand, bytes_per_s_tile=demand.bytes_per_s_tile + extra)) <= given_rank
    assert rank(dataclasses.replace(demand, chunk_weight_buffers=demand.chunk_weight_buffers + 1)) <= given_rank
    assert rank(dataclasses.replace(demand, hardware=TRN2)) <= rank(dataclasses.replace(demand, hardware=TRN3))


@settings(max_examples=1_000, derandomize=True, deadline=None, database=None)
@given(demand=demands(), degree=st.integers(1, 8), resident=st.integers(0, 27))
def test_forced_values_are_kept_or_refused(demand, degree, resident):
    if degree > demand.num_s_tiles or resident > demand.num_h_tiles:
        with pytest.raises(ValueError, match=r"degree must be at most|resident_h_tiles must be at most"):
            force(demand, degree=degree, resident_h_tiles=resident)
        return
    if brute_force_fits(demand, degree, resident):
        schedule = force(demand, degree=degree, resident_h_tiles=resident)
        assert (schedule.degree, schedule.resident_h_tiles) == (degree, resident)
        assert_keeps_the_limits(schedule)
        by_residency = force(demand, resident_h_tiles=resident)
        degrees = [d for d in range(1, min(demand.num_s_tiles, 8) + 1) if brute_force_fits(demand, d, resident)]
        assert by_residency.degree == max(degrees)
    else:
        with pytest.raises(BudgetError, match=f"degree {degree} with {resident} resident H-tiles needs"):
            force(demand, degree=degree, resident_h_tiles=resident)
    by_degree = brute_force_choice(demand, degrees=[degree])
    if by_degree is None:
        with pytest.raises(BudgetError):
            force(demand, degree=degree)
    else:
        schedule = force(demand, degree=degree)
        assert (schedule.degree, schedule.resident_h_tiles) == by_degree


@settings(max_examples=1_000, derandomize=True, deadline=None, database=None)
@given(demand=demands())
def test_upstream_baselines(demand):
    pairs = [(degree, resident) for degree in range(8, 0, -1) for resident in (demand.num_h_tiles, 0)]
    pinned = [
        (degree, resident)
        for degree, resident in pairs
        if degree * demand.num_i_banks <= 8
        and degree <= demand.num_s_tiles
        and brute_force_fits(demand, degree, resident)
    ]
    if demand.num_i_banks > 8:
        with pytest.raises(ValueError, match="cut the width with upstream_sub_calls"):
            upstream_pinned(demand)
    elif pinned:
        schedule = upstream_pinned(demand)
        assert (schedule.degree, schedule.resident_h_tiles) == pinned[0]
        assert schedule.num_i_groups == 1
        assert_keeps_the_limits(schedule)
    else:
        with pytest.raises(BudgetError):
            upstream_pinned(demand)

    choice = brute_force_choice(demand)
    streaming = [degree for degree in range(1, choice[0] + 1) if brute_force_fits(demand, degree, 0)] if choice else []
    if streaming:
        schedule = upstream_chunked(demand)
        assert (schedule.degree, schedule.prefetch) == (max(streaming), "chunked")
        assert_keeps_the_limits(schedule)
        assert tile_loads(schedule) == demand.num_h_tiles * len(schedule.blocks)
    else:
        with pytest.raises(BudgetError):
            upstream_chunked(demand)


@pytest.mark.parametrize("num_i_banks", range(1, 41))
def test_upstream_sub_calls(num_i_banks):
    calls = upstream_sub_calls(TRN3, num_i_banks)
    assert [bank for call in calls for bank in range(call.start, call.stop)] == list(range(num_i_banks))
    assert all(call.size <= 8 for call in calls)
    assert 8 * (len(calls) - 1) < num_i_banks


def wan(**changes):
    """Wan2.2 self-attention at TP=4 on one of two cores: S 4,726, H 5,120, I 3,840; sizes by hand.

    Fixed: bf16 bias and fp32 channel scales. S-tile: bf16 output, packed activations with their row scale.
    """
    demand = Demand(
        hardware=TRN3,
        num_s_tiles=37,
        num_i_banks=8,
        num_h_tiles=10,
        fixed_bytes=2 * 3840 + 4 * 3840,
        bytes_per_s_tile=2 * 3840 + 5120 + 4,
        resident_weight_tile_bytes=4 * 3840,
        chunk_weight_bytes_per_bank=4 * 512,
    )
    return dataclasses.replace(demand, **changes)


def test_back_off_by_hand():
    """All weights leave (245,752 - 23,040 - 153,600) // 12,804 = 5 S-tiles; 8 would fit when streaming."""
    schedule = choose(wan())
    assert (schedule.degree, schedule.banks_per_group, schedule.num_i_groups) == (5, 1, 8)
    assert (schedule.prefetch, schedule.resident_h_tiles, schedule.chunk_buffer_bytes) == ("full", 10, 0)
    assert schedule.sbuf_used_bytes == 23_040 + 5 * 12_804 + 153_600
    assert [block.num_s_tiles for block in schedule.blocks] == [5] * 7 + [2]
    assert schedule.blocks[-1].banks_per_group == 4
    assert [group.size for group in schedule.blocks[-1].i_groups] == [4, 4]
    assert tile_loads(schedule) == 10
    assert schedule.why == (
        "degree 5: bound by SBUF, 6 needs 253,464 of 245,752 B",
        "10 of 10 H-tiles resident: prefetch back-off from degree 8, which streams weights",
    )


def test_the_last_byte_can_be_used():
    """23,040 + 153,600 + 8 x 8,639 = 245,752."""
    exact = wan(bytes_per_s_tile=8_639)
    assert choose(exact).sbuf_used_bytes == 245_752
    assert (choose(exact).degree, choose(exact).prefetch) == (8, "full")
    assert choose(dataclasses.replace(exact, fixed_bytes=23_041)).degree == 7


def test_graduated_by_hand():
    """27 H-tiles of 15,360 B never fit; at degree 8 each I-group, and so each chunk buffer, is one bank."""
    schedule = choose(wan(fixed_bytes=23_040 + 98_304, num_h_tiles=27))
    assert (schedule.degree, schedule.prefetch, schedule.chunk_buffer_bytes) == (8, "graduated", 2048)
    free = 245_752 - 121_344 - 8 * 12_804 - 2 * 2048
    assert schedule.resident_h_tiles == free // 15_360 == 1
    assert len(schedule.blocks) == 5
    assert tile_loads(schedule) == 1 + 26 * 5
    assert schedule.why == (
        "degree 8: bound by the 8 PSUM banks",
        "1 of 27 H-tiles resident: 17,880 B free beside the chunk buffers // 15,360 B",
    )


def test_one_block_says_that_residency_saves_nothing():
    schedule = choose(wan(num_s_tiles=2, num_h_tiles=27))
    assert schedule.why == (
        "degree 2: bound by the number of S-tiles",
        "11 of 27 H-tiles resident: 180,720 B free beside the chunk buffers // 15,360 B",
        "one S-block: every weight tile is read once, whatever N is",
    )
    assert tile_loads(schedule) == 27


def test_forced_values_say_so():
    schedule = force(wan(), degree=3, resident_h_tiles=4)
    assert schedule.why == ("degree 3: given", "4 of 10 H-tiles resident: given")
    assert force(wan(), degree=3).why == ("degree 3: given", "10 of 10 H-tiles resident: all fit")


@pytest.mark.parametrize(("width", "degree"), [(512, 8), (1024, 4), (2048, 2), (3072, 1), (3584, 1), (4096, 1)])
def test_upstream_degree_is_pinned_by_the_width(width, degree):
    """The seed: any output width >= 3,584 pins the degree to 1."""
    banks = width // 512
    narrow = wan(num_i_banks=banks, resident_weight_tile_bytes=banks * 2048, bytes_per_s_tile=1)
    assert upstream_pinned(narrow).degree == degree
    assert choose(narrow).degree == 8


def test_a_refusal_names_every_part():
    with pytest.raises(BudgetError) as refusal:
        choose(wan(bytes_per_s_tile=300_000))
    assert str(refusal.value) == (
        "SBUF of trn3: degree 1 with 0 resident H-tiles needs 353,760 of 245,752 B per partition: "
        "fixed 23,040, S-tiles 1 x 300,000, resident H-tiles 0 x 15,360, chunk buffers 2 x 15,360"
    )


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: wan(hardware="trn3"), TypeError, "hardware must be a Hardware, got 'trn3' of type str"),
        (lambda: wan(num_s_tiles=0), ValueError, "num_s_tiles must be at least 1, got 0"),
        (lambda: wan(num_i_banks=0), ValueError, "num_i_banks must be at least 1, got 0"),
        (lambda: wan(num_h_tiles=-1), ValueError, "num_h_tiles must be at least 1, got -1"),
        (lambda: wan(fixed_bytes=-1), ValueError, "fixed_bytes must be at least 0, got -1"),
        (lambda: wan(bytes_per_s_tile=1.5), TypeError, "bytes_per_s_tile must be an integer, got 1.5"),
        (lambda: wan(chunk_weight_buffers=0), ValueError, "chunk_weight_buffers must be at least 1, got 0"),
        (
            lambda: wan(resident_weight_tile_bytes=20_000),
            ValueError,
            "resident_weight_tile_bytes must be at most .* = 16,384, got 20,000",
        ),
        (lambda: force(wan(), degree=0), ValueError, "degree must be at least 1, got 0"),
        (
            lambda: force(wan(), degree=9),
            ValueError,
            r"degree must be at most 8 \(PSUM banks 8, num_s_tiles 37\)",
        ),
        (lambda: force(wan(num_s_tiles=3), degree=4), ValueError, r"degree must be at most 3 .* got 4"),
        (
            lambda: force(wan(), resident_h_tiles=11),
            ValueError,
            "resident_h_tiles must be at most 10, got 11",
        ),
        (
            lambda: force(wan(), resident_h_tiles=-1),
            ValueError,
            "resident_h_tiles must be at least 0, got -1",
        ),
        (lambda: upstream_sub_calls(TRN3, 0), ValueError, "num_i_banks must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()
