"""Tiles against plain ranges."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.tiling import ceil_div, round_up, tiles


@settings(max_examples=500, derandomize=True, deadline=None)
@given(extent=st.integers(0, 5000), tile_size=st.integers(1, 600))
def test_tiles_cover_the_extent_once_and_in_order(extent, tile_size):
    cut = tiles(extent, tile_size)
    assert [element for tile in cut for element in range(tile.start, tile.stop)] == list(range(extent))
    assert [tile.index for tile in cut] == list(range(len(cut)))
    assert all(tile.size == tile_size for tile in cut[:-1])
    assert all(1 <= tile.size <= tile_size and tile.stop == tile.start + tile.size for tile in cut)
    assert len(cut) == ceil_div(extent, tile_size)


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [(127, [127]), (128, [128]), (129, [128, 1]), (255, [128, 127]), (257, [128, 128, 1])],
)
def test_ragged_rows(rows, sizes):
    assert [tile.size for tile in tiles(rows, 128)] == sizes


@pytest.mark.parametrize("numerator", [0, 1, 127, 128, 129, 2**60 + 1])
@pytest.mark.parametrize("denominator", [1, 2, 128, 512])
def test_ceil_div_and_round_up(numerator, denominator):
    quotient = ceil_div(numerator, denominator)
    assert (quotient - 1) * denominator < numerator <= quotient * denominator
    assert round_up(numerator, denominator) == quotient * denominator


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: tiles(-1, 128), ValueError, "extent must be at least 0, got -1"),
        (lambda: tiles(128, 0), ValueError, "tile_size must be at least 1, got 0"),
        (lambda: tiles(128.0, 128), TypeError, "extent must be an integer, got 128.0 of type float"),  # type: ignore[arg-type]
        (lambda: tiles(128, "4"), TypeError, "tile_size must be an integer, got '4' of type str"),  # type: ignore[arg-type]
        (lambda: tiles(True, 4), TypeError, "extent must be an integer, got True"),
        (lambda: ceil_div(-1, 4), ValueError, "numerator must be at least 0, got -1"),
        (lambda: ceil_div(1, 0), ValueError, "denominator must be at least 1, got 0"),
        (lambda: round_up(1, 0), ValueError, "multiple must be at least 1, got 0"),
        (lambda: round_up(-4, 4), ValueError, "value must be at least 0, got -4"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, error, message):
    with pytest.raises(error) as refusal:
        call()
    assert str(refusal.value) == message
