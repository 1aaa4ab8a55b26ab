"""A flow in a plan: what each bank is evicted as, and the buffers that norm and RoPE in the eviction need."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from common.checks import require_int
from common.schedule import Schedule
from kernels.qkv_cte.device.config import (
    BANK_COLUMNS,
    CROSSED_BUFFERS,
    DEQUANT_BUFFERS,
    EARLY_BUFFERS,
    NO_STAGES,
    ROW_MX,
    S_TILE,
    Flow,
    HeadSegment,
    NormRopePass,
    PassSegment,
    Piece,
    Stages,
    SumSegment,
)
from kernels.qkv_cte.device.engines import by_scalar
from kernels.qkv_cte.device.tiling import scaled_columns
from kernels.qkv_cte.planning.dims import Dims

FP32_BYTES = 4


def can_be_early(dims: Dims, norm_rope: NormRopePass | None) -> bool:
    """Whether banks hold whole heads of the segments, so that RoPE finds both lanes of a pair in one."""
    if norm_rope is None:
        return False
    if not norm_rope.cache_bytes:
        return True
    cuts = range(BANK_COLUMNS, dims.width, BANK_COLUMNS)
    return not any(
        (cut - segment.first_column) % norm_rope.head_dim
        for segment in norm_rope.segments
        for cut in cuts
        if segment.first_column < cut < segment.first_column + segment.width
    )


def require_flow(dims: Dims, norm_rope: NormRopePass | None, flow: Flow, stages: Stages = NO_STAGES) -> None:
    """Refuses a flow that a call cannot have.

    Raises:
        ValueError: it keeps rows or applies the norm early where there is no norm or RoPE, or a bank cuts a head.
    """
    if flow.early and not can_be_early(dims, norm_rope):
        raise ValueError("flow.early is True; accepted: False, without norm and RoPE or where a PSUM bank cuts a head")
    if flow.early and (stages.heads is not None or stages.cache is not None):
        raise ValueError("flow.early is True; accepted: False, beside norms of single heads or KV caches")
    scaled = norm_rope is not None and norm_rope.sum_columns > 0
    require_int("flow.chunk_buffers", flow.chunk_buffers, at_least=1)
    require_int("flow.scalar_every", flow.scalar_every, at_least=0)
    most = dims.s_tiles if flow.early and scaled else 0
    if not 0 <= flow.kept_tiles <= most:
        raise ValueError(f"flow.kept_tiles is {flow.kept_tiles}; accepted: 0 to {most}")
    reread = dims.s_tiles - flow.kept_tiles if flow.early and scaled else 0
    if not min(reread, 1) <= flow.pass_buffers <= reread:
        raise ValueError(f"flow.pass_buffers is {flow.pass_buffers}; accepted: {min(reread, 1)} to {reread}")


def with_pieces(norm_rope: NormRopePass | None, flow: Flow) -> NormRopePass | None:
    """The pass with the number of pieces of each segment."""
    if norm_rope is None or not flow.early:
        return norm_rope
    segments = tuple(dataclasses.replace(segment, pieces=_banks(segment)) for segment in norm_rope.segments)
    return dataclasses.replace(norm_rope, segments=segments)


Pieces = tuple[tuple[Piece, ...], ...]
"""Those of each bank of a core."""


def pieces(dims: Dims, norm_rope: NormRopePass | None, flow: Flow, stages: Stages = NO_STAGES) -> tuple[Pieces, ...]:
    """What each bank is evicted as: cut where a segment begins or ends if that is treated in the eviction.

    Of each core that has columns of its own; one entry where the cores share the tokens.
    """
    segments = norm_rope.segments if norm_rope is not None and flow.early else ()
    numbers = itertools.count()
    sums = _first_sums(dims, segments)
    cores = []
    for core_first in range(0, dims.width, dims.columns_per_core):
        width = min(dims.columns_per_core, dims.width - core_first)
        cuts = {edge - core_first for edge in _edges(segments, stages)}
        banks = []
        for start in range(0, width, dims.bank_columns):
            stop = min(start + dims.bank_columns, width)
            edges = sorted({start, stop, *(cut for cut in cuts if start < cut < stop)})
            found = [_piece(a, b - a, segments, sums, numbers) for a, b in itertools.pairwise(edges)]
            banks.append(tuple(_with_stages(piece, core_first, dims, stages) for piece in found))
        cores.append(tuple(banks))
    return tuple(cores)


def _edges(segments: tuple[PassSegment, ...], stages: Stages) -> set[int]:
    """Columns where anything begins or ends that is treated in the eviction."""
    heads = () if stages.heads is None else stages.heads.segments
    treated: list[PassSegment | HeadSegment | SumSegment] = [*segments, *heads, *stages.sums]
    return {edge for each in treated for edge in (each.first_column, each.first_column + each.width)}


def _piece(
    first: int, width: int, segments: tuple[PassSegment, ...], sums: dict[str, int], numbers: itertools.count[int]
) -> Piece:
    index = _holder(segments, first)
    if index < 0:
        return Piece(first, width)
    segment = segments[index]
    number = first // BANK_COLUMNS - segment.first_column // BANK_COLUMNS
    column = sums[segment.name] + number if segment.gamma_bytes else -1
    return Piece(first, width, index, column, next(numbers))


def _with_stages(piece: Piece, core_first: int, dims: Dims, stages: Stages) -> Piece:
    """The piece with what the head stage and the sums of squares do with it."""
    first = core_first + piece.first_column
    heads = () if stages.heads is None else stages.heads.segments
    summed, column = _holder(stages.sums, first), -1
    if summed >= 0:
        number = first // dims.bank_columns - stages.sums[summed].first_column // dims.bank_columns
        column = sum(segment.banks for segment in stages.sums[:summed]) + number
    return dataclasses.replace(piece, head_segment=_holder(heads, first), partial_sum=column)


def _holder(segments: Sequence[PassSegment | HeadSegment | SumSegment], column: int) -> int:
    """Index of the segment that holds a column; -1 if none does."""
    holders = (i for i, s in enumerate(segments) if s.first_column <= column < s.first_column + s.width)
    return next(holders, -1)


def _banks(segment: PassSegment) -> int:
    """Banks that a segment's columns lie in."""
    last = segment.first_column + segment.width - 1
    return last // BANK_COLUMNS - segment.first_column // BANK_COLUMNS + 1


def _first_sums(dims: Dims, segments: tuple[PassSegment, ...]) -> dict[str, int]:
    """First column of each normalised segment's sums; the columns of all at the end, under "all"."""
    firsts, column = {}, 0
    for segment in segments:
        if segment.gamma_bytes:
            firsts[segment.name] = column
            column += dims.s_tiles * _banks(segment)
    return firsts | {"all": column}


def segment_pieces(dims: Dims, norm_rope: NormRopePass | None, flow: Flow) -> int:
    """Pieces of a row that norm and RoPE go through."""
    return sum(piece.segment >= 0 for bank in pieces(dims, norm_rope, flow)[0] for piece in bank)


def outputs(dims: Dims, norm_rope: NormRopePass | None, flow: Flow, degree: int) -> int:
    """S-tiles of a block whose output row is used: all, but those that are kept where the whole width is."""
    if norm_rope is None or scaled_columns(norm_rope)[1] < dims.width:
        return degree
    return min(degree, dims.s_tiles - flow.kept_tiles)


def dequantised_buffers(
    dims: Dims, norm_rope: NormRopePass | None, flow: Flow, chosen: Schedule, stages: Stages = NO_STAGES
) -> int:
    """Rotating fp32 buffers of evictions: as many as are used at once, and no more than evictions need them."""
    if dims.format.name != ROW_MX and not flow.early:
        return 0
    most = EARLY_BUFFERS if flow.early else DEQUANT_BUFFERS
    cores = pieces(dims, norm_rope, flow, stages)
    return max(_dequantised_users(dims, flow, chosen, of_bank, most) for of_bank in cores)


def _dequantised_users(dims: Dims, flow: Flow, chosen: Schedule, of_bank: Pieces, most: int) -> int:
    """Pieces of a core that are evicted through these buffers; no more than `most`, which are as good as all."""
    users = 0
    for block in chosen.blocks:
        for group, t in itertools.product(block.i_groups, range(block.num_s_tiles)):
            for b in range(min(group.size, len(of_bank) - group.start)):
                everyone = dims.format.name == ROW_MX and (dims.bias_bytes > 0 or by_scalar(flow, t, b))
                pieces_here = [piece for piece in of_bank[group.start + b] if piece.head_segment < 0]
                users += sum(everyone or piece.segment >= 0 for piece in pieces_here)
            if users >= most:
                return most
    return users


def gammas(norm_rope: NormRopePass | None, flow: Flow) -> list[PassSegment]:
    """Segments whose gamma is applied in the eviction."""
    segments = norm_rope.segments if norm_rope is not None and flow.early else ()
    return [segment for segment in segments if segment.gamma_bytes]


def gamma_buffers(norm_rope: NormRopePass | None, flow: Flow) -> list[tuple[str, int]]:
    """Names and bytes per partition of their gammas."""
    return [(f"gamma_{s.name}", s.gamma_bytes * s.width) for s in gammas(norm_rope, flow)]


def crossed_buffers(dims: Dims, norm_rope: NormRopePass | None, flow: Flow) -> list[tuple[str, int]]:
    """The same of the second products of RoPE in the eviction."""
    if norm_rope is None or not flow.early or not norm_rope.cache_bytes:
        return []
    count = min(CROSSED_BUFFERS, dims.s_tiles * segment_pieces(dims, norm_rope, flow))
    return [(f"crossed_{i}", FP32_BYTES * min(BANK_COLUMNS, dims.width)) for i in range(count)]


def s_tile_buffers(norm_rope: NormRopePass | None, flow: Flow) -> list[tuple[str, int]]:
    """The same for each S-tile of a block."""
    if norm_rope is None or not flow.early or not norm_rope.cache_bytes:
        return []
    cache = norm_rope.cache_bytes * norm_rope.head_dim
    return [("cos", cache), ("sin", cache)]


def lasting_buffers(dims: Dims, norm_rope: NormRopePass | None, flow: Flow) -> list[tuple[str, int]]:
    """What lives from the first S-block to the end of the pass, beside the sums of `pass_plan`."""
    if norm_rope is None or not flow.early or not norm_rope.sum_columns:
        return []
    sums = _first_sums(dims, norm_rope.segments)["all"]
    return [("piece_sums", FP32_BYTES * sums)] + [
        (f"kept_{i}", row_bytes(dims, norm_rope)) for i in range(flow.kept_tiles)
    ]


def pass_buffers(dims: Dims, norm_rope: NormRopePass, flow: Flow) -> list[tuple[str, int]]:
    """What the pass reads rows into."""
    return [(f"pass_rows_{i}", row_bytes(dims, norm_rope)) for i in range(flow.pass_buffers)]


def row_bytes(dims: Dims, norm_rope: NormRopePass) -> int:
    """Bytes per partition of an S-tile's normalised columns."""
    return dims.format.output_bytes * scaled_columns(norm_rope)[1]


def reread_bytes(dims: Dims, norm_rope: NormRopePass | None, flow: Flow) -> int:
    """HBM bytes of rows that the pass reads again; it writes as many a second time."""
    if norm_rope is None or not norm_rope.sum_columns:
        return 0
    first_kept = max(dims.s_tiles - flow.kept_tiles, 0)
    tokens = min(first_kept * S_TILE, dims.tokens_per_core) * dims.cores
    return tokens * row_bytes(dims, norm_rope)
