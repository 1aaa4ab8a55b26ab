"""Norm and RoPE while a bank is evicted: everything but `inv_rms`, which no rank knows before all have projected.

RoPE and gamma act on a token's channels, `inv_rms` on the token: they commute. So the Vector Engine and GpSimd do them
while the Tensor Engine multiplies, and the pass after the all-reduce has one multiplication left.
"""

import nki.isa as nisa
import nki.language as nl
from kernels.qkv_cte.device.config import NormRopePass, Piece, ProjectionConfig
from kernels.qkv_cte.device.early_buffers import EarlyBuffers
from kernels.qkv_cte.device.engines import helper
from kernels.qkv_cte.device.tiling import first_token, tile_tokens
from kernels.qkv_cte.device.transfer import copy
from nki.language import NkiTensor


def load_block_caches(
    config: ProjectionConfig,
    early: EarlyBuffers,
    first_tile: int,
    num_tiles: int,
    cos_cache: NkiTensor | None,
    sin_cache: NkiTensor | None,
) -> None:
    """Loads a block's rows of the caches [B, S, head_dim], of which B and S are one axis here.

    caches[t] = cos of each token, sin of each token, negative in the lower half
    """
    if cos_cache == None or sin_cache == None:
        return
    batch, seqlen, head_dim = cos_cache.shape
    flat = (batch * seqlen, head_dim)
    core_first = first_token(config)
    for t in range(num_tiles):
        first, tokens = tile_tokens(config, first_tile + t)
        cos, sin = early.caches[t]
        start = core_first + first
        copy(dst=cos[0:tokens, :], src=cos_cache.reshape(flat)[start : start + tokens, :])
        copy(dst=sin[0:tokens, :], src=sin_cache.reshape(flat)[start : start + tokens, :])
        lower = sin[0:tokens, 0 : head_dim // 2]
        nisa.tensor_scalar(dst=lower, data=lower, op0=nl.multiply, operand0=-1.0, engine=nisa.engine.scalar)


def finish(
    config: ProjectionConfig,
    norm_rope: NormRopePass,
    early: EarlyBuffers,
    piece: Piece,
    t: int,
    tile: int,
    x: NkiTensor,
    row: NkiTensor,
) -> None:
    """Takes a piece from its fp32 values to what the pass scales, rounded once.

    sums = sum_i x[s, i]**2                                        where normalised
    y = x * gamma                                                  where normalised
    row[s, h, i] = bf16(y[s, h, i] * cos[s, i] + y[s, h, other half of i] * sin[s, i])    with RoPE, else bf16(y)

    Args:
        piece: columns of segment `piece.segment`, whole heads with RoPE.
        t, tile: number of the S-tile in its block and in all.
        x: [tokens, piece.width] fp32, overwritten.
        row: [tokens, piece.width] of the output's type, where the result goes.
    """
    segment = norm_rope.segments[piece.segment]
    gamma, tokens = early.gammas[piece.segment], x.shape[0]
    rotated = len(early.caches) > 0
    if gamma != None and early.piece_sums != None:
        column = piece.sum_column + tile * segment.pieces
        nisa.activation(
            dst=row,  # Squares nobody reads; the result overwrites them.
            op=nl.square,
            data=x,
            reduce_op=nl.add,
            reduce_res=early.piece_sums[0:tokens, column : column + 1],
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )
        first = piece.first_column - segment.first_column
        factor = gamma[0:tokens, first : first + piece.width]
        nisa.tensor_tensor(dst=x if rotated else row, data1=x, data2=factor, op=nl.multiply, engine=helper(config))
    if rotated:
        number = tile * config.segment_pieces + piece.number
        rotate(config, norm_rope.head_dim, early.caches[t], early.crossed[number % len(early.crossed)], x, row)


def rotate(
    config: ProjectionConfig,
    head_dim: int,
    caches: tuple[NkiTensor, NkiTensor],
    crossed: NkiTensor,
    x: NkiTensor,
    row: NkiTensor,
) -> None:
    """Rotate-half RoPE of whole heads in four operations, the caches broadcast over the heads by a stride of 0.

    row[s, h, i] = bf16(x[s, h, i] * cos[s, i] + x[s, h, other half of i] * sin[s, i])
    """
    tokens, width = x.shape
    half, heads = head_dim // 2, width // head_dim
    cos = caches[0][0:tokens, :].expand_dim(1).broadcast(1, heads)
    sin = caches[1][0:tokens, :].expand_dim(1).broadcast(1, heads)
    by_head = (heads, head_dim)
    x = x.reshape_dim(1, by_head)
    crossed = crossed[0:tokens, 0:width].reshape_dim(1, by_head)
    vector, low, high = nisa.engine.vector, slice(0, half), slice(half, head_dim)
    nisa.tensor_tensor(dst=crossed[:, :, low], data1=x[:, :, high], data2=sin[:, :, low], op=nl.multiply, engine=vector)
    nisa.tensor_tensor(
        dst=crossed[:, :, high], data1=x[:, :, low], data2=sin[:, :, high], op=nl.multiply, engine=vector
    )
    nisa.tensor_tensor(dst=x, data1=x, data2=cos, op=nl.multiply, engine=helper(config))
    nisa.tensor_tensor(dst=row.reshape_dim(1, by_head), data1=x, data2=crossed, op=nl.add, engine=vector)
