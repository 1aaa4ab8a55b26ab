"""Scores and softmax with heads on partitions: what the kernel did before keys were, kept to be measured.

One partition works where there is one head, the mask has to be spread over the heads, and the weights have to be
turned round for the weighted sum. See `config.Schedule`.
"""

from dataclasses import dataclass

import nki.isa as nisa
import nki.language as nl
from kernels.mla_decode.device.config import BANK_BYTES, BANKS_IN_TURN, MASKED_SCORE, P_MAX, AttentionConfig
from kernels.mla_decode.device.placing import bank, place
from kernels.mla_decode.device.tiling import count_tiles, latent_tiles, prior_tiles
from nki.language import NKIObject, NkiTensor

CHUNK_TILES = 4
"""Key tiles of a score product: as many fp32 columns as a PSUM bank holds."""

BAND = 32
"""Partitions of a band: the narrowest column tile of the array."""


@dataclass
class HeadMajor(NKIObject):
    """On-chip tensors of this layout. K keys: all of the key tiles, and the token's own.

    Attributes:
        scores: [h, g, K] fp32.
        mask: [h, 512] fp32, 1 where one of a chunk's keys is seen.
        weights: [h, g, K], softmax numerators.
        offsets, sums: [h, g] fp32, minus the scaled maxima, and the denominators.
        band_sum: [h, 512] fp32; None where latent tiles share a band.
    """

    scores: NkiTensor
    mask: NkiTensor
    weights: NkiTensor
    offsets: NkiTensor
    sums: NkiTensor
    band_sum: NkiTensor | None


def allocate_head_major(config: AttentionConfig, dtype: str) -> HeadMajor:
    """Creates its buffers at their addresses of the plan."""
    heads, group, keys = config.n_heads, config.group_tokens, prior_tiles(config) * P_MAX + 1
    band_sum = None
    if config.schedule.latent_bands:
        band_sum = place(config, "band_sum", (heads, CHUNK_TILES * P_MAX), nl.float32)
    return HeadMajor(
        scores=place(config, "scores", (heads, group, keys), nl.float32),
        mask=place(config, "mask", (heads, CHUNK_TILES * P_MAX), nl.float32),
        weights=place(config, "head_weights", (heads, group, keys), dtype),
        offsets=place(config, "offsets", (heads, group), nl.float32),
        sums=place(config, "sums", (heads, group), nl.float32),
        band_sum=band_sum,
    )


def score_heads(
    config: AttentionConfig,
    buffers: HeadMajor,
    keep: NkiTensor,
    keys: NkiTensor,
    own_keys: list[NkiTensor],
    queries: list[NkiTensor],
    slot: int,
) -> None:
    """scores[h, slot, key] = sum_f q[f, h] * features[f, key] where keep, else MASKED_SCORE"""
    tiles, heads = prior_tiles(config), config.n_heads
    scores = buffers.scores[:, slot, :]
    nisa.memset(dst=scores, value=MASKED_SCORE, engine=nisa.engine.gpsimd)
    for chunk in range(count_tiles(tiles, CHUNK_TILES)):
        first = chunk * CHUNK_TILES
        stop = min(first + CHUNK_TILES, tiles)
        columns = (stop - first) * P_MAX
        turned = bank(config, "softmax", (heads, columns), nl.float32)
        for tile in range(first, stop):
            column = (tile - first) * P_MAX
            nisa.nc_transpose(
                dst=turned[:, column : column + P_MAX],
                data=keep[:, tile : tile + 1].broadcast(1, heads),
                engine=nisa.engine.tensor,
            )
        mask = buffers.mask[:, 0:columns]
        nisa.tensor_copy(dst=mask, src=turned, engine=nisa.engine.scalar)
        spread = bank(config, f"scores_{chunk % BANKS_IN_TURN}", (P_MAX, columns), nl.float32)
        parts = []
        for part in range(len(queries)):
            parts.append(keys[0 : queries[part].shape[0], part, first * P_MAX : stop * P_MAX])
        found = multiply_heads(config, buffers, spread, queries, parts)
        nisa.tensor_copy_predicated(
            dst=scores[:, first * P_MAX : stop * P_MAX], src=found, predicate=mask.view(nl.uint32)
        )
    own = bank(config, "scores_0", (heads, 1), nl.float32)
    for part in range(len(queries)):
        nisa.nc_matmul(dst=own, stationary=queries[part], moving=own_keys[part], accumulate=part > 0)
    nisa.tensor_copy(dst=scores[:, tiles * P_MAX : tiles * P_MAX + 1], src=own, engine=nisa.engine.vector)


def multiply_heads(
    config: AttentionConfig, buffers: HeadMajor, spread: NkiTensor, queries: list[NkiTensor], keys: list[NkiTensor]
) -> NkiTensor:
    """Scores of a chunk of keys, [h, keys] fp32: in one PSUM tile, or a latent tile per band that are added up."""
    heads, columns = config.n_heads, spread.shape[1]
    if buffers.band_sum == None:
        for part in range(len(queries)):
            nisa.nc_matmul(dst=spread[0:heads, :], stationary=queries[part], moving=keys[part], accumulate=part > 0)
        return spread[0:heads, :]
    latents = latent_tiles(config)
    for part in range(len(queries)):
        start = BAND * (part % latents)
        nisa.nc_matmul(
            dst=spread[start : start + heads, :],
            stationary=queries[part],
            moving=keys[part],
            accumulate=part == latents,
            tile_position=(0, start),
            tile_size=(P_MAX, BAND),
        )
    total = buffers.band_sum[:, 0:columns]
    nisa.tensor_copy(dst=total, src=spread[0:heads, :], engine=nisa.engine.vector)
    for part in range(1, latents):
        start = BAND * part
        nisa.tensor_tensor(
            dst=total, data1=total, data2=spread[start : start + heads, :], op=nl.add, engine=nisa.engine.vector
        )
    return total


def soften_heads(
    config: AttentionConfig, buffers: HeadMajor, weights: NkiTensor, tokens: int, softmax_scale: float
) -> None:
    """Numerators of a group's softmax, keys on partitions in `weights` [128, g, T + 1, h], and their sums."""
    tiles, heads = prior_tiles(config), config.n_heads
    keys = tiles * P_MAX + 1
    softened, offsets = buffers.weights, buffers.offsets[:, 0:tokens]
    nisa.tensor_reduce(dst=offsets, op=nl.maximum, data=buffers.scores[:, 0:tokens, :], axis=2, negate=True)
    nisa.tensor_scalar(dst=offsets, data=offsets, op0=nl.multiply, operand0=softmax_scale, engine=nisa.engine.vector)
    itemsize = 2 if softened.dtype == nl.bfloat16 else 4
    per_bank = max(1, BANK_BYTES // (heads * itemsize))
    for slot in range(tokens):
        nisa.activation(
            dst=softened[:, slot, :],
            op=nl.exp,
            data=buffers.scores[:, slot, :],
            scale=softmax_scale,
            bias=offsets[:, slot : slot + 1],
            reduce_op=nl.add,
            reduce_res=buffers.sums[:, slot : slot + 1],
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )
        for first in range(0, tiles, per_bank):
            stop = min(first + per_bank, tiles)
            turned = bank(config, "softmax", (P_MAX, stop - first, heads), softened.dtype)
            for tile in range(first, stop):
                nisa.nc_transpose(
                    dst=turned[:, tile - first, :],
                    data=softened[:, slot, tile * P_MAX : (tile + 1) * P_MAX],
                    engine=nisa.engine.tensor,
                )
            nisa.tensor_copy(dst=weights[:, slot, first:stop, :], src=turned, engine=nisa.engine.scalar)
        own = bank(config, "softmax", (1, heads), softened.dtype)
        nisa.nc_transpose(dst=own, data=softened[:, slot, keys - 1 : keys], engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=weights[0:1, slot, tiles, :], src=own, engine=nisa.engine.vector)
