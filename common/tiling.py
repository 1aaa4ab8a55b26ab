"""Tiles of an extent: the ranges that loops over S, H and I walk, the last one ragged."""

from __future__ import annotations

from dataclasses import dataclass

from common.checks import require_int


def ceil_div(numerator: int, denominator: int) -> int:
    """Smallest integer >= numerator / denominator, for numerator >= 0 and denominator >= 1."""
    numerator = require_int("numerator", numerator, at_least=0)
    denominator = require_int("denominator", denominator, at_least=1)
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """Smallest multiple of `multiple` (>= 1) that is >= `value` (>= 0)."""
    value = require_int("value", value, at_least=0)
    multiple = require_int("multiple", multiple, at_least=1)
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class Tile:
    """The range `start .. start + size - 1` of an extent, the `index`-th of its tiling."""

    index: int
    start: int
    size: int

    @property
    def stop(self) -> int:
        """One past the last element."""
        return self.start + self.size


def tiles(extent: int, tile_size: int) -> tuple[Tile, ...]:
    """Cut `0 .. extent - 1` into tiles of `tile_size`, in order; the last one may be smaller.

    An extent of 0 has no tiles, as a range of 0 has no elements.

    Raises:
        TypeError: an argument is no integer.
        ValueError: `extent` is negative, or `tile_size` is below 1.
    """
    extent = require_int("extent", extent, at_least=0)
    tile_size = require_int("tile_size", tile_size, at_least=1)
    starts = range(0, extent, tile_size)
    return tuple(Tile(index, start, min(tile_size, extent - start)) for index, start in enumerate(starts))
