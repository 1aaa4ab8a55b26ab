"""From PSUM to finished rows in HBM."""

import nki.isa as nisa
import nki.language as nl
from kernels.qkv_cte.buffers import Buffers
from kernels.qkv_cte.config import DEQUANT_BUFFERS, IGroup, ProjectionConfig, SBlock
from kernels.qkv_cte.tiling import bank_columns, tile_tokens
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


def store(config: ProjectionConfig, buffers: Buffers, output_rows: NkiTensor, block: SBlock) -> None:
    """Writes a block's finished rows, each one contiguous in HBM."""
    core_first = nl.program_id(0) * config.tokens_per_core
    for t in range(block.num_tiles):
        first, tokens = tile_tokens(config, block.first_tile + t)
        row = core_first + first
        nisa.dma_copy(dst=output_rows[row : row + tokens, :], src=buffers.outputs[t][0:tokens, :])
