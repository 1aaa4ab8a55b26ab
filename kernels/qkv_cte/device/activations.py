"""From rows of activations in HBM to stationary operands."""

from dataclasses import dataclass

import nki.isa as nisa
import nki.language as nl
from kernels.qkv_cte.device.block_scales import scales_of
from kernels.qkv_cte.device.buffers import Buffers
from kernels.qkv_cte.device.config import H_PACK, H_TILE_WORDS, MXFP8, ROW_MX, S_TILE, ProjectionConfig, SBlock
from kernels.qkv_cte.device.input_stage import InputBuffers, input_rows
from kernels.qkv_cte.device.operands import Operands
from kernels.qkv_cte.device.tiling import count_h_tiles, first_token, h_tile_rows, multiplied_tokens, tile_tokens
from kernels.qkv_cte.device.transfer import copy
from nki.language import NKIObject, NkiTensor


@dataclass
class Stationary(NKIObject):
    """Stationary operands of a block: for each S-tile one for each H-tile, with MXFP8 also its block scales."""

    activations: list[list[NkiTensor]]
    scales: list[list[NkiTensor]]


def load_activations(
    config: ProjectionConfig, buffers: Buffers, stage: InputBuffers, operands: Operands, block: SBlock
) -> Stationary:
    """Loads a block's rows and transposes them.

    activations[t][p, h, s] = word 128 h + p of token s;  row_scales[t][s] = last word of token s, with ROW_MX
    activations[t][p, h, s] = row 128 h + p of token s, unquantised, with PLAIN
    """
    activations, scales = [], []
    for t in range(block.num_tiles):
        first, tokens = tile_tokens(config, block.first_tile + t)
        slot = (block.first_tile + t) % config.row_buffers
        first += first_token(config)
        target, columns = buffers.activations[t], multiplied_tokens(config, tokens)
        if config.format.name == ROW_MX:
            rows = load_packed_rows(config, buffers, operands.hidden, t, slot, first, tokens)
            transpose_rows(config, buffers, rows, target.expand_dim(3), tokens)
        else:
            rows = input_rows(config, buffers, stage, operands, slot, first, tokens)
            if config.format.name == MXFP8:
                transpose_rows(config, buffers, rows, buffers.interleaved[slot], tokens)
                scales.append(quantise(config, buffers, t, slot, columns))
            else:
                transpose_rows(config, buffers, rows, target.expand_dim(3), tokens)
        activations.append(split_h_tiles(config, target, columns))
    return Stationary(activations=activations, scales=scales)


def load_packed_rows(
    config: ProjectionConfig, buffers: Buffers, hidden: NkiTensor, t: int, slot: int, first: int, tokens: int
) -> NkiTensor:
    """Loads rows of codes and their scales; returns the codes as words, which fp32 instructions move bit by bit."""
    words = config.hidden // H_PACK
    rows = buffers.rows[slot]
    hidden_words = hidden.reshape((hidden.shape[0] * hidden.shape[1], hidden.shape[2])).view(nl.float32)
    copy(dst=rows[0:tokens, :], src=hidden_words[first : first + tokens, :])
    nisa.tensor_copy(
        dst=buffers.row_scales[t][0:tokens, :], src=rows[0:tokens, words : words + 1], engine=nisa.engine.gpsimd
    )
    return rows[0:tokens, 0:words]


def split_h_tiles(config: ProjectionConfig, activations: NkiTensor, columns: int) -> list[NkiTensor]:
    """An S-tile's activations, one stationary operand for each H-tile."""
    h_tiles = []
    for h in range(activations.shape[1]):
        height = h_tile_rows(config, h)[1]
        h_tile = activations[0:height, h, 0:columns]
        h_tiles.append(h_tile.view(nl.float8_e4m3fn_x4) if config.format.name == ROW_MX else h_tile)
    return h_tiles


def transpose_rows(config: ProjectionConfig, buffers: Buffers, rows: NkiTensor, target: NkiTensor, tokens: int) -> None:
    """target[p, h, s, lane] = rows[s, lanes (128 h + p) + lane], as many H-tiles at once as a PSUM bank holds.

    With ROW_MX a lane is a word of four codes. The copy out of PSUM stays on the Vector Engine there, which copies
    equal types bit by bit: some words are NaN patterns of fp32. Other rows alternate between Vector and Scalar Engine.
    """
    lanes = target.shape[3]
    h_tiles = count_h_tiles(config)
    per_bank = nl.tile_size.psum_bank_fmax_bytes // (config.format.transposed_bytes * S_TILE * lanes)
    words = rows.reshape_dim(1, (rows.shape[1] // lanes, lanes))
    for start in range(0, h_tiles, per_bank):
        number = start // per_bank
        bank = buffers.banks[number % config.psum_banks].view(rows.dtype)
        slots = bank.reshape((S_TILE, per_bank, lanes, S_TILE))
        stop = min(start + per_bank, h_tiles)
        for h in range(start, stop):
            first, height = h_tile_rows(config, h)
            for lane in range(lanes):
                nisa.nc_transpose(
                    dst=slots[0:height, h - start, lane, 0:tokens],
                    data=words[:, first : first + height, lane],
                    engine=nisa.engine.tensor,
                )
        engine = nisa.engine.vector
        if config.format.name != ROW_MX and number % 2 == 1:
            engine = nisa.engine.scalar
        last_height = h_tile_rows(config, stop - 1)[1]
        whole = stop if last_height == H_TILE_WORDS else stop - 1
        if whole > start:
            copy_lanes(target[:, start:whole, 0:tokens, :], slots[:, 0 : whole - start, :, 0:tokens], engine)
        if whole < stop:
            part = slots[0:last_height, whole - start : stop - start, :, 0:tokens]
            copy_lanes(target[0:last_height, whole:stop, 0:tokens, :], part, engine)
    if multiplied_tokens(config, tokens) > tokens:
        # The product computes this column too; its result is not stored, but it must hold something.
        nisa.memset(dst=target[:, :, tokens : tokens + 1, :], value=0.0, engine=nisa.engine.gpsimd)


def copy_lanes(target: NkiTensor, slots: NkiTensor, engine: nisa.engine) -> None:
    """target[p, h, s, lane] = slots[p, h, lane, s]"""
    nisa.tensor_copy(dst=target.permute((0, 1, 3, 2)), src=slots, engine=engine)


def quantise(config: ProjectionConfig, buffers: Buffers, t: int, slot: int, columns: int) -> list[NkiTensor]:
    """Quantises an S-tile's interleaved activations, an H-tile at a time; returns its block scales.

    activations[t][p, h, s] = four fp8 codes of interleaved[p, h, s, :]
    """
    scales = []
    for h in range(count_h_tiles(config)):
        height = h_tile_rows(config, h)[1]
        scale = scales_of(config, buffers.activation_scales[t], h)[:, 0:columns]
        nisa.quantize_mx(
            dst=buffers.activations[t][0:height, h, 0:columns],
            src=buffers.interleaved[slot][0:height, h, 0:columns, :],
            dst_scale=scale,
        )
        scales.append(scale)
    return scales
