"""From PSUM to finished rows in HBM."""

from dataclasses import dataclass

import nki.isa as nisa
import nki.language as nl
from kernels.qkv_cte.device.buffers import Buffers
from kernels.qkv_cte.device.config import IGroup, Piece, ProjectionConfig, SBlock
from kernels.qkv_cte.device.early import finish
from kernels.qkv_cte.device.engines import by_scalar, helper
from kernels.qkv_cte.device.head_stage import HeadBuffers, finish_heads
from kernels.qkv_cte.device.sums import SumBuffers, square_piece
from kernels.qkv_cte.device.tiling import (
    core_columns,
    core_pieces,
    first_kept_tile,
    first_token,
    scaled_columns,
    tile_tokens,
)
from kernels.qkv_cte.device.transfer import copy
from nki.language import NKIObject, NkiTensor


@dataclass(frozen=True)
class Evicted(NKIObject):
    """How many pieces were evicted so far: through the rotating fp32 buffers, through those of the head stage."""

    buffered: int = 0
    staged: int = 0


def evict(
    config: ProjectionConfig,
    buffers: Buffers,
    heads: HeadBuffers,
    sums: SumBuffers,
    block: SBlock,
    group: IGroup,
    evicted: Evicted,
) -> Evicted:
    """Scales a finished I-group, adds the bias and applies what norm and RoPE there is before the pass.

    x[s, i] = banks[..][s, i] * row_scales[t][s] * channel_scale[i] + bias[i]
    row[s, i] = bf16(x[s, i]), or what `early.finish` or `head_stage.finish_heads` makes of it

    Args:
        evicted: what was evicted before.

    Returns:
        The same with these.
    """
    buffered, staged = evicted.buffered, evicted.staged
    scaled = buffers.channel_scale != None
    for t in range(block.num_tiles):
        tile = block.first_tile + t
        for b in range(group.num_banks):
            bank = buffers.banks[t * group.num_banks + b]
            scalar, column = by_scalar(config.flow, t, b), 0
            for piece in core_pieces(config)[group.first_bank + b]:
                row = row_columns(config, buffers, t, tile, piece)
                early = config.flow.early and piece.segment >= 0
                x, last = row, row
                if piece.head_segment >= 0:
                    x = heads.staged[staged % config.head_buffers][0 : row.shape[0], 0 : piece.width]
                    last = x
                elif early or (scaled and (scalar or buffers.bias != None)):
                    x = buffers.dequantised[buffered % len(buffers.dequantised)][0 : row.shape[0], 0 : piece.width]
                    last = x if early else row
                    buffered += 1
                psum = bank[0 : row.shape[0], column : column + piece.width]
                column += piece.width
                project_piece(config, buffers, piece, t, psum, x, last, scalar)
                square_piece(sums, piece, last, t)
                if early and buffers.early != None and config.norm_rope != None:
                    finish(config, config.norm_rope, buffers.early, piece, t, tile, x, row)
                if piece.head_segment >= 0:
                    finish_heads(config, heads, piece, x, row, t, staged % config.head_buffers)
                    staged += 1
    return Evicted(buffered, staged)


def project_piece(
    config: ProjectionConfig,
    buffers: Buffers,
    piece: Piece,
    t: int,
    psum: NkiTensor,
    x: NkiTensor,
    last: NkiTensor,
    scalar: bool,
) -> None:
    """What a piece was projected to: `dequantise`, or without scales last[s, i] = psum[s, i] + bias[i]."""
    tokens, columns = psum.shape[0], slice(piece.first_column, piece.first_column + piece.width)
    engine = nisa.engine.scalar if scalar else nisa.engine.vector
    if buffers.channel_scale != None:
        channel_scale = buffers.channel_scale[0:tokens, columns]
        dequantise(config, buffers, piece, channel_scale, buffers.row_scales[t][0:tokens, :], psum, x, last, scalar)
    elif buffers.bias != None:
        bias = buffers.bias[0:tokens, columns]
        nisa.tensor_tensor(dst=last, data1=psum, data2=bias, op=nl.add, engine=nisa.engine.vector)
    else:
        nisa.tensor_copy(dst=last, src=psum, engine=engine)


def dequantise(
    config: ProjectionConfig,
    buffers: Buffers,
    piece: Piece,
    channel_scale: NkiTensor,
    row_scale: NkiTensor,
    psum: NkiTensor,
    x: NkiTensor,
    last: NkiTensor,
    scalar: bool,
) -> None:
    """last[s, i] = psum[s, i] * row_scales[t][s] * channel_scale[i] + bias[i], a step of fp32 rounding each.

    `x` takes what is between the steps. The Vector Engine scales rows and columns at once; the Scalar Engine only rows.
    """
    tokens, columns = psum.shape[0], slice(piece.first_column, piece.first_column + piece.width)
    scaled = last if buffers.bias == None else x
    if scalar:
        nisa.activation(dst=x, op=nl.copy, data=psum, scale=row_scale)
        nisa.tensor_tensor(dst=scaled, data1=x, data2=channel_scale, op=nl.multiply, engine=helper(config))
    else:
        nisa.scalar_tensor_tensor(
            dst=scaled, data=psum, op0=nl.multiply, operand0=row_scale, op1=nl.multiply, operand1=channel_scale
        )
    if buffers.bias != None:
        bias = buffers.bias[0:tokens, columns]
        nisa.tensor_tensor(dst=last, data1=scaled, data2=bias, op=nl.add, engine=helper(config))


def row_columns(config: ProjectionConfig, buffers: Buffers, t: int, tile: int, piece: Piece) -> NkiTensor:
    """Where a piece of an S-tile is finished: in its block's output row, or in the row that is kept for the pass."""
    tokens = tile_tokens(config, tile)[1]
    kept = tile - first_kept_tile(config)
    if kept >= 0 and piece.sum_column >= 0 and buffers.early != None and config.norm_rope != None:
        first = piece.first_column - scaled_columns(config.norm_rope)[0]
        return buffers.early.kept[kept][0:tokens, first : first + piece.width]
    return buffers.outputs[t][0:tokens, piece.first_column : piece.first_column + piece.width]


def store(config: ProjectionConfig, buffers: Buffers, output: NkiTensor, block: SBlock) -> None:
    """Writes a block's finished rows, one DMA for each S-tile; of rows that are kept for the pass, what is beside."""
    core_first, core_width = core_columns(config)
    for t in range(block.num_tiles):
        tile = block.first_tile + t
        first, tokens = tile_tokens(config, tile)
        parts = [(0, core_width)]
        if tile >= first_kept_tile(config) and config.norm_rope != None:
            start, width = scaled_columns(config.norm_rope)
            parts = [(0, start), (start + width, config.width)]
        for start, stop in parts:
            if stop > start:
                token = first_token(config) + first
                target = output_columns(config, output, token, tokens, core_first + start, stop - start)
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
        rows = output.reshape((output.shape[0] * output.shape[1], output.shape[2]))
        return rows[first_token:last_token, first_column : first_column + width]
    heads = output.reshape((output.shape[0], output.shape[1] * output.shape[2], head_dim))
    first_head = first_column // head_dim
    segment = heads[first_head : first_head + width // head_dim, first_token:last_token, :]
    return segment.permute((1, 0, 2))
