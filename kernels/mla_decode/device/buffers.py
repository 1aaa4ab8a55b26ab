"""The on-chip tensors of the attention kernel."""

from dataclasses import dataclass

import nki.language as nl
from kernels.mla_decode.device.config import (
    CURRENT_BUFFERS,
    KEY_MAJOR_BUFFERS,
    P_MAX,
    PACKED_BUFFERS,
    WEIGHT_BUFFERS,
    AttentionConfig,
)
from kernels.mla_decode.device.head_major import HeadMajor, allocate_head_major
from kernels.mla_decode.device.placing import place, rotating
from kernels.mla_decode.device.tiling import (
    all_heads,
    all_tokens,
    count_tiles,
    latent_tiles,
    own_columns,
    packed_row_bytes,
    prior_tiles,
)
from nki.language import NKIObject, NkiTensor


@dataclass
class KeyMajor(NKIObject):
    """Tensors of scores and softmax with keys on partitions. T key tiles, g tokens of a group, h heads.

    Attributes:
        scores: [128 keys, g, T + 1, h] fp32.
        partial: [128, g, h] fp32, a partition's maxima, then what it adds to the denominators.
        group_column: [g h, 1] fp32, the maxima.
        ones: [128, 1] fp32.
    """

    scores: NkiTensor
    partial: NkiTensor
    group_column: NkiTensor
    ones: NkiTensor


@dataclass
class Buffers(NKIObject):
    """On-chip tensors. Lists run over rotating buffers. T key tiles, L latent tiles, g tokens of a group, h heads.

    Attributes:
        index: [128, n_tokens, T] int32, rows for the batched gather.
        natural_index: [128, n_tokens, T] uint32, the same in key order; None where no DMA transposes.
        keep: [128, n_tokens, T] uint32, or fp32 in the head-major schedule, 1 where a key is seen.
        current_features: [128, L + 1, n_tokens], this step's rows feature-major, rope last.
        rows: [128 keys, T, rope + kv_lora_rank], token-major keys.
        packed: [128 keys, T, bytes of a row] uint8, rows as an fp8 cache has them; none for other caches.
        current: [1, rope + kv_lora_rank], this step's row of one token.
        features: [128 features, L + 1, 128 T keys], feature-major keys, rope last.
        key_major, head_major: one of them, as the schedule says; the other is None.
        weights: [128 keys, g, T + 1, h], softmax numerators.
        latent: [h, kv_lora_rank], one token's attention output; None unless weights are stationary.
        inverse_sum: [128, h] fp32, one over a token's denominators, on every partition.
        latent_features: [128, L, h, n_tokens], all tokens' attention outputs, latent-major.
        values: [v_head_dim, cores, h, n_tokens], what the o-projection reads: each core's part, and the other's.
    """

    index: NkiTensor
    natural_index: NkiTensor | None
    keep: NkiTensor
    current_features: NkiTensor
    rows: list[NkiTensor]
    packed: list[NkiTensor]
    current: list[NkiTensor]
    features: list[NkiTensor]
    key_major: KeyMajor | None
    head_major: HeadMajor | None
    weights: NkiTensor
    latent: NkiTensor | None
    inverse_sum: NkiTensor
    latent_features: NkiTensor
    values: NkiTensor
    absorb: list[NkiTensor]
    absorb_features: list[NkiTensor]
    o_proj: list[NkiTensor]
    output: NkiTensor


def allocate(config: AttentionConfig, dtype: str) -> Buffers:
    """Creates every buffer at its address of the plan."""
    tokens, heads, tiles, latents = config.n_tokens, config.n_heads, prior_tiles(config), latent_tiles(config)
    row = config.rope + config.kv_lora_rank
    group = config.group_tokens
    first_column, stop_column = own_columns(config)
    loads = all_heads(config) * count_tiles(stop_column - first_column, config.pass_columns)
    natural_index = None
    if config.dma_transposed_chunks > 0:
        natural_index = place(config, "natural_index", (P_MAX, tokens, tiles), nl.uint32)
    packed = []
    if config.fp8_cache:
        packed = rotating(
            config, "packed", min(PACKED_BUFFERS, tokens), (P_MAX, tiles, packed_row_bytes(config)), nl.uint8
        )
    latent = None
    if config.schedule.stationary_weights:
        latent = place(config, "latent", (heads, config.kv_lora_rank), dtype)
    key_major, head_major = None, None
    if config.schedule.head_major:
        head_major = allocate_head_major(config, dtype)
    else:
        key_major = allocate_key_major(config)
    return Buffers(
        index=place(config, "index", (P_MAX, tokens, tiles), nl.int32),
        natural_index=natural_index,
        keep=place(config, "keep", (P_MAX, tokens, tiles), nl.float32 if config.schedule.head_major else nl.uint32),
        current_features=place(config, "current_features", (P_MAX, latents + 1, tokens), dtype),
        rows=rotating(config, "rows", config.key_buffers, (P_MAX, tiles, row), dtype),
        packed=packed,
        current=rotating(config, "current", min(CURRENT_BUFFERS, tokens), (1, row), dtype),
        features=rotating(
            config, "features", min(KEY_MAJOR_BUFFERS, tokens), (P_MAX, latents + 1, tiles * P_MAX), dtype
        ),
        key_major=key_major,
        head_major=head_major,
        weights=place(config, "weights", (P_MAX, group, tiles + 1, heads), dtype),
        latent=latent,
        inverse_sum=place(config, "inverse_sum", (P_MAX, heads), nl.float32),
        latent_features=place(config, "latent_features", (P_MAX, latents, heads, tokens), dtype),
        values=place(config, "values", (config.v_head_dim, config.cores, heads, tokens), dtype),
        absorb=rotating(config, "absorb", min(WEIGHT_BUFFERS, heads), (config.v_head_dim, config.kv_lora_rank), dtype),
        absorb_features=rotating(
            config, "absorb_features", min(WEIGHT_BUFFERS, heads), (P_MAX, latents, config.v_head_dim), dtype
        ),
        o_proj=rotating(config, "o_proj", min(WEIGHT_BUFFERS, loads), (config.v_head_dim, config.pass_columns), dtype),
        output=place(config, "output", (all_tokens(config), config.pass_columns), dtype),
    )


def allocate_key_major(config: AttentionConfig) -> KeyMajor:
    """Creates its buffers at their addresses of the plan."""
    group, heads = config.group_tokens, config.n_heads
    return KeyMajor(
        scores=place(config, "scores", (P_MAX, group, prior_tiles(config) + 1, heads), nl.float32),
        partial=place(config, "partial", (P_MAX, group, heads), nl.float32),
        group_column=place(config, "group_column", (group * heads, 1), nl.float32),
        ones=place(config, "ones", (P_MAX, 1), nl.float32),
    )
