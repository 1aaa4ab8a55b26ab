"""The weighted sum with the weights stationary: what the seed's kernel does, kept to be measured.

Its products move 512 columns of rows past as many columns of weights as there are heads, and their sum has to be
transposed. See `config.Schedule`.
"""

import nki.isa as nisa
import nki.language as nl
from kernels.mla_decode.device.buffers import Buffers
from kernels.mla_decode.device.config import BANKS_IN_TURN, P_MAX, AttentionConfig
from kernels.mla_decode.device.placing import bank
from kernels.mla_decode.device.tiling import latent_tiles, prior_tiles
from nki.language import NkiTensor


def sum_by_weights(
    config: AttentionConfig, buffers: Buffers, rows: NkiTensor, current: NkiTensor, token: int, slot: int
) -> None:
    """One token's attention output in the latent space.

    latent[h, c] = sum over keys of weights * latent part of its row / sum over keys of weights
    latent_features[f, part, h, token] = latent[h, 128 part + f]
    """
    assert buffers.latent != None, "the plan has no latent buffer; accepted: one whose schedule has stationary_weights"
    latent, tiles, heads = buffers.latent, prior_tiles(config), config.n_heads
    first, stop = config.rope, config.rope + config.kv_lora_rank
    total = bank(config, f"weighted_sum_{token % BANKS_IN_TURN}", (heads, config.kv_lora_rank), nl.float32)
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
    inverse = buffers.inverse_sum[0:heads, 0:1]
    nisa.reciprocal(dst=inverse, data=denominator(config, buffers, slot))
    nisa.tensor_scalar(dst=latent, data=total, op0=nl.multiply, operand0=inverse, engine=nisa.engine.vector)
    turned = bank(config, "denominator", (P_MAX, latent_tiles(config), heads), latent.dtype)
    for part in range(latent_tiles(config)):
        nisa.nc_transpose(
            dst=turned[:, part, :],
            data=latent[:, part * P_MAX : (part + 1) * P_MAX],
            engine=nisa.engine.tensor,
        )
    nisa.tensor_copy(dst=buffers.latent_features[:, :, :, token], src=turned, engine=nisa.engine.vector)


def denominator(config: AttentionConfig, buffers: Buffers, slot: int) -> NkiTensor:
    """[h, 1] fp32: what each partition adds to it, added up."""
    total = bank(config, "denominator", (config.n_heads, 1), nl.float32)
    if buffers.head_major != None:
        total = buffers.head_major.sums[:, slot : slot + 1]
    if buffers.key_major != None:
        partial = buffers.key_major.partial[:, slot, :]
        nisa.nc_matmul(dst=total, stationary=partial, moving=buffers.key_major.ones, accumulate=False)
    return total
