"""Unquantised activations before they are transposed: residual sum and norm, token-major."""

from dataclasses import dataclass

import nki.isa as nisa
import nki.language as nl
from kernels.qkv_cte.device.buffers import Buffers, transposed_type
from kernels.qkv_cte.device.config import BN_STATS_COLUMNS, LAYER, S_TILE, STATISTICS, InputStage, ProjectionConfig
from kernels.qkv_cte.device.operands import Operands
from kernels.qkv_cte.device.placing import place
from kernels.qkv_cte.device.tiling import count_tiles
from kernels.qkv_cte.device.transfer import cast_copy
from nki.language import NKIObject, NkiTensor


@dataclass
class InputBuffers(NKIObject):
    """Tensors of the stage, partition dimension first. Lists run over rotating buffers; empty where there is no norm.

    Attributes:
        gamma, beta: [128, H], the same row in every partition.
        normed: [128 tokens, H] in the type that is transposed.
        centred: [128 tokens, H] fp32, of a LayerNorm.
        statistics: [128 tokens, numbers] fp32.
        inv_rms: [128 tokens, 1] fp32.
    """

    gamma: NkiTensor | None
    beta: NkiTensor | None
    normed: list[NkiTensor]
    centred: NkiTensor | None
    statistics: list[NkiTensor]
    inv_rms: list[NkiTensor]


def allocate_input(config: ProjectionConfig, operands: Operands) -> InputBuffers:
    """Creates the buffers of the stage at their addresses; none where nothing is normalised."""
    stage = config.stages.input
    gamma, beta, centred = None, None, None
    normed, statistics, inv_rms = [], [], []
    if stage != None and stage.norm != "":
        row = (S_TILE, config.hidden)
        if operands.input_gamma != None:
            gamma = place(config, "input_gamma", row, operands.input_gamma.dtype)
        if operands.input_beta != None:
            beta = place(config, "input_beta", row, operands.input_beta.dtype)
        if stage.norm == LAYER:
            centred = place(config, "centred", row, nl.float32)
        for i in range(config.row_buffers):
            normed.append(place(config, f"normed_{i}", row, transposed_type(config, operands)))
            numbers = statistics_columns(config.hidden) if stage.norm == LAYER else 1
            statistics.append(place(config, f"statistics_{i}", (S_TILE, numbers), nl.float32))
            inv_rms.append(place(config, f"input_inv_rms_{i}", (S_TILE, 1), nl.float32))
    return InputBuffers(gamma=gamma, beta=beta, normed=normed, centred=centred, statistics=statistics, inv_rms=inv_rms)


def statistics_columns(hidden: int) -> int:
    """fp32 numbers that a LayerNorm's statistics take: those of each chunk of a row, then mean and variance."""
    return STATISTICS * count_tiles(hidden, BN_STATS_COLUMNS) + 2


def input_vectors(
    config: ProjectionConfig, operands: Operands, stage: InputBuffers
) -> list[tuple[NkiTensor, NkiTensor]]:
    """Rows that are loaded to every partition, with where they go."""
    vectors = []
    if operands.input_gamma != None and stage.gamma != None:
        vectors.append((operands.input_gamma[0:1, 0 : config.hidden], stage.gamma))
    if operands.input_beta != None and stage.beta != None:
        vectors.append((operands.input_beta[0:1, 0 : config.hidden], stage.beta))
    return vectors


def input_rows(
    config: ProjectionConfig,
    buffers: Buffers,
    stage: InputBuffers,
    operands: Operands,
    slot: int,
    first: int,
    tokens: int,
) -> NkiTensor:
    """Rows of an S-tile as they are multiplied, [tokens, H], rounded once.

    rows = hidden + residuals, in fp32 within the DMA;  normed = norm(rows) * gamma + beta
    """
    rows = buffers.rows[slot][0:tokens, :]
    sources = [token_rows(config, operands.hidden, first, tokens)]
    for residual in operands.residuals:
        sources.append(token_rows(config, residual, first, tokens))
    if len(sources) > 1:
        nisa.dma_compute(dst=rows, srcs=sources, reduce_op=nl.add)
    else:
        cast_copy(dst=rows, src=sources[0])
    asked = config.stages.input
    if asked == None or asked.norm == "":
        return rows
    if asked.norm == LAYER:
        return layer_norm(config, asked, stage, rows, slot)
    return rms_norm(config, asked, stage, rows, slot)


def token_rows(config: ProjectionConfig, tensor: NkiTensor, first: int, tokens: int) -> NkiTensor:
    """Some of the B*S tokens of [B, S, H'], the first `config.hidden` columns."""
    flat = tensor.reshape((tensor.shape[0] * tensor.shape[1], tensor.shape[2]))
    return flat[first : first + tokens, 0 : config.hidden]


def rms_norm(config: ProjectionConfig, asked: InputStage, stage: InputBuffers, rows: NkiTensor, slot: int) -> NkiTensor:
    """normed[s, h] = rows[s, h] * rsqrt(mean(rows[s]**2) + eps) * gamma[h], in fp32 until it is rounded."""
    tokens = rows.shape[0]
    normed = stage.normed[slot][0:tokens, :]
    total, inv_rms = stage.statistics[slot][0:tokens, :], stage.inv_rms[slot][0:tokens, :]
    # The squares themselves are not needed: they land where the result will.
    nisa.activation(
        dst=normed,
        op=nl.square,
        data=rows,
        reduce_op=nl.add,
        reduce_res=total,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    nisa.activation(dst=inv_rms, op=nl.rsqrt, data=total, scale=1.0 / config.hidden, bias=asked.eps)
    if stage.gamma == None:
        nisa.activation(dst=normed, op=nl.copy, data=rows, scale=inv_rms)
    else:
        nisa.scalar_tensor_tensor(
            dst=normed,
            data=rows,
            op0=nl.multiply,
            operand0=inv_rms,
            op1=nl.multiply,
            operand1=stage.gamma[0:tokens, :],
        )
    return normed


def layer_norm(
    config: ProjectionConfig, asked: InputStage, stage: InputBuffers, rows: NkiTensor, slot: int
) -> NkiTensor:
    """normed[s, h] = (rows[s, h] - mean[s]) * gamma[h] * rsqrt(variance[s] + eps) + beta[h], in fp32 until rounded."""
    tokens = rows.shape[0]
    normed, inv_rms = stage.normed[slot][0:tokens, :], stage.inv_rms[slot][0:tokens, :]
    if stage.centred == None or stage.gamma == None:
        return normed
    numbers = stage.statistics[slot][0:tokens, :]
    chunk, chunks = BN_STATS_COLUMNS, count_tiles(config.hidden, BN_STATS_COLUMNS)
    for i in range(chunks):
        part = rows[:, i * chunk : min(i * chunk + chunk, config.hidden)]
        nisa.bn_stats(dst=numbers[:, i * STATISTICS : i * STATISTICS + STATISTICS], data=part)
    last = chunks * STATISTICS
    nisa.bn_aggr(dst=numbers[:, last : last + 2], data=numbers[:, 0:last])
    nisa.activation(dst=inv_rms, op=nl.rsqrt, data=numbers[:, last + 1 : last + 2], bias=asked.eps)
    centred = stage.centred[0:tokens, :]
    nisa.scalar_tensor_tensor(
        dst=centred,
        data=rows,
        op0=nl.subtract,
        operand0=numbers[:, last : last + 1],
        op1=nl.multiply,
        operand1=stage.gamma[0:tokens, :],
    )
    if stage.beta == None:
        nisa.activation(dst=normed, op=nl.copy, data=centred, scale=inv_rms)
    else:
        nisa.scalar_tensor_tensor(
            dst=normed,
            data=centred,
            op0=nl.multiply,
            operand0=inv_rms,
            op1=nl.add,
            operand1=stage.beta[0:tokens, :],
        )
    return normed
