"""The on-chip tensors of one core."""

from dataclasses import dataclass

import nki.language as nl
from kernels.qkv_cte.config import (
    BANK_COLUMNS,
    H_PACK,
    H_TILE_WORDS,
    ROW_BUFFERS,
    S_TILE,
    NormRopePass,
    ProjectionConfig,
)
from kernels.qkv_cte.early_buffers import EarlyBuffers, allocate_early
from kernels.qkv_cte.placing import place
from kernels.qkv_cte.tiling import count_tiles
from nki.language import NKIObject, NkiTensor


@dataclass
class Buffers(NKIObject):
    """On-chip tensors of one core. Lists run over S-tiles of a block, rotating buffers or PSUM banks."""

    resident: NkiTensor | None
    chunks: list[NkiTensor]
    channel_scale: NkiTensor
    bias: NkiTensor | None
    mx_scale: NkiTensor
    rows: list[NkiTensor]
    activations: list[NkiTensor]
    row_scales: list[NkiTensor]
    dequantised: list[NkiTensor]
    outputs: list[NkiTensor]
    banks: list[NkiTensor]
    sum_squares: NkiTensor | None
    squares: NkiTensor | None
    early: EarlyBuffers | None


def allocate(
    config: ProjectionConfig,
    bias: NkiTensor | None,
    q_gamma: NkiTensor | None,
    k_gamma: NkiTensor | None,
    cos_cache: NkiTensor | None,
) -> Buffers:
    """Creates every lasting buffer at its address of the plan. Layouts, partition dimension first:

    resident [128, N, I] and chunks [128, group columns] of words; channel_scale, bias [128, I]; rows [128 tokens,
    H/4 + 1 words]; activations [128, H-tile, token] words; row_scales [128 tokens, 1]; outputs [128 tokens, I];
    sum_squares [128 tokens, segment x S-tile]; squares [128 tokens, widest normalised segment], which nobody reads.
    """
    h_tiles = count_tiles(config.hidden // H_PACK, H_TILE_WORDS)
    width = config.width
    s_tiles = count_tiles(config.tokens_per_core, S_TILE)
    dequantised_shape = (S_TILE, min(BANK_COLUMNS, width))
    resident, chunks = allocate_weights(config)
    channel_scale = place(config, "channel_scale", (S_TILE, width), nl.float32)
    bias_tile = None
    if bias is not None:
        bias_tile = place(config, "bias", (S_TILE, width), bias.dtype)
    dequantised = []
    for i in range(config.dequantised_buffers):
        dequantised.append(place(config, f"dequantised_{i}", dequantised_shape, nl.float32))
    mx_scale = place(config, "mx_scale", (H_TILE_WORDS, BANK_COLUMNS), nl.float8_e8m0fnu)
    rows = []
    for i in range(min(ROW_BUFFERS, s_tiles)):
        rows.append(place(config, f"rows_{i}", (S_TILE, config.hidden // H_PACK + 1), nl.float32))
    activations, row_scales, outputs = [], [], []
    for i in range(config.blocks[0].num_tiles):
        activations.append(place(config, f"activations_{i}", (H_TILE_WORDS, h_tiles, S_TILE), nl.float32))
        row_scales.append(place(config, f"row_scale_{i}", (S_TILE, 1), nl.float32))
    for i in range(config.output_buffers):
        outputs.append(place(config, f"output_{i}", (S_TILE, width), nl.bfloat16))
    sum_squares, squares, early = None, None, None
    if config.norm_rope is not None:
        if config.norm_rope.sum_columns > 0:
            sum_squares = place(config, "sum_squares", (S_TILE, config.norm_rope.sum_columns), nl.float32)
        if config.flow.early:
            early = allocate_early(config, config.norm_rope, q_gamma, k_gamma, cos_cache)
        elif sum_squares is not None:
            squares = place(config, "squares", (S_TILE, widest_normalised(config.norm_rope)), nl.bfloat16)
    return Buffers(
        resident=resident,
        chunks=chunks,
        channel_scale=channel_scale,
        bias=bias_tile,
        mx_scale=mx_scale,
        rows=rows,
        activations=activations,
        row_scales=row_scales,
        dequantised=dequantised,
        outputs=outputs,
        banks=allocate_banks(config),
        sum_squares=sum_squares,
        squares=squares,
        early=early,
    )


def allocate_weights(config: ProjectionConfig) -> tuple[NkiTensor | None, list[NkiTensor]]:
    """The resident weights, if any, and the rotating buffers of the streamed ones."""
    words, width = nl.float8_e4m3fn_x4, config.width
    resident = None
    if config.resident_h_tiles > 0:
        resident = place(config, "resident_weights", (H_TILE_WORDS, config.resident_h_tiles, width), words)
    chunks = []
    chunk_shape = (H_TILE_WORDS, min(config.chunk_banks * BANK_COLUMNS, width))
    for i in range(config.chunk_buffers):
        chunks.append(place(config, f"weight_chunk_{i}", chunk_shape, words))
    return resident, chunks


def allocate_banks(config: ProjectionConfig) -> list[NkiTensor]:
    """The PSUM banks in use, [128, 512] fp32 each."""
    banks = []
    for i in range(config.psum_banks):
        address = (0, i * nl.tile_size.psum_bank_fmax_bytes)
        banks.append(nl.ndarray((S_TILE, BANK_COLUMNS), nl.float32, nl.psum, name=f"bank_{i}", address=address))
    return banks


def widest_normalised(norm_rope: NormRopePass) -> int:
    """Columns of the widest segment with a gamma; 0 if there is none."""
    widest = 0
    for segment in norm_rope.segments:
        if segment.gamma_bytes > 0:
            widest = max(widest, segment.width)
    return widest
