"""Feature-major keys and key-major scores of one token."""

import nki.isa as nisa
import nki.language as nl
from kernels.mla_decode.device.buffers import Buffers, KeyMajor
from kernels.mla_decode.device.config import BANK_BYTES, BANKS_IN_TURN, MASKED_SCORE, P_MAX, AttentionConfig
from kernels.mla_decode.device.gather import feature_columns, gather_features
from kernels.mla_decode.device.head_major import score_heads
from kernels.mla_decode.device.placing import bank
from kernels.mla_decode.device.tiling import count_tiles, latent_tiles, prior_tiles
from nki.language import NkiTensor

FP32_BYTES = 4


def make_features(
    config: AttentionConfig, buffers: Buffers, cache_rows: NkiTensor, rows: NkiTensor, token: int
) -> NkiTensor:
    """Transposes a token's keys: the plan's first latent tiles by DMA, what is left on the Tensor Engine.

    As many key tiles side by side as a PSUM bank holds:

    features[f, part, 128 tile + p] = rows[p, tile, column f of feature tile part]

    Evictions alternate between Vector and Scalar, so that neither is the bottleneck.
    """
    tiles = prior_tiles(config)
    itemsize = 2 if rows.dtype == nl.bfloat16 else FP32_BYTES
    per_bank = BANK_BYTES // (P_MAX * itemsize)
    features = buffers.features[token % len(buffers.features)]
    gather_features(config, buffers, cache_rows, features, token)
    evictions = 0
    for part in range(config.dma_transposed_chunks, latent_tiles(config) + 1):
        first, height = feature_columns(config, part)
        for start in range(0, tiles, per_bank):
            stop = min(start + per_bank, tiles)
            name = f"transposed_keys_{evictions % BANKS_IN_TURN}"
            spread = bank(config, name, (P_MAX, (stop - start) * P_MAX), rows.dtype)[0:height, :]
            for tile in range(start, stop):
                column = (tile - start) * P_MAX
                nisa.nc_transpose(
                    dst=spread[:, column : column + P_MAX],
                    data=rows[:, tile, first : first + height],
                    engine=nisa.engine.tensor,
                )
            evict = nisa.engine.vector if evictions % 2 == 0 else nisa.engine.scalar
            target = features[0:height, part, start * P_MAX : stop * P_MAX]
            nisa.tensor_copy(dst=target, src=spread, engine=evict)
            evictions += 1
    return features


def score(
    config: AttentionConfig,
    buffers: Buffers,
    features: NkiTensor,
    q_absorbed: NkiTensor,
    q_pe: NkiTensor,
    token: int,
    slot: int,
) -> None:
    """Scores one token's keys, and keeps those it sees, in the schedule's layout."""
    queries = query_parts(config, q_absorbed, q_pe, token)
    own_features = []
    for part in range(latent_tiles(config) + 1):
        height = feature_columns(config, part)[1]
        own_features.append(buffers.current_features[0:height, part, token : token + 1])
    keep = buffers.keep[:, token, :]
    if buffers.key_major != None:
        score_keys(config, buffers.key_major, keep, features, own_features, queries, slot)
    if buffers.head_major != None:
        score_heads(config, buffers.head_major, keep, features, own_features, queries, slot)


def score_keys(
    config: AttentionConfig,
    buffers: KeyMajor,
    keep: NkiTensor,
    features: NkiTensor,
    own_features: list[NkiTensor],
    queries: list[NkiTensor],
    slot: int,
) -> None:
    """Scores one token's keys, keys on partitions.

    scores[p, slot, tile, h] = sum_f features[f, :, 128 tile + p] * q[f, :, h] where keep, else MASKED_SCORE

    The mask is a select: what is masked may be garbage of any size, or NaN.
    """
    tiles, heads = prior_tiles(config), config.n_heads
    scores = buffers.scores[:, slot, :, :]
    nisa.memset(dst=scores, value=MASKED_SCORE, engine=nisa.engine.gpsimd)
    per_bank = max(1, BANK_BYTES // FP32_BYTES // heads)
    for chunk in range(count_tiles(tiles, per_bank)):
        first = chunk * per_bank
        count = min(per_bank, tiles - first)
        spread = bank(config, f"scores_{chunk % BANKS_IN_TURN}", (P_MAX, count, heads), nl.float32)
        for tile in range(first, first + count):
            multiply_features(spread[:, tile - first, :], key_parts(config, features, tile), queries)
        nisa.tensor_copy_predicated(
            dst=scores[:, first : first + count, :],
            src=spread,
            predicate=keep[:, first : first + count].expand_dim(2).broadcast(2, heads),
        )
    own = bank(config, "scores_0", (1, heads), nl.float32)
    multiply_features(own, own_features, queries)
    nisa.tensor_copy(dst=scores[0:1, tiles, :], src=own, engine=nisa.engine.vector)


def key_parts(config: AttentionConfig, features: NkiTensor, tile: int) -> list[NkiTensor]:
    """Feature tiles of one key tile, each [features, 128 keys], rope last."""
    parts = []
    for part in range(latent_tiles(config) + 1):
        height = feature_columns(config, part)[1]
        parts.append(features[0:height, part, tile * P_MAX : (tile + 1) * P_MAX])
    return parts


def query_parts(config: AttentionConfig, q_absorbed: NkiTensor, q_pe: NkiTensor, token: int) -> list[NkiTensor]:
    """Feature tiles of one token's queries, each [features, heads], rope last."""
    parts = []
    for part in range(latent_tiles(config)):
        parts.append(q_absorbed[:, part, token, :])
    parts.append(q_pe[0 : config.rope, token, :])
    return parts


def multiply_features(target: NkiTensor, keys: list[NkiTensor], queries: list[NkiTensor]) -> None:
    """target[key, h] = sum over feature tiles of keys[part][f, key] * queries[part][f, h]"""
    for part in range(len(queries)):
        nisa.nc_matmul(dst=target, stationary=keys[part], moving=queries[part], accumulate=part > 0)
