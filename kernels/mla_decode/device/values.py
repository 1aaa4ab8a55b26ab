"""The weighted sum of one token's keys."""

import nki.isa as nisa
import nki.language as nl
from kernels.mla_decode.device.buffers import Buffers
from kernels.mla_decode.device.config import P_MAX, AttentionConfig
from kernels.mla_decode.device.placing import bank
from kernels.mla_decode.device.tiling import latent_tiles, prior_tiles
from nki.language import NkiTensor

SUM_BANKS = (5, 6)
"""PSUM banks that weighted sums take in turn."""

LATENT_BANK = 7
"""PSUM bank of a denominator, then of the transposed output."""


def weighted_sum(
    config: AttentionConfig, buffers: Buffers, rows: NkiTensor, kv_row_cur: NkiTensor, token: int, slot: int
) -> None:
    """One token's attention output in the latent space, feature-major.

    latent[h, c] = sum over keys of weights * latent part of its row / sum over keys of weights
    latent_features[f, part, h, token] = latent[h, 128 part + f]

    The token-major rows are what the gather brought: the weights, keys on partitions, are stationary over them.
    """
    tiles, heads = prior_tiles(config), config.n_heads
    first, stop = config.rope, config.rope + config.kv_lora_rank
    current = buffers.current[token % len(buffers.current)]
    nisa.dma_copy(dst=current, src=kv_row_cur[token : token + 1, :])
    total = bank(SUM_BANKS[token % len(SUM_BANKS)], (heads, config.kv_lora_rank), nl.float32)
    for tile in range(tiles):
        nisa.nc_matmul(
            dst=total,
            stationary=buffers.weights[:, slot, tile, :],
            moving=rows[:, tile, first:stop],
            accumulate=tile > 0,
        )
    nisa.nc_matmul(
        dst=total,
        stationary=buffers.weights[0:1, slot, tiles, :],
        moving=current[:, first:stop],
        accumulate=True,
    )
    nisa.reciprocal(dst=buffers.inverse_sum, data=denominator(config, buffers, slot))
    nisa.tensor_scalar(dst=buffers.latent, data=total, op0=nl.multiply, operand0=buffers.inverse_sum)
    turned = bank(LATENT_BANK, (P_MAX, latent_tiles(config), heads), buffers.latent.dtype)
    for part in range(latent_tiles(config)):
        nisa.nc_transpose(
            dst=turned[:, part, :],
            data=buffers.latent[:, part * P_MAX : (part + 1) * P_MAX],
            engine=nisa.engine.tensor,
        )
    nisa.tensor_copy(dst=buffers.latent_features[:, :, :, token], src=turned, engine=nisa.engine.vector)


def denominator(config: AttentionConfig, buffers: Buffers, slot: int) -> NkiTensor:
    """[h, 1] fp32: what each partition adds to it, added up."""
    total = bank(LATENT_BANK, (config.n_heads, 1), nl.float32)
    if buffers.head_major is not None:
        total = buffers.head_major.sums[:, slot : slot + 1]
    if buffers.key_major is not None:
        partial = buffers.key_major.partial[:, slot, :]
        nisa.nc_matmul(dst=total, stationary=partial, moving=buffers.key_major.ones, accumulate=False)
    return total


def sum_group(
    config: AttentionConfig, buffers: Buffers, gathered: list[NkiTensor], kv_row_cur: NkiTensor, first: int
) -> None:
    """The weighted sums of a group of tokens, `first` on, whose rows are `gathered`."""
    for slot in range(len(gathered)):
        weighted_sum(config, buffers, gathered[slot], kv_row_cur, first + slot, slot)
