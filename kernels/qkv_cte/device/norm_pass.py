"""Across-heads RMSNorm up to `inv_rms`: sums of squares while projecting, then one all-reduce."""

import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from kernels.qkv_cte.device.buffers import Buffers
from kernels.qkv_cte.device.config import S_TILE, NormRopePass, ProjectionConfig, SBlock
from kernels.qkv_cte.device.placing import place
from kernels.qkv_cte.device.tiling import count_tiles, tile_tokens
from nki.language import NkiTensor


def clear_sums(buffers: Buffers) -> None:
    """Zeroes the sums: the last S-tile may be short, and the reduction takes all of its partitions."""
    early = buffers.early
    if early != None and early.piece_sums != None:
        nisa.memset(dst=early.piece_sums, value=0.0, engine=nisa.engine.gpsimd)
    elif buffers.sum_squares != None:
        nisa.memset(dst=buffers.sum_squares, value=0.0, engine=nisa.engine.gpsimd)


def accumulate_squares(config: ProjectionConfig, buffers: Buffers, block: SBlock) -> None:
    """Sums the squares of each token of a block over each normalised segment, as rounded to bf16, in fp32.

    sum_squares[s, column of (segment, S-tile)] = sum_i outputs[t][s, i]**2   over the segment's columns i

    S-tiles are counted over all tokens of the core, so every batch has columns of its own.
    """
    if config.norm_rope == None or buffers.sum_squares == None or buffers.squares == None:
        return
    for t in range(block.num_tiles):
        tile = block.first_tile + t
        tokens = tile_tokens(config, tile)[1]
        for segment in config.norm_rope.segments:
            if segment.gamma_bytes > 0:
                first, column = segment.first_column, segment.sum_column + tile
                nisa.activation(
                    dst=buffers.squares[0:tokens, 0 : segment.width],
                    op=nl.square,
                    data=buffers.outputs[t][0:tokens, first : first + segment.width],
                    reduce_op=nl.add,
                    reduce_res=buffers.sum_squares[0:tokens, column : column + 1],
                    reduce_cmd=nisa.reduce_cmd.reset_reduce,
                )


def reduce_to_inv_rms(
    config: ProjectionConfig, buffers: Buffers, piece_sums: NkiTensor | None = None
) -> NkiTensor | None:
    """Adds the sums of all ranks, in SBUF, with one all-reduce for all tokens and segments of the core.

    inv_rms[s, column] = rsqrt(sum over ranks of sum_squares[s, column] / (width * ranks) + eps)

    Returns:
        [128 tokens, segment x S-tile] fp32; None where no segment is normalised.
    """
    if config.norm_rope == None or buffers.sum_squares == None:
        return None
    s_tiles = count_tiles(config.tokens_per_core, S_TILE)
    sums, ranks = buffers.sum_squares, 1
    if piece_sums != None:
        add_pieces(config.norm_rope, piece_sums, sums, s_tiles)
    inv_rms = place(config, "inv_rms", (S_TILE, config.norm_rope.sum_columns), nl.float32)
    if config.norm_rope.replica_groups != None:
        ranks = len(config.norm_rope.replica_groups[0])
        groups = ncc.ReplicaGroup(config.norm_rope.replica_groups)
        ncc.all_reduce([sums], [inv_rms], groups, nl.add)
        sums = inv_rms
    for segment in config.norm_rope.segments:
        if segment.gamma_bytes > 0:
            first, last = segment.sum_column, segment.sum_column + s_tiles
            nisa.activation(
                dst=inv_rms[:, first:last],
                op=nl.rsqrt,
                data=sums[:, first:last],
                scale=1.0 / (segment.width * ranks),
                bias=config.norm_rope.eps,
            )
    return inv_rms


def add_pieces(norm_rope: NormRopePass, piece_sums: NkiTensor, sum_squares: NkiTensor, s_tiles: int) -> None:
    """sum_squares[s, column of (segment, S-tile)] = sum of the segment's pieces"""
    first = 0
    for segment in norm_rope.segments:
        if segment.gamma_bytes > 0:
            last = first + s_tiles * segment.pieces
            pieces = piece_sums[:, first:last].reshape_dim(1, (s_tiles, segment.pieces))
            column = segment.sum_column
            nisa.tensor_reduce(dst=sum_squares[:, column : column + s_tiles], op=nl.add, data=pieces, axis=2)
            first = last
