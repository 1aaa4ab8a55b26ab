"""What the stages beside the products take in a plan: SBUF buffers and HBM bytes."""

from __future__ import annotations

from collections.abc import Iterator

from common.tiling import ceil_div
from kernels.qkv_cte.device.config import (
    BN_STATS_COLUMNS,
    CACHE_BUFFERS,
    HEAD_BUFFERS,
    LAYER,
    MXFP8,
    ROW_MX,
    S_TILE,
    SCALE_SLOTS,
    STATISTICS,
    HeadNorm,
    HeadSegment,
    HeadStage,
    Stages,
)
from kernels.qkv_cte.planning.dims import Dims

FP32_BYTES, BF16_BYTES, INDEX_BYTES = 4, 2, 4
ROW_TAIL_BYTES = 4

Buffers = list[tuple[str, int]]
"""Names and bytes per partition."""


def row_buffers(dims: Dims, stages: Stages, count: int) -> Buffers:
    """Rotating buffers of token-major rows, of their norm, and of what MXFP8 quantises."""
    if dims.format.name == ROW_MX:
        return numbered([("rows", dims.hidden + ROW_TAIL_BYTES)], count)
    element = dims.format.transposed_bytes
    stage = stages.input
    buffers: Buffers = []
    if stage is not None and stage.norm:
        element = FP32_BYTES if stage.residuals else dims.format.input_bytes
        statistics = 1 if stage.norm != LAYER else STATISTICS * ceil_div(dims.hidden, BN_STATS_COLUMNS) + 2
        buffers = [
            ("normed", dims.format.transposed_bytes * dims.hidden),
            ("statistics", FP32_BYTES * statistics),
            ("input_inv_rms", FP32_BYTES),
        ]
    buffers.append(("rows", element * dims.hidden))
    if dims.format.name == MXFP8:
        words = dims.h_tiles * S_TILE
        buffers.append(("interleaved", dims.format.lanes * dims.format.transposed_bytes * words))
    return numbered(buffers, count)


def fixed_buffers(dims: Dims, stages: Stages) -> Buffers:
    """What the stages hold for the whole projection."""
    return [*_input_vectors(dims, stages), *_head_buffers(dims, stages), *_cache_buffers(dims, stages)] + (
        [("sum_scratch", BF16_BYTES * min(dims.bank_columns, dims.columns_per_core))] if stages.sums else []
    )


def s_tile_buffers(dims: Dims, stages: Stages) -> Buffers:
    """What the stages hold for each S-tile of a block."""
    buffers: Buffers = []
    if dims.format.name == MXFP8:
        buffers.append(("activation_scales", S_TILE * ceil_div(dims.h_tiles, SCALE_SLOTS)))
    heads = stages.heads
    if heads is not None and heads.rope_bytes:
        buffers += [(name, heads.rope_bytes * heads.head_dim) for name in rope_names(heads)]
    if stages.sums:
        partial = sum(segment.banks for segment in stages.sums)
        buffers += [("partial_sums", FP32_BYTES * partial), ("segment_sums", FP32_BYTES * len(stages.sums))]
    return buffers


def head_buffers(dims: Dims, stages: Stages) -> int:
    """Rotating buffers of the head stage: no more than it finishes pieces of banks."""
    segments = () if stages.heads is None else stages.heads.segments
    most = 0
    for core_first in range(0, dims.width, dims.columns_per_core):
        core_last = min(core_first + dims.columns_per_core, dims.width)
        pieces = 0
        for segment in segments:
            first = max(segment.first_column, core_first) - core_first
            last = min(segment.first_column + segment.width, core_last) - core_first
            pieces += (last - 1) // dims.bank_columns - first // dims.bank_columns + 1 if first < last else 0
        most = max(most, pieces)
    return min(HEAD_BUFFERS, most * dims.s_tiles)


def rope_names(heads: HeadStage) -> tuple[str, ...]:
    """Buffers of the RoPE caches of an S-tile."""
    return ("rope_cos", "rope_sin", "rope_k_cos", "rope_k_sin") if heads.own_k_caches else ("rope_cos", "rope_sin")


def head_vectors(heads: HeadStage | None) -> Iterator[tuple[str, int]]:
    """Names and element bytes of the gammas and betas of the head stage."""
    for segment in () if heads is None else heads.segments:
        for place, norm in norms(segment):
            if norm.gamma_bytes:
                yield f"{segment.name}_{place}_gamma", norm.gamma_bytes
            if norm.beta_bytes:
                yield f"{segment.name}_{place}_beta", norm.beta_bytes


def norms(segment: HeadSegment) -> list[tuple[str, HeadNorm]]:
    """The norms of a segment by where they are."""
    return [(place, norm) for place, norm in (("before", segment.before), ("after", segment.after)) if norm is not None]


def activation_bytes(dims: Dims, stages: Stages) -> int:
    """HBM bytes of the activations and what is added to them."""
    if dims.format.name == ROW_MX:
        return dims.token_copies * dims.tokens * (dims.hidden + ROW_TAIL_BYTES)
    residuals = 0 if stages.input is None else stages.input.residuals
    return dims.token_copies * dims.tokens * dims.hidden * dims.format.input_bytes * (1 + residuals)


def scale_bytes(dims: Dims) -> int:
    """HBM bytes of the weights' block scales."""
    return dims.hidden // 32 * dims.width * dims.weight_copies if dims.format.name == MXFP8 else 0


def vector_bytes(dims: Dims, stages: Stages) -> int:
    """HBM bytes of gammas, betas and cache scales, which each core reads once."""
    total = 0
    if stages.input is not None:
        total += (stages.input.gamma_bytes + stages.input.beta_bytes) * dims.hidden
    if stages.heads is not None:
        total += stages.heads.head_dim * sum(size for _, size in head_vectors(stages.heads))
    if stages.cache is not None and stages.cache.scaled:
        total += 2 * FP32_BYTES
    return total * dims.cores


def rope_bytes(dims: Dims, stages: Stages) -> int:
    """HBM bytes of the RoPE caches that the head stage reads: the rows of each core's tokens."""
    heads = stages.heads
    if heads is None or not heads.rope_bytes:
        return 0
    return len(rope_names(heads)) * dims.token_copies * dims.tokens * heads.head_dim * heads.rope_bytes


def sum_bytes(dims: Dims, stages: Stages) -> int:
    """HBM bytes of the sums of squares."""
    return dims.tokens * FP32_BYTES * len(stages.sums)


def slot_bytes(dims: Dims, stages: Stages) -> int:
    """HBM bytes of the slot mapping."""
    cache = stages.cache
    return dims.token_copies * dims.tokens * INDEX_BYTES if cache is not None and cache.slots else 0


def cache_bytes(dims: Dims, stages: Stages) -> int:
    """HBM bytes written to the caches where no token is left out."""
    cache = stages.cache
    return 0 if cache is None else 2 * dims.tokens * cache.width * cache.row_bytes


def numbered(buffers: Buffers, count: int) -> Buffers:
    """Each buffer `count` times, with a number behind its name."""
    return [(f"{name}_{number}", size) for name, size in buffers for number in range(count)]


def _input_vectors(dims: Dims, stages: Stages) -> Buffers:
    stage = stages.input
    if stage is None or not stage.norm:
        return []
    buffers = [("input_gamma", stage.gamma_bytes * dims.hidden), ("input_beta", stage.beta_bytes * dims.hidden)]
    if stage.norm == LAYER:
        buffers.append(("centred", FP32_BYTES * dims.hidden))
    return [(name, size) for name, size in buffers if size]


def _head_buffers(dims: Dims, stages: Stages) -> Buffers:
    heads = stages.heads
    if heads is None:
        return []
    columns = min(dims.bank_columns, dims.columns_per_core)
    kinds = {norm.kind for segment in heads.segments for _, norm in norms(segment)}
    statistics = (bool(kinds) + (LAYER in kinds)) * (columns // heads.head_dim)
    rotating = [("staged", FP32_BYTES * (columns + statistics)), ("head_scratch", FP32_BYTES * columns)]
    vectors = [(name, size * heads.head_dim) for name, size in head_vectors(heads)]
    return vectors + numbered(rotating, head_buffers(dims, stages))


def _cache_buffers(dims: Dims, stages: Stages) -> Buffers:
    cache = stages.cache
    if cache is None:
        return []
    width = min(cache.width, dims.columns_per_core)
    buffers: Buffers = []
    if cache.scaled:
        buffers += [("k_scale", FP32_BYTES), ("v_scale", FP32_BYTES)]
        buffers += numbered([("quotient", FP32_BYTES * width), ("codes", cache.row_bytes * width)], CACHE_BUFFERS)
    if cache.slots:
        buffers += numbered([("slots", INDEX_BYTES)], min(CACHE_BUFFERS, dims.s_tiles))
    return buffers
