"""The schedule of a wide projection: how many S-tiles live at once, which weights stay in SBUF.

`out[S, I] = a[S, H] @ w[H, I]` runs in S-blocks of `degree` S-tiles. Within a block the output width is cut
into I-groups of `banks_per_group` PSUM banks (I-group tiling). For each group the H-tiles are accumulated one
after the other, the resident ones read from SBUF, the others streamed from HBM through rotating chunk buffers
(graduated prefetch). This module knows tiles, banks and bytes, and nothing of Q, K and V.

PSUM:  degree * banks_per_group <= 8 banks.
SBUF:  fixed + degree * S-tile + N * H-tile + chunk buffers (unless all H-tiles are resident) <= usable.

The rule, in the order in which it decides:
1. The largest degree at which every H-tile can stay resident, if there is one (prefetch back-off: one
   resident weight pass beats any amount of S-multibuffering). No chunk buffers exist then.
2. Else the largest degree that fits beside the chunk buffers, and N = free SBUF // one H-tile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from common.budget import BudgetError
from common.checks import require_int, require_type
from common.hardware import Hardware
from common.tiling import Tile, ceil_div, tiles

Prefetch = Literal["full", "graduated", "chunked"]


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a projection asks of one NeuronCore. Bytes are per partition, alignment padding included.

    Attributes:
        hardware: the target.
        num_s_tiles: S-tiles of this core.
        num_i_banks: PSUM banks that one S-tile's whole output width takes, ceil(I / 512).
        num_h_tiles: H-tiles of the contraction.
        fixed_bytes: everything that does not depend on the schedule (bias, channel scales, ...).
        bytes_per_s_tile: what each live S-tile holds (activations, row scales, output, ...).
        resident_weight_tile_bytes: one H-tile of weights over all I columns.
        chunk_weight_bytes_per_bank: one H-tile of weights over the columns of one bank.
        chunk_weight_buffers: rotating buffers for streamed weights.

    A chunk buffer holds one H-tile x the widest I-group of any block, never more than the whole width. The
    public kernel makes each one full width: for I = 5,120 at degree 8 that is 2 x 20 KiB where 2 x 2 KiB are
    in use, and the difference holds one more resident H-tile (20 KiB) and most of a second.
    """

    hardware: Hardware
    num_s_tiles: int
    num_i_banks: int
    num_h_tiles: int
    fixed_bytes: int
    bytes_per_s_tile: int
    resident_weight_tile_bytes: int
    chunk_weight_bytes_per_bank: int
    chunk_weight_buffers: int = 2

    def __post_init__(self) -> None:
        require_type("hardware", self.hardware, Hardware)
        for field in dataclasses.fields(self):
            if field.name != "hardware":
                at_least = 0 if field.name == "fixed_bytes" else 1
                require_int(field.name, getattr(self, field.name), at_least)
        widest = self.num_i_banks * self.chunk_weight_bytes_per_bank
        if self.resident_weight_tile_bytes > widest:
            raise ValueError(
                "resident_weight_tile_bytes must be at most num_i_banks x chunk_weight_bytes_per_bank = "
                f"{widest:,}, got {self.resident_weight_tile_bytes:,}"
            )


@dataclass(frozen=True)
class Block:
    """One S-block: `num_s_tiles` S-tiles from `first_s_tile`, and its I-groups as tiles over banks."""

    first_s_tile: int
    num_s_tiles: int
    banks_per_group: int
    i_groups: tuple[Tile, ...]


@dataclass(frozen=True)
class Schedule:
    """A schedule that fits.

    Attributes:
        demand: what it was made for.
        degree: S-tiles per S-block (the last block may have fewer).
        banks_per_group, num_i_groups: I-group tiling of a full block.
        resident_h_tiles: N, the first N H-tiles stay in SBUF for the whole call.
        prefetch: "full" (N = all), "chunked" (N = 0) or "graduated".
        blocks: the S-blocks in order; a short last block has its own I-groups.
        chunk_buffer_banks, chunk_buffer_bytes: width and size of each chunk buffer, 0 when prefetch is full.
        sbuf_used_bytes, sbuf_available_bytes: per partition.
        why: short reasons for degree and prefetch.
    """

    demand: Demand
    degree: int
    banks_per_group: int
    num_i_groups: int
    resident_h_tiles: int
    prefetch: Prefetch
    blocks: tuple[Block, ...]
    chunk_buffer_banks: int
    chunk_buffer_bytes: int
    sbuf_used_bytes: int
    sbuf_available_bytes: int
    why: tuple[str, ...]


def choose(demand: Demand) -> Schedule:
    """The schedule of the rule above.

    Raises:
        BudgetError: not even one S-tile fits.
    """
    return force(demand)


def force(demand: Demand, *, degree: int | None = None, resident_h_tiles: int | None = None) -> Schedule:
    """The schedule with `degree`, `resident_h_tiles` or both given; what is not given follows the rule.

    Raises:
        ValueError: a value is outside 1..min(PSUM banks, num_s_tiles) or 0..num_h_tiles.
        BudgetError: it does not fit in SBUF.
    """
    limit = _degree_limit(demand)
    if degree is not None and require_int("degree", degree, at_least=1) > limit:
        raise ValueError(
            f"degree must be at most {limit} (PSUM banks {demand.hardware.psum_banks}, "
            f"num_s_tiles {demand.num_s_tiles}), got {degree}"
        )
    degrees = range(limit, 0, -1) if degree is None else (degree,)
    if resident_h_tiles is not None:
        if require_int("resident_h_tiles", resident_h_tiles, at_least=0) > demand.num_h_tiles:
            raise ValueError(f"resident_h_tiles must be at most {demand.num_h_tiles}, got {resident_h_tiles}")
        chosen = _require_fitting(demand, degrees, resident_h_tiles)
        why = _why(demand, degrees, chosen, resident_h_tiles, forced=True)
        return _build(demand, chosen, resident_h_tiles, why)
    full = _largest_fitting(demand, degrees, demand.num_h_tiles)
    if full is not None:
        chosen, resident = full, demand.num_h_tiles
    else:
        chosen = _require_fitting(demand, degrees, 0)
        resident = _free_bytes(demand, chosen, 0) // demand.resident_weight_tile_bytes
    return _build(demand, chosen, resident, _why(demand, degrees, chosen, resident, forced=False))


def upstream_chunked(demand: Demand) -> Schedule:
    """Baseline: the degree of `choose`, every H-tile streamed again in every S-block (N = 0).

    Where that degree leaves no room for chunk buffers, the largest smaller one that does.

    Raises:
        BudgetError: chunk buffers fit at no degree.
    """
    degrees = range(choose(demand).degree, 0, -1)
    degree = _require_fitting(demand, degrees, 0)
    return _build(demand, degree, 0, ("upstream baseline: all weights streamed in every S-block",))


def upstream_sub_calls(hardware: Hardware, num_i_banks: int) -> tuple[Tile, ...]:
    """The calls into which upstream cuts an output width: tiles over banks, each at most all PSUM banks wide.

    Widths are as even as whole banks allow. Each sub-call reads the activations again and has its own demand,
    because its output, bias and scales are narrower: the caller makes one `Demand` per tile.
    """
    num_i_banks = require_int("num_i_banks", num_i_banks, at_least=1)
    num_calls = ceil_div(num_i_banks, hardware.psum_banks)
    return tiles(num_i_banks, ceil_div(num_i_banks, num_calls))


def upstream_pinned(demand: Demand) -> Schedule:
    """Baseline: one I-group, so the degree is pinned to 8 // num_i_banks, with all weights resident or none.

    Raises:
        ValueError: the output is wider than PSUM; cut it with `upstream_sub_calls` first.
        BudgetError: it does not fit in SBUF.
    """
    banks = demand.hardware.psum_banks
    if demand.num_i_banks > banks:
        raise ValueError(
            f"num_i_banks must be at most {banks}, got {demand.num_i_banks}: cut the width with upstream_sub_calls"
        )
    degrees = range(min(banks // demand.num_i_banks, _degree_limit(demand)), 0, -1)
    for degree in degrees:
        for resident in (demand.num_h_tiles, 0):
            if _free_bytes(demand, degree, resident) >= 0:
                why = f"upstream baseline: degree at most {banks} PSUM banks // {demand.num_i_banks} I-banks"
                return _build(demand, degree, resident, (why,))
    raise BudgetError(_refusal(demand, degrees, 0))


def _degree_limit(demand: Demand) -> int:
    return min(demand.hardware.psum_banks, demand.num_s_tiles)


def _banks_per_group(demand: Demand, num_s_tiles: int) -> int:
    return min(demand.num_i_banks, demand.hardware.psum_banks // num_s_tiles)


def _chunk_buffer(demand: Demand, degree: int, resident_h_tiles: int) -> tuple[int, int]:
    """Banks and bytes of one chunk buffer; the block with the fewest S-tiles has the widest I-groups."""
    if resident_h_tiles == demand.num_h_tiles:
        return 0, 0
    banks = _banks_per_group(demand, demand.num_s_tiles % degree or degree)
    return banks, min(banks * demand.chunk_weight_bytes_per_bank, demand.resident_weight_tile_bytes)


def _needed_bytes(demand: Demand, degree: int, resident_h_tiles: int) -> int:
    _, chunk_buffer_bytes = _chunk_buffer(demand, degree, resident_h_tiles)
    return (
        demand.fixed_bytes
        + degree * demand.bytes_per_s_tile
        + resident_h_tiles * demand.resident_weight_tile_bytes
        + demand.chunk_weight_buffers * chunk_buffer_bytes
    )


def _free_bytes(demand: Demand, degree: int, resident_h_tiles: int) -> int:
    """What is left in SBUF; negative where it does not fit."""
    return demand.hardware.sbuf_usable_bytes_per_partition - _needed_bytes(demand, degree, resident_h_tiles)


def _largest_fitting(demand: Demand, degrees: Sequence[int], resident_h_tiles: int) -> int | None:
    """The first of `degrees`, which come in falling order, that fits."""
    fitting = (degree for degree in degrees if _free_bytes(demand, degree, resident_h_tiles) >= 0)
    return next(fitting, None)


def _require_fitting(demand: Demand, degrees: Sequence[int], resident_h_tiles: int) -> int:
    degree = _largest_fitting(demand, degrees, resident_h_tiles)
    if degree is None:
        raise BudgetError(_refusal(demand, degrees, resident_h_tiles))
    return degree


def _refusal(demand: Demand, degrees: Sequence[int], resident_h_tiles: int) -> str:
    degree = min(degrees, key=lambda degree: _needed_bytes(demand, degree, resident_h_tiles))
    _, chunk_buffer_bytes = _chunk_buffer(demand, degree, resident_h_tiles)
    needed = _needed_bytes(demand, degree, resident_h_tiles)
    usable = demand.hardware.sbuf_usable_bytes_per_partition
    return (
        f"SBUF of {demand.hardware.name}: degree {degree} with {resident_h_tiles} resident H-tiles needs "
        f"{needed:,} of {usable:,} B per partition: fixed {demand.fixed_bytes:,}, "
        f"S-tiles {degree} x {demand.bytes_per_s_tile:,}, "
        f"resident H-tiles {resident_h_tiles} x {demand.resident_weight_tile_bytes:,}, "
        f"chunk buffers {demand.chunk_weight_buffers} x {chunk_buffer_bytes:,}"
    )


def _build(demand: Demand, degree: int, resident_h_tiles: int, why: tuple[str, ...]) -> Schedule:
    blocks = []
    for s_tiles in tiles(demand.num_s_tiles, degree):
        banks_per_group = _banks_per_group(demand, s_tiles.size)
        i_groups = tiles(demand.num_i_banks, banks_per_group)
        blocks.append(Block(s_tiles.start, s_tiles.size, banks_per_group, i_groups))
    chunk_buffer_banks, chunk_buffer_bytes = _chunk_buffer(demand, degree, resident_h_tiles)
    return Schedule(
        demand=demand,
        degree=degree,
        banks_per_group=blocks[0].banks_per_group,
        num_i_groups=len(blocks[0].i_groups),
        resident_h_tiles=resident_h_tiles,
        prefetch=_prefetch(demand, resident_h_tiles),
        blocks=tuple(blocks),
        chunk_buffer_banks=chunk_buffer_banks,
        chunk_buffer_bytes=chunk_buffer_bytes,
        sbuf_used_bytes=_needed_bytes(demand, degree, resident_h_tiles),
        sbuf_available_bytes=demand.hardware.sbuf_usable_bytes_per_partition,
        why=why,
    )


def _prefetch(demand: Demand, resident_h_tiles: int) -> Prefetch:
    if resident_h_tiles == demand.num_h_tiles:
        return "full"
    return "graduated" if resident_h_tiles else "chunked"


def _why(
    demand: Demand, degrees: Sequence[int], degree: int, resident_h_tiles: int, *, forced: bool
) -> tuple[str, ...]:
    """Reasons: what bound the degree, how N came about, and whether N matters."""
    why = [
        _why_degree(demand, degrees, degree, resident_h_tiles),
        _why_resident(demand, degrees, degree, resident_h_tiles, forced=forced),
    ]
    if degree == demand.num_s_tiles:
        why.append("one S-block: every weight tile is read once, whatever N is")
    return tuple(why)


def _why_degree(demand: Demand, degrees: Sequence[int], degree: int, resident_h_tiles: int) -> str:
    if len(degrees) == 1 and _degree_limit(demand) > 1:
        return f"degree {degree}: given"
    if degree == demand.hardware.psum_banks:
        return f"degree {degree}: bound by the {degree} PSUM banks"
    if degree == demand.num_s_tiles:
        return f"degree {degree}: bound by the number of S-tiles"
    needed = _needed_bytes(demand, degree + 1, resident_h_tiles)
    usable = demand.hardware.sbuf_usable_bytes_per_partition
    return f"degree {degree}: bound by SBUF, {degree + 1} needs {needed:,} of {usable:,} B"


def _why_resident(demand: Demand, degrees: Sequence[int], degree: int, resident_h_tiles: int, *, forced: bool) -> str:
    kept = f"{resident_h_tiles} of {demand.num_h_tiles} H-tiles resident"
    if forced:
        return f"{kept}: given"
    if resident_h_tiles < demand.num_h_tiles:
        free = _free_bytes(demand, degree, 0)
        return f"{kept}: {free:,} B free beside the chunk buffers // {demand.resident_weight_tile_bytes:,} B"
    chunked = _largest_fitting(demand, degrees, 0)
    if chunked is not None and chunked > degree:
        return f"{kept}: prefetch back-off from degree {chunked}, which streams weights"
    return f"{kept}: all fit"
