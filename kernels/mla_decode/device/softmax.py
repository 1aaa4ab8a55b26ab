"""Softmax over the keys of a group of tokens, keys on partitions."""

import nki.isa as nisa
import nki.language as nl
from kernels.mla_decode.device.buffers import Buffers, KeyMajor
from kernels.mla_decode.device.config import P_MAX, AttentionConfig
from kernels.mla_decode.device.head_major import soften_heads
from kernels.mla_decode.device.placing import bank
from kernels.mla_decode.device.tiling import prior_tiles
from nki.language import NkiTensor


def softmax_group(config: AttentionConfig, buffers: Buffers, tokens: int, softmax_scale: float) -> None:
    """Numerators of a group's softmax, and what each partition adds to the denominators, in the schedule's layout."""
    if buffers.key_major != None:
        soften_keys(config, buffers.key_major, buffers.weights, tokens, softmax_scale)
    if buffers.head_major != None:
        soften_heads(config, buffers.head_major, buffers.weights, tokens, softmax_scale)


def soften_keys(
    config: AttentionConfig, buffers: KeyMajor, weights: NkiTensor, tokens: int, softmax_scale: float
) -> None:
    """Numerators of a group's softmax, and what each partition adds to the denominators.

    weights[p, g, tile, h] = exp(softmax_scale * (scores[p, g, tile, h] - max over p and tile))
    partial[p, g, h] = sum over tile of weights

    The maximum crosses partitions: maxima per partition are transposed, reduced, repeated and transposed back. A
    product that spreads them would be one instruction, too, and would spread a NaN of one token over the group. The
    denominator sums the rounded numerators, so that the weights of a row add up to 1.
    """
    tiles, heads = prior_tiles(config) + 1, config.n_heads
    columns = tokens * heads
    scores = buffers.scores[:, 0:tokens, :, :]
    partial = buffers.partial[:, 0:tokens, :]
    nisa.tensor_reduce(dst=partial, op=nl.maximum, data=scores.permute((0, 1, 3, 2)), axis=3)
    turned = bank(config, "softmax", (columns, P_MAX), nl.float32)
    nisa.nc_transpose(dst=turned, data=partial.reshape((P_MAX, columns)), engine=nisa.engine.tensor)
    maxima = buffers.group_column[0:columns, :]
    nisa.tensor_reduce(dst=maxima, op=nl.maximum, data=turned, axis=1)
    spread = bank(config, "softmax", (P_MAX, tokens, 1, heads), nl.float32)
    nisa.nc_transpose(dst=spread.reshape((P_MAX, columns)), data=maxima.broadcast(1, P_MAX), engine=nisa.engine.tensor)
    nisa.tensor_tensor(
        dst=scores, data1=scores, data2=spread.broadcast(2, tiles), op=nl.subtract, engine=nisa.engine.vector
    )
    numerators = weights[:, 0:tokens, :, :]
    nisa.activation(dst=numerators, op=nl.exp, data=scores, scale=softmax_scale)
    nisa.tensor_reduce(dst=partial, op=nl.add, data=numerators.permute((0, 1, 3, 2)), axis=3)
