"""The on-chip tensors of the attention kernel."""

from dataclasses import dataclass

import nki.language as nl
from kernels.mla_decode.config import (
    BANK_BYTES,
    CURRENT_BUFFERS,
    KEY_MAJOR_BUFFERS,
    P_MAX,
    PACKED_BUFFERS,
    WEIGHT_BUFFERS,
    AttentionConfig,
)
from kernels.mla_decode.tiling import count_tiles, latent_tiles, packed_row_bytes, prior_tiles
from nki.language import NKIObject, NkiTensor


@dataclass
class Buffers(NKIObject):
    """On-chip tensors. Lists run over rotating buffers. T key tiles, L latent tiles, g tokens of a group, h heads.

    Attributes:
        index: [128, n_tokens, T] int32, rows for the batched gather.
        natural_index: [128, n_tokens, T] uint32, the same in key order; None where no DMA transposes.
        keep: [128, n_tokens, T] uint32, 1 where a key is seen.
        ones: [128, 1] fp32.
        current_features: [128, L + 1, n_tokens], this step's rows feature-major, rope last.
        rows: [128 keys, T, rope + kv_lora_rank], token-major keys.
        packed: [128 keys, T, bytes of a row] uint8, rows as an fp8 cache has them; none for other caches.
        current: [1, rope + kv_lora_rank], this step's row of one token.
        features: [128 features, L + 1, 128 T keys], feature-major keys, rope last.
        scores: [128 keys, g, T + 1, h] fp32.
        weights: [128 keys, g, T + 1, h], softmax numerators.
        latent: [h, kv_lora_rank], one token's attention output.
        latent_features: [128, L, h, n_tokens], all tokens' attention outputs, latent-major.
        values: [v_head_dim, h, n_tokens], what the o-projection reads.
    """

    index: NkiTensor
    natural_index: NkiTensor | None
    keep: NkiTensor
    ones: NkiTensor
    current_features: NkiTensor
    rows: list[NkiTensor]
    packed: list[NkiTensor]
    current: list[NkiTensor]
    features: list[NkiTensor]
    scores: NkiTensor
    weights: NkiTensor
    partial: NkiTensor
    group_column: NkiTensor
    latent: NkiTensor
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
    loads = heads * count_tiles(config.hidden, config.pass_columns)
    natural_index = None
    if config.dma_transposed_chunks > 0:
        natural_index = place(config, "natural_index", (P_MAX, tokens, tiles), nl.uint32)
    packed = []
    if config.fp8_cache:
        packed = rotating(
            config, "packed", min(PACKED_BUFFERS, tokens), (P_MAX, tiles, packed_row_bytes(config)), nl.uint8
        )
    return Buffers(
        index=place(config, "index", (P_MAX, tokens, tiles), nl.int32),
        natural_index=natural_index,
        keep=place(config, "keep", (P_MAX, tokens, tiles), nl.uint32),
        ones=place(config, "ones", (P_MAX, 1), nl.float32),
        current_features=place(config, "current_features", (P_MAX, latents + 1, tokens), dtype),
        rows=rotating(config, "rows", config.key_buffers, (P_MAX, tiles, row), dtype),
        packed=packed,
        current=rotating(config, "current", min(CURRENT_BUFFERS, tokens), (1, row), dtype),
        features=rotating(
            config, "features", min(KEY_MAJOR_BUFFERS, tokens), (P_MAX, latents + 1, tiles * P_MAX), dtype
        ),
        scores=place(config, "scores", (P_MAX, group, tiles + 1, heads), nl.float32),
        weights=place(config, "weights", (P_MAX, group, tiles + 1, heads), dtype),
        partial=place(config, "partial", (P_MAX, group, heads), nl.float32),
        group_column=place(config, "group_column", (group * heads, 1), nl.float32),
        latent=place(config, "latent", (heads, config.kv_lora_rank), dtype),
        inverse_sum=place(config, "inverse_sum", (heads, 1), nl.float32),
        latent_features=place(config, "latent_features", (P_MAX, latents, heads, tokens), dtype),
        values=place(config, "values", (config.v_head_dim, heads, tokens), dtype),
        absorb=rotating(config, "absorb", min(WEIGHT_BUFFERS, heads), (config.v_head_dim, config.kv_lora_rank), dtype),
        absorb_features=rotating(
            config, "absorb_features", min(WEIGHT_BUFFERS, heads), (P_MAX, latents, config.v_head_dim), dtype
        ),
        o_proj=rotating(config, "o_proj", min(WEIGHT_BUFFERS, loads), (config.v_head_dim, config.pass_columns), dtype),
        output=place(config, "output", (tokens, config.pass_columns), dtype),
    )


def rotating(config: AttentionConfig, name: str, count: int, shape: tuple[int, ...], dtype: str) -> list[NkiTensor]:
    """`count` buffers of one kind."""
    buffers = []
    for i in range(count):
        buffers.append(place(config, f"{name}_{i}", shape, dtype))
    return buffers


def place(config: AttentionConfig, name: str, shape: tuple[int, ...], dtype: str) -> NkiTensor:
    """An SBUF tensor at its address of the plan."""
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf, name=name, address=(0, config.addresses[name]))


def bank(number: int, shape: tuple[int, ...], dtype: str) -> NkiTensor:
    """A PSUM tensor from the start of bank `number`."""
    return nl.ndarray(shape, dtype=dtype, buffer=nl.psum, address=(0, number * BANK_BYTES))
