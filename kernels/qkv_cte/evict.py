"""From PSUM to finished rows in HBM."""

import nki.isa as nisa
import nki.language as nl
from kernels.qkv_cte.buffers import Buffers
from kernels.qkv_cte.config import DEQUANT_BUFFERS, IGroup, ProjectionConfig, SBlock
from kernels.qkv_cte.tiling import bank_columns, tile_tokens
from kernels.qkv_cte.transfer import copy
from nki.language import NkiTensor


def evict(config: ProjectionConfig, buffers: Buffers, block: SBlock, group: IGroup, evicted: int) -> int:
    """Dequantises a finished I-group and adds the bias; returns how many banks were evicted so far.

    outputs[t][s, i] = bf16(banks[..][s, i] * row_scales[t][s] * channel_scale[i] + bias[i])
    """
    for t in range(block.num_tiles):
        tokens = tile_tokens(config, block.first_tile + t)[1]
        for b in range(group.num_banks):
            first, width = bank_columns(config, group.first_bank + b)
            index = t * group.num_banks + b
            target = buffers.outputs[t][0:tokens, first : first + width]
            dequantised = target
            if buffers.bias is not None:
                dequantised = buffers.dequantised[evicted % DEQUANT_BUFFERS][0:tokens, 0:width]
            nisa.scalar_tensor_tensor(
                dst=dequantised,
                data=buffers.banks[index][0:tokens, 0:width],
                op0=nl.multiply,
                operand0=buffers.row_scales[t][0:tokens, :],
                op1=nl.multiply,
                operand1=buffers.channel_scale[0:tokens, first : first + width],
            )
            if buffers.bias is not None:
                nisa.tensor_tensor(
                    dst=target,
                    data1=dequantised,
                    data2=buffers.bias[0:tokens, first : first + width],
                    op=nl.add,
                    engine=nisa.engine.gpsimd,
                )
            evicted += 1
    return evicted


def store(config: ProjectionConfig, buffers: Buffers, output: NkiTensor, block: SBlock) -> None:
    """Writes a block's finished rows, one DMA for each S-tile."""
    core_first = nl.program_id(0) * config.tokens_per_core
    for t in range(block.num_tiles):
        first, tokens = tile_tokens(config, block.first_tile + t)
        target = output_columns(config, output, core_first + first, tokens, 0, config.width)
        copy(dst=target, src=buffers.outputs[t][0:tokens, :])


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
