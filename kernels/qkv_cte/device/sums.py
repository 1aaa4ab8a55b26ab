"""Sums of squares of a segment per token, as outputs: of what was projected, before norm and RoPE."""

from dataclasses import dataclass

import nki.isa as nisa
import nki.language as nl
from kernels.qkv_cte.device.config import S_TILE, Piece, ProjectionConfig, SBlock
from kernels.qkv_cte.device.operands import Operands
from kernels.qkv_cte.device.placing import place
from kernels.qkv_cte.device.tiling import first_token, tile_tokens
from kernels.qkv_cte.device.transfer import copy
from nki.language import NKIObject, NkiTensor


@dataclass
class SumBuffers(NKIObject):
    """Tensors of the stage; lists run over the S-tiles of a block and are empty where no sums are asked for.

    Attributes:
        partial: [128 tokens, bank of a segment] fp32.
        totals: [128 tokens, segment] fp32.
        scratch: [128 tokens, columns of a bank] bf16, squares that nobody reads.
    """

    partial: list[NkiTensor]
    totals: list[NkiTensor]
    scratch: list[NkiTensor]


def allocate_sums(config: ProjectionConfig) -> SumBuffers:
    """Creates the buffers at their addresses."""
    partial, totals, scratch = [], [], []
    segments = config.stages.sums
    if len(segments) > 0:
        columns = 0
        for segment in segments:
            columns += segment.banks
        for t in range(config.blocks[0].num_tiles):
            partial.append(place(config, f"partial_sums_{t}", (S_TILE, columns), nl.float32))
            totals.append(place(config, f"segment_sums_{t}", (S_TILE, len(segments)), nl.float32))
        scratch.append(place(config, "sum_scratch", (S_TILE, min(config.bank_columns, config.width)), nl.bfloat16))
    return SumBuffers(partial=partial, totals=totals, scratch=scratch)


def square_piece(sums: SumBuffers, piece: Piece, projected: NkiTensor, t: int) -> None:
    """partial[t][s, column of the piece] = sum_i projected[s, i]**2, in fp32."""
    if piece.partial_sum < 0:
        return
    tokens = projected.shape[0]
    nisa.activation(
        dst=sums.scratch[0][0:tokens, 0 : piece.width],
        op=nl.square,
        data=projected,
        reduce_op=nl.add,
        reduce_res=sums.partial[t][0:tokens, piece.partial_sum : piece.partial_sum + 1],
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )


def store_sums(config: ProjectionConfig, sums: SumBuffers, operands: Operands, block: SBlock) -> None:
    """Adds up a block's partial sums and writes them: sums[segment][token] = sum over banks of partial."""
    segments = config.stages.sums
    if len(segments) == 0 or operands.sums == None:
        return
    for t in range(block.num_tiles):
        first, tokens = tile_tokens(config, block.first_tile + t)
        first += first_token(config)
        column = 0
        for i in range(len(segments)):
            columns = segments[i].banks
            total = sums.totals[t][0:tokens, i : i + 1]
            nisa.tensor_reduce(dst=total, op=nl.add, data=sums.partial[t][0:tokens, column : column + columns], axis=1)
            column += columns
            target = operands.sums[segments[i].name]
            rows = target.reshape((target.shape[0] * target.shape[1], 1))
            copy(dst=rows[first : first + tokens, :], src=total)
