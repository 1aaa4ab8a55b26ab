"""Loads of channels, weights and activations into the layouts that the products read."""

import nki.isa as nisa
import nki.language as nl
from kernels.qkv_cte.buffers import Buffers
from kernels.qkv_cte.config import (
    BANK_COLUMNS,
    H_PACK,
    H_TILE_WORDS,
    QUADRANT,
    ROW_BUFFERS,
    ROW_READS,
    S_TILE,
    IGroup,
    ProjectionConfig,
    SBlock,
)
from kernels.qkv_cte.tiling import count_tiles, even, h_tile_rows, tile_tokens
from kernels.qkv_cte.transfer import copy
from nki.language import NkiTensor

NEUTRAL_SCALE = 127
"""The e8m0 code of 2**0: the instruction's block scales are not used, all scaling is fp32 and comes after it."""

TRANSPOSES_PER_BANK = BANK_COLUMNS // S_TILE
"""Transposed H-tiles that fit side by side in a PSUM bank, so that one copy evicts four of them."""


def load_channels(
    config: ProjectionConfig,
    buffers: Buffers,
    weight_scales: NkiTensor,
    bias: NkiTensor | None,
    q_gamma: NkiTensor | None,
    k_gamma: NkiTensor | None,
) -> None:
    """Fills the block scales with 2**0 and loads what evictions multiply and add to every partition.

    channel_scale[p, i] = weight_scales[0, i];  bias[p, i] = bias[0, i];  likewise each gamma that evictions apply
    """
    nisa.memset(dst=buffers.mx_scale.view(nl.uint8), value=NEUTRAL_SCALE, engine=nisa.engine.gpsimd)
    load_row(buffers.channel_scale, weight_scales)
    if bias is not None and buffers.bias is not None:
        load_row(buffers.bias, bias)
    if buffers.early is not None and config.norm_rope is not None:
        for i in range(len(buffers.early.gammas)):
            gamma = buffers.early.gammas[i]
            source = q_gamma if config.norm_rope.segments[i].name == "q" else k_gamma
            if gamma is not None and source is not None:
                load_row(gamma, source)


def load_row(target: NkiTensor, source: NkiTensor) -> None:
    """target[p, i] = source[0, i]

    The first partition of each quadrant gets the row from HBM, the others from that one: 4 reads instead of 128. A
    product with ones would read it once, but in fp32 has the Tensor Engine busy for 1 us for each bank, with the first
    products waiting.
    """
    copy(dst=target[0:S_TILE:QUADRANT, :], src=source[0:1, :].broadcast(0, ROW_READS))
    nisa.nc_stream_shuffle(dst=target, src=target, shuffle_mask=[0] * QUADRANT)


def load_resident_weights(config: ProjectionConfig, buffers: Buffers, weight_words: NkiTensor) -> list[list[NkiTensor]]:
    """Loads the first N H-tiles over all columns, once, and returns each one's banks as moving operands.

    resident[p, h, i] = weight_words[128 h + p, i]

    Columns come bank by bank, 2 KiB of each row, so that the first products need not wait for all of them.
    """
    banks: list[list[NkiTensor]] = []
    if buffers.resident is None:
        return banks
    count = config.resident_h_tiles
    whole = count if h_tile_rows(config, count - 1)[1] == H_TILE_WORDS else count - 1
    for bank in range(count_tiles(config.width, BANK_COLUMNS)):
        start = bank * BANK_COLUMNS
        stop = min(start + BANK_COLUMNS, config.width)
        if whole > 0:
            h_tiles = weight_words[0 : whole * H_TILE_WORDS, start:stop].reshape_dim(0, (whole, H_TILE_WORDS))
            copy(dst=buffers.resident[:, 0:whole, start:stop], src=h_tiles.permute((1, 0, 2)))
        if whole < count:
            first, height = h_tile_rows(config, whole)
            short = weight_words[first : first + height, start:stop]
            copy(dst=buffers.resident[0:height, whole, start:stop], src=short)
    for h in range(count):
        banks.append(split_banks(buffers.resident[0 : h_tile_rows(config, h)[1], h, :]))
    return banks


def split_banks(weights: NkiTensor) -> list[NkiTensor]:
    """Columns of an H-tile's weights, a PSUM bank's worth at a time."""
    banks = []
    width = weights.shape[1]
    for start in range(0, width, BANK_COLUMNS):
        banks.append(weights[:, start : min(start + BANK_COLUMNS, width)])
    return banks


def load_chunk(
    config: ProjectionConfig, buffers: Buffers, weight_words: NkiTensor, group: IGroup, h: int, chunks_loaded: int
) -> list[NkiTensor]:
    """Streams a group's columns of one H-tile into the next rotating buffer and returns their banks."""
    first, height = h_tile_rows(config, h)
    column = group.first_bank * BANK_COLUMNS
    width = min(group.num_banks * BANK_COLUMNS, config.width - column)
    chunk = buffers.chunks[chunks_loaded % config.chunk_buffers][0:height, 0:width]
    copy(dst=chunk, src=weight_words[first : first + height, column : column + width])
    return split_banks(chunk)


def load_activations(
    config: ProjectionConfig, buffers: Buffers, hidden_words: NkiTensor, block: SBlock
) -> list[list[NkiTensor]]:
    """Loads a block's rows, keeps their scales, transposes their words and returns them as stationary operands.

    activations[t][p, h, s] = word 128 h + p of token s;  row_scales[t][s] = last word of token s
    """
    stationary = []
    core_first = nl.program_id(0) * config.tokens_per_core
    scale_word = config.hidden // H_PACK
    for t in range(block.num_tiles):
        first, tokens = tile_tokens(config, block.first_tile + t)
        rows = buffers.rows[(block.first_tile + t) % ROW_BUFFERS]
        copy(dst=rows[0:tokens, :], src=hidden_words[core_first + first : core_first + first + tokens, :])
        nisa.tensor_copy(
            dst=buffers.row_scales[t][0:tokens, :],
            src=rows[0:tokens, scale_word : scale_word + 1],
            engine=nisa.engine.gpsimd,
        )
        transpose_words(config, buffers, rows, buffers.activations[t], tokens)
        if tokens % 2 == 1:
            # The product computes this column too; its result is not stored, but it must hold something.
            pad = buffers.activations[t][:, :, tokens : tokens + 1]
            nisa.memset(dst=pad, value=0.0, engine=nisa.engine.gpsimd)
        stationary.append(split_h_tiles(config, buffers.activations[t], even(tokens)))
    return stationary


def split_h_tiles(config: ProjectionConfig, activations: NkiTensor, columns: int) -> list[NkiTensor]:
    """An S-tile's activations, one stationary operand for each H-tile."""
    h_tiles = []
    for h in range(activations.shape[1]):
        height = h_tile_rows(config, h)[1]
        h_tiles.append(activations[0:height, h, 0:columns].view(nl.float8_e4m3fn_x4))
    return h_tiles


def transpose_words(
    config: ProjectionConfig, buffers: Buffers, rows: NkiTensor, activations: NkiTensor, tokens: int
) -> None:
    """activations[p, h, s] = rows[s, 128 h + p], four H-tiles to a PSUM bank.

    The copy stays on the Vector Engine, which copies equal types bit by bit: the words are codes, and some of them
    are NaN patterns of fp32.
    """
    h_tiles = count_tiles(config.hidden // H_PACK, H_TILE_WORDS)
    for start in range(0, h_tiles, TRANSPOSES_PER_BANK):
        bank = buffers.banks[start // TRANSPOSES_PER_BANK % config.psum_banks]
        stop = min(start + TRANSPOSES_PER_BANK, h_tiles)
        for h in range(start, stop):
            first, height = h_tile_rows(config, h)
            column = (h - start) * S_TILE
            nisa.nc_transpose(
                dst=bank[0:height, column : column + tokens],
                data=rows[0:tokens, first : first + height],
                engine=nisa.engine.tensor,
            )
        last_height = h_tile_rows(config, stop - 1)[1]
        whole = stop if last_height == H_TILE_WORDS else stop - 1
        slots = bank.reshape((S_TILE, TRANSPOSES_PER_BANK, S_TILE))
        if whole > start:
            nisa.tensor_copy(
                dst=activations[:, start:whole, 0:tokens],
                src=slots[:, 0 : whole - start, 0:tokens],
                engine=nisa.engine.vector,
            )
        if whole < stop:
            nisa.tensor_copy(
                dst=activations[0:last_height, whole, 0:tokens],
                src=slots[0:last_height, whole - start, 0:tokens],
                engine=nisa.engine.vector,
            )
