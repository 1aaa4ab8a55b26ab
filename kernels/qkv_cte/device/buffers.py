"""The on-chip tensors of one core."""

from dataclasses import dataclass

import nki.language as nl
from kernels.qkv_cte.device.config import (
    H_PACK,
    H_TILE_WORDS,
    PLAIN,
    ROW_MX,
    S_TILE,
    SCALE_SLOTS,
    NormRopePass,
    ProjectionConfig,
)
from kernels.qkv_cte.device.early_buffers import EarlyBuffers, allocate_early
from kernels.qkv_cte.device.operands import Operands
from kernels.qkv_cte.device.placing import place
from kernels.qkv_cte.device.tiling import count_h_tiles, count_tiles
from nki.language import NKIObject, NkiTensor


@dataclass
class Buffers(NKIObject):
    """On-chip tensors of one core. Lists run over S-tiles of a block, rotating buffers or PSUM banks."""

    resident: NkiTensor | None
    chunks: list[NkiTensor]
    channel_scale: NkiTensor | None
    bias: NkiTensor | None
    mx_scale: NkiTensor | None
    rows: list[NkiTensor]
    activations: list[NkiTensor]
    activation_scales: list[NkiTensor]
    interleaved: list[NkiTensor]
    row_scales: list[NkiTensor]
    dequantised: list[NkiTensor]
    outputs: list[NkiTensor]
    banks: list[NkiTensor]
    sum_squares: NkiTensor | None
    squares: NkiTensor | None
    early: EarlyBuffers | None


def allocate(config: ProjectionConfig, operands: Operands, output: NkiTensor) -> Buffers:
    """Creates every lasting buffer of the projection at its address of the plan. Layouts, partition dimension first:

    resident [128, N, I] and chunks [128, group columns] of weights, in MX formats words of four; channel_scale, bias
    [128, I]; rows [128 tokens, H], with ROW_MX of words and the scale behind; activations [128, H-tile, token];
    row_scales [128 tokens, 1]; outputs [128 tokens, I]; sum_squares [128 tokens, segment x S-tile]; squares
    [128 tokens, widest normalised segment], which nobody reads. With MXFP8 mx_scale [128, 4 H-tiles, I] and
    activation_scales [128, 4 H-tiles, token]: see `block_scales`; interleaved [128, H-tile, token, lane].
    """
    weight_type = operands.weight.dtype if config.format.name == PLAIN else nl.float8_e4m3fn_x4
    resident, chunks = allocate_weights(config, weight_type)
    bias_tile = None
    if operands.bias != None:
        bias_tile = place(config, "bias", (S_TILE, config.width), operands.bias.dtype)
    dequantised, outputs = [], []
    for i in range(config.dequantised_buffers):
        shape = (S_TILE, min(config.bank_columns, config.width))
        dequantised.append(place(config, f"dequantised_{i}", shape, nl.float32))
    for i in range(config.output_buffers):
        outputs.append(place(config, f"output_{i}", (S_TILE, config.width), output.dtype))
    channel_scale, mx_scale = allocate_scales(config)
    activations, row_scales, activation_scales = allocate_activations(config, operands)
    rows, interleaved = allocate_rows(config, operands)
    sum_squares, squares, early = None, None, None
    if config.norm_rope != None:
        if config.norm_rope.sum_columns > 0:
            sum_squares = place(config, "sum_squares", (S_TILE, config.norm_rope.sum_columns), nl.float32)
        if config.flow.early:
            early = allocate_early(config, config.norm_rope, operands.q_gamma, operands.k_gamma, operands.cos, output)
        elif sum_squares != None:
            squares = place(config, "squares", (S_TILE, widest_normalised(config.norm_rope)), nl.bfloat16)
    return Buffers(
        resident=resident,
        chunks=chunks,
        channel_scale=channel_scale,
        bias=bias_tile,
        mx_scale=mx_scale,
        rows=rows,
        activations=activations,
        activation_scales=activation_scales,
        interleaved=interleaved,
        row_scales=row_scales,
        dequantised=dequantised,
        outputs=outputs,
        banks=allocate_banks(config),
        sum_squares=sum_squares,
        squares=squares,
        early=early,
    )


def allocate_scales(config: ProjectionConfig) -> tuple[NkiTensor | None, NkiTensor | None]:
    """Column scales, and block scales of the weights, as far as the format has them."""
    if config.format.name == PLAIN:
        return None, None
    if config.format.name == ROW_MX:
        channel_scale = place(config, "channel_scale", (S_TILE, config.width), nl.float32)
        neutral = place(config, "mx_scale", (H_TILE_WORDS, config.bank_columns), nl.float8_e8m0fnu)
        return channel_scale, neutral
    tiles = count_tiles(count_h_tiles(config), SCALE_SLOTS)
    return None, place(config, "mx_scale", (H_TILE_WORDS, tiles, config.width), nl.float8_e8m0fnu)


def allocate_activations(
    config: ProjectionConfig, operands: Operands
) -> tuple[list[NkiTensor], list[NkiTensor], list[NkiTensor]]:
    """Activations of a block's S-tiles, and their row scales or block scales, as far as the format has them."""
    activations, row_scales, block_scales = [], [], []
    h_tiles = count_h_tiles(config)
    shape = (H_TILE_WORDS, h_tiles, S_TILE)
    for i in range(config.blocks[0].num_tiles):
        activations.append(place(config, f"activations_{i}", shape, stationary_type(config, operands)))
        if config.format.name == ROW_MX:
            row_scales.append(place(config, f"row_scale_{i}", (S_TILE, 1), nl.float32))
        elif config.format.name != PLAIN:
            tiles = (H_TILE_WORDS, count_tiles(h_tiles, SCALE_SLOTS), S_TILE)
            block_scales.append(place(config, f"activation_scales_{i}", tiles, nl.float8_e8m0fnu))
    return activations, row_scales, block_scales


def allocate_weights(config: ProjectionConfig, weight_type: str) -> tuple[NkiTensor | None, list[NkiTensor]]:
    """Resident H-tiles and chunk buffers, as far as the schedule has them."""
    resident = None
    if config.resident_h_tiles > 0:
        shape = (H_TILE_WORDS, config.resident_h_tiles, config.width)
        resident = place(config, "resident_weights", shape, weight_type)
    chunks = []
    for i in range(config.chunk_buffers):
        chunk_shape = (H_TILE_WORDS, min(config.chunk_banks * config.bank_columns, config.width))
        chunks.append(place(config, f"weight_chunk_{i}", chunk_shape, weight_type))
    return resident, chunks


def allocate_rows(config: ProjectionConfig, operands: Operands) -> tuple[list[NkiTensor], list[NkiTensor]]:
    """Rotating buffers: token-major rows, and with MXFP8 what is quantised."""
    rows, interleaved = [], []
    for i in range(config.row_buffers):
        if config.format.name == ROW_MX:
            rows.append(place(config, f"rows_{i}", (S_TILE, config.hidden // H_PACK + 1), nl.float32))
        else:
            rows.append(place(config, f"rows_{i}", (S_TILE, config.hidden), loaded_type(config, operands)))
        if config.format.name not in (ROW_MX, PLAIN):
            shape = (H_TILE_WORDS, count_h_tiles(config), S_TILE, H_PACK)
            interleaved.append(place(config, f"interleaved_{i}", shape, quantised_type(operands)))
    return rows, interleaved


def allocate_banks(config: ProjectionConfig) -> list[NkiTensor]:
    """PSUM banks, fp32."""
    banks = []
    for i in range(config.psum_banks):
        address = (0, i * nl.tile_size.psum_bank_fmax_bytes)
        shape = (S_TILE, nl.tile_size.psum_bank_fmax_bytes // 4)
        banks.append(nl.ndarray(shape, nl.float32, nl.psum, name=f"bank_{i}", address=address))
    return banks


def stationary_type(config: ProjectionConfig, operands: Operands) -> str:
    """Type of `activations`, which are multiplied; ROW_MX brings them in words that fp32 instructions move."""
    if config.format.name == PLAIN:
        return operands.weight.dtype
    return nl.float32 if config.format.name == ROW_MX else nl.float8_e4m3fn_x4


def transposed_type(config: ProjectionConfig, operands: Operands) -> str:
    """Type in which rows are transposed: of the weights, or what the quantisation takes."""
    return operands.weight.dtype if config.format.name == PLAIN else quantised_type(operands)


def quantised_type(operands: Operands) -> str:
    """fp16 activations are quantised as they are, all others as bf16."""
    return nl.float16 if operands.hidden.dtype == nl.float16 else nl.bfloat16


def loaded_type(config: ProjectionConfig, operands: Operands) -> str:
    """Type of `rows`: a norm takes the activations as they are, or sums in fp32; DMA casts for the transpose."""
    stage = config.stages.input
    if stage == None or stage.norm == "":
        return transposed_type(config, operands)
    return nl.float32 if stage.residuals > 0 else operands.hidden.dtype


def widest_normalised(norm_rope: NormRopePass) -> int:
    """Columns of the widest segment with a gamma; 0 if there is none."""
    widest = 0
    for segment in norm_rope.segments:
        if segment.gamma_bytes > 0:
            widest = max(widest, segment.width)
    return widest
