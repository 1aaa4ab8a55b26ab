"""From PSUM to finished rows in HBM."""

import nki.isa as nisa
import nki.language as nl
from kernels.qkv_cte.buffers import Buffers
from kernels.qkv_cte.config import IGroup, Piece, ProjectionConfig, SBlock
from kernels.qkv_cte.early import finish
from kernels.qkv_cte.engines import by_scalar, helper
from kernels.qkv_cte.tiling import first_kept_tile, scaled_columns, tile_tokens
from kernels.qkv_cte.transfer import copy
from nki.language import NkiTensor


def evict(config: ProjectionConfig, buffers: Buffers, block: SBlock, group: IGroup, buffered: int) -> int:
    """Dequantises a finished I-group, adds the bias and, with the early flow, applies norm and RoPE but for `inv_rms`.

    x[s, i] = banks[..][s, i] * row_scales[t][s] * channel_scale[i] + bias[i]
    row[s, i] = bf16(x[s, i]), or what `early.finish` makes of it

    Args:
        buffered: how many pieces went through the rotating fp32 buffers so far.

    Returns:
        The same with these.
    """
    for t in range(block.num_tiles):
        tile = block.first_tile + t
        for b in range(group.num_banks):
            bank = buffers.banks[t * group.num_banks + b]
            scalar, column = by_scalar(config, t, b), 0
            for piece in config.pieces[group.first_bank + b]:
                row = row_columns(config, buffers, t, tile, piece)
                early = config.flow.early and piece.segment >= 0
                x = row
                if early or scalar or buffers.bias is not None:
                    x = buffers.dequantised[buffered % len(buffers.dequantised)][0 : row.shape[0], 0 : piece.width]
                    buffered += 1
                psum = bank[0 : row.shape[0], column : column + piece.width]
                column += piece.width
                last = x if early else row
                dequantise(config, buffers, piece, t, psum, x, last, scalar)
                if early and buffers.early is not None and config.norm_rope is not None:
                    finish(config, config.norm_rope, buffers.early, piece, t, tile, x, row)
    return buffered


def dequantise(
    config: ProjectionConfig,
    buffers: Buffers,
    piece: Piece,
    t: int,
    psum: NkiTensor,
    x: NkiTensor,
    last: NkiTensor,
    scalar: bool,
) -> None:
    """last[s, i] = psum[s, i] * row_scales[t][s] * channel_scale[i] + bias[i], a step of fp32 rounding each.

    `x` takes what is between the steps. The Vector Engine scales rows and columns at once; the Scalar Engine only rows.
    """
    tokens, columns = psum.shape[0], slice(piece.first_column, piece.first_column + piece.width)
    row_scale, channel_scale = buffers.row_scales[t][0:tokens, :], buffers.channel_scale[0:tokens, columns]
    scaled = last if buffers.bias is None else x
    if scalar:
        nisa.activation(dst=x, op=nl.copy, data=psum, scale=row_scale)
        nisa.tensor_tensor(dst=scaled, data1=x, data2=channel_scale, op=nl.multiply, engine=helper(config))
    else:
        nisa.scalar_tensor_tensor(
            dst=scaled, data=psum, op0=nl.multiply, operand0=row_scale, op1=nl.multiply, operand1=channel_scale
        )
    if buffers.bias is not None:
        bias = buffers.bias[0:tokens, columns]
        nisa.tensor_tensor(dst=last, data1=scaled, data2=bias, op=nl.add, engine=helper(config))


def row_columns(config: ProjectionConfig, buffers: Buffers, t: int, tile: int, piece: Piece) -> NkiTensor:
    """Where a piece of an S-tile is finished: in its block's output row, or in the row that is kept for the pass."""
    tokens = tile_tokens(config, tile)[1]
    kept = tile - first_kept_tile(config)
    if kept >= 0 and piece.sum_column >= 0 and buffers.early is not None and config.norm_rope is not None:
        first = piece.first_column - scaled_columns(config.norm_rope)[0]
        return buffers.early.kept[kept][0:tokens, first : first + piece.width]
    return buffers.outputs[t][0:tokens, piece.first_column : piece.first_column + piece.width]


def store(config: ProjectionConfig, buffers: Buffers, output: NkiTensor, block: SBlock) -> None:
    """Writes a block's finished rows, one DMA for each S-tile; of rows that are kept for the pass, what is beside."""
    core_first = nl.program_id(0) * config.tokens_per_core
    for t in range(block.num_tiles):
        tile = block.first_tile + t
        first, tokens = tile_tokens(config, tile)
        parts = [(0, config.width)]
        if tile >= first_kept_tile(config) and config.norm_rope is not None:
            start, width = scaled_columns(config.norm_rope)
            parts = [(0, start), (start + width, config.width)]
        for start, stop in parts:
            if stop > start:
                target = output_columns(config, output, core_first + first, tokens, start, stop - start)
                copy(dst=target, src=buffers.outputs[t][0:tokens, start:stop])


def output_columns(
    config: ProjectionConfig, output: NkiTensor, first_token: int, tokens: int, first_column: int, width: int
) -> NkiTensor:
    """Columns of some of the B*S tokens in HBM, as they follow each other in a row of SBUF.

    BSD gives [tokens, width], contiguous along a row; NBSd [tokens, heads, head_dim], contiguous along a head, so
    that all heads of a segment move in one strided DMA.
    """
    last_token = first_token + tokens
    head_dim = config.nbsd_head_dim
    if head_dim == 0:
        rows = output.reshape((output.shape[0] * output.shape[1], config.width))
        return rows[first_token:last_token, first_column : first_column + width]
    heads = output.reshape((config.width // head_dim, output.shape[1] * output.shape[2], head_dim))
    first_head = first_column // head_dim
    segment = heads[first_head : first_head + width // head_dim, first_token:last_token, :]
    return segment.permute((1, 0, 2))
