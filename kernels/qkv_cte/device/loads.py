"""Loads of rows of channels and of weights into the layouts that the products read."""

import nki.isa as nisa
import nki.language as nl
from kernels.qkv_cte.device.block_scales import load_weight_scales
from kernels.qkv_cte.device.buffers import Buffers
from kernels.qkv_cte.device.config import H_TILE_WORDS, PLAIN, QUADRANT, ROW_READS, S_TILE, IGroup, ProjectionConfig
from kernels.qkv_cte.device.operands import Operands
from kernels.qkv_cte.device.tiling import core_columns, h_tile_rows
from kernels.qkv_cte.device.transfer import copy
from nki.language import NkiTensor

NEUTRAL_SCALE = 127
"""The e8m0 code of 2**0: the instruction's block scales are not used, all scaling is fp32 and comes after it."""

ROW_BYTES = 2048
"""Of a row that one descriptor moves: below, DMA spends more on descriptors than on bytes."""


def load_channels(config: ProjectionConfig, buffers: Buffers, operands: Operands) -> None:
    """Fills the block scales and loads what evictions multiply and add to every partition.

    channel_scale[p, i] = weight_scales[0, i];  bias[p, i] = bias[0, i];  likewise each gamma that evictions apply
    """
    first, width = core_columns(config)
    if buffers.channel_scale != None and operands.weight_scales != None and buffers.mx_scale != None:
        nisa.memset(dst=buffers.mx_scale.view(nl.uint8), value=NEUTRAL_SCALE, engine=nisa.engine.gpsimd)
        load_row(buffers.channel_scale[:, 0:width], operands.weight_scales[:, first : first + width])
    elif operands.weight_scales != None:
        load_weight_scales(config, buffers, operands.weight_scales)
    if operands.bias != None and buffers.bias != None:
        load_row(buffers.bias[:, 0:width], operands.bias[:, first : first + width])
    if buffers.early != None and config.norm_rope != None:
        for i in range(len(buffers.early.gammas)):
            gamma = buffers.early.gammas[i]
            source = operands.q_gamma if config.norm_rope.segments[i].name == "q" else operands.k_gamma
            if gamma != None and source != None:
                load_row(gamma, source)


def load_rows(vectors: list[tuple[NkiTensor, NkiTensor]]) -> None:
    """Loads each source to every partition of its target; see `load_row`."""
    for source, target in vectors:
        load_row(target, source)


def load_row(target: NkiTensor, source: NkiTensor) -> None:
    """target[p, i] = source[0, i]

    The first partition of each quadrant gets the row from HBM, the others from that one: 4 reads instead of 128. A
    product with ones would read it once, but in fp32 has the Tensor Engine busy for 1 us for each bank, with the first
    products waiting.
    """
    copy(dst=target[0:S_TILE:QUADRANT, :], src=source[0:1, :].broadcast(0, ROW_READS))
    nisa.nc_stream_shuffle(dst=target, src=target, shuffle_mask=[0] * QUADRANT)


def weight_matrix(config: ProjectionConfig, weight: NkiTensor) -> NkiTensor:
    """The weights as a matrix [contraction words, I]: [H, I], or words of four rows [H / 4, I] in the MX formats."""
    if config.format.name == PLAIN:
        return weight
    words, columns, lanes = weight.shape
    return weight.reshape((words, columns * lanes)).view(nl.float8_e4m3fn_x4)


def load_resident_weights(config: ProjectionConfig, buffers: Buffers, weights: NkiTensor) -> list[list[NkiTensor]]:
    """Loads the first N H-tiles over all columns, once, and returns each one's banks as moving operands.

    resident[p, h, i] = weights[128 h + p, i]

    Columns come a bank at a time, or as many banks as 2 KiB of a row hold, so that the first products need not wait
    for all of them.
    """
    banks: list[list[NkiTensor]] = []
    if buffers.resident == None:
        return banks
    column, width = core_columns(config)
    count = config.resident_h_tiles
    whole = count if h_tile_rows(config, count - 1)[1] == H_TILE_WORDS else count - 1
    bank_bytes = config.bank_columns * config.format.lanes * config.format.weight_bytes
    columns = config.bank_columns * max(ROW_BYTES // bank_bytes, 1)
    for start in range(0, width, columns):
        stop = min(start + columns, width)
        if whole > 0:
            h_tiles = weights[0 : whole * H_TILE_WORDS, column + start : column + stop]
            h_tiles = h_tiles.reshape_dim(0, (whole, H_TILE_WORDS)).permute((1, 0, 2))
            copy(dst=buffers.resident[:, 0:whole, start:stop], src=h_tiles)
        if whole < count:
            first, height = h_tile_rows(config, whole)
            short = weights[first : first + height, column + start : column + stop]
            copy(dst=buffers.resident[0:height, whole, start:stop], src=short)
    for h in range(count):
        banks.append(split_banks(config, buffers.resident[0 : h_tile_rows(config, h)[1], h, 0:width]))
    return banks


def split_banks(config: ProjectionConfig, weights: NkiTensor) -> list[NkiTensor]:
    """Columns of an H-tile's weights, a PSUM bank's worth at a time."""
    banks = []
    width = weights.shape[1]
    for start in range(0, width, config.bank_columns):
        banks.append(weights[:, start : min(start + config.bank_columns, width)])
    return banks


def load_chunk(
    config: ProjectionConfig, buffers: Buffers, weights: NkiTensor, group: IGroup, h: int, chunks_loaded: int
) -> list[NkiTensor]:
    """Streams a group's columns of one H-tile into the next rotating buffer and returns their banks."""
    first, height = h_tile_rows(config, h)
    core_first, core_width = core_columns(config)
    column = group.first_bank * config.bank_columns
    width = min(group.num_banks * config.bank_columns, core_width - column)
    column += core_first
    chunk = buffers.chunks[chunks_loaded % config.chunk_buffers][0:height, 0:width]
    copy(dst=chunk, src=weights[first : first + height, column : column + width])
    return split_banks(config, chunk)
