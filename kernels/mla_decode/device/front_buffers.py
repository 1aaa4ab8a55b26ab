"""The on-chip tensors of the front-fold."""

from dataclasses import dataclass

import nki.language as nl
from kernels.mla_decode.device.config import BANK_BYTES, P_MAX
from kernels.mla_decode.device.front_cache_row import PackedRows, allocate_packed_rows
from kernels.mla_decode.device.front_config import FRONT_BUFFERS, FrontConfig
from kernels.mla_decode.device.placing import place, rotating
from kernels.mla_decode.device.tiling import count_tiles
from nki.language import NKIObject, NkiTensor

BANK_COLUMNS = BANK_BYTES // 4
"""fp32 columns of a PSUM bank."""


@dataclass
class FrontBuffers(NKIObject):
    """On-chip tensors, tokens on partitions unless said otherwise. g heads of a pass, R rope, C kv_lora_rank.

    Attributes:
        x: [n_tokens, hidden]; x_normed: the same, None without input norm.
        x_features: [128, hidden tiles, n_tokens], features on partitions.
        weights: [128, pass_columns] each, streamed.
        q_low: [n_tokens, q_lora] fp32; q_low_normed: in the weights' type.
        q_low_features: [128, q_lora tiles, n_tokens], features on partitions.
        q_heads: [n_tokens, g, nope + R] fp32; q_nope: [n_tokens, g, nope]; q_rope: [n_tokens, g, R], rotated.
        q_nope_features: [nope, n_tokens] each, features on partitions.
        absorb: [nope, C] each, a head's absorb weights.
        kv: [n_tokens, C + R] fp32; kv_row: [n_tokens, R + C].
        cos, sin: [n_tokens, R / 2] fp32.
        product_a, product_b: [n_tokens, g, R / 2] fp32.
        gamma_row: [1, 512] fp32 each; row_of_ones: [1, n_tokens] fp32.
        packed: rows for an fp8 cache; None for other caches.
        square_sum, inverse_rms: [n_tokens, 1] fp32; slots: [n_tokens, 1] int32.
    """

    x: NkiTensor
    x_normed: NkiTensor | None
    x_features: NkiTensor
    weights: list[NkiTensor]
    q_low: NkiTensor
    q_low_normed: NkiTensor
    q_low_features: NkiTensor
    q_heads: NkiTensor
    q_nope: NkiTensor
    q_rope: NkiTensor
    q_nope_features: list[NkiTensor]
    absorb: list[NkiTensor]
    kv: NkiTensor
    kv_row: NkiTensor
    packed: PackedRows | None
    cos: NkiTensor
    sin: NkiTensor
    product_a: NkiTensor
    product_b: NkiTensor
    gamma_row: list[NkiTensor]
    row_of_ones: NkiTensor
    square_sum: NkiTensor
    inverse_rms: NkiTensor
    slots: NkiTensor


def allocate_front(config: FrontConfig, dtype: str, normalises: bool) -> FrontBuffers:
    """Creates every buffer at its address of the plan."""
    at = config.attention
    tokens, rank, rope, heads = at.n_tokens, at.kv_lora_rank, at.rope, config.heads_per_pass
    x_tiles, q_tiles = count_tiles(at.hidden, P_MAX), count_tiles(config.q_lora, P_MAX)
    widest = max(config.q_lora, rank)
    x_normed = None
    if normalises:
        widest = max(widest, at.hidden)
        x_normed = place(at, "x_normed", (tokens, at.hidden), dtype)
    packed = None
    if at.fp8_cache:
        packed = allocate_packed_rows(at)
    weights = min(FRONT_BUFFERS, max(x_tiles, q_tiles))
    turns = min(FRONT_BUFFERS, at.n_heads)
    gammas = min(FRONT_BUFFERS, count_tiles(widest, BANK_COLUMNS))
    half = (tokens, heads, rope // 2)
    return FrontBuffers(
        x=place(at, "x", (tokens, at.hidden), dtype),
        x_normed=x_normed,
        x_features=place(at, "x_features", (P_MAX, x_tiles, tokens), dtype),
        weights=rotating(at, "front_weights", weights, (P_MAX, config.pass_columns), dtype),
        q_low=place(at, "q_low", (tokens, config.q_lora), nl.float32),
        q_low_normed=place(at, "q_low_normed", (tokens, config.q_lora), dtype),
        q_low_features=place(at, "q_low_features", (P_MAX, q_tiles, tokens), dtype),
        q_heads=place(at, "q_heads", (tokens, heads, config.nope + rope), nl.float32),
        q_nope=place(at, "q_nope", (tokens, heads, config.nope), dtype),
        q_rope=place(at, "q_rope", (tokens, heads, rope), dtype),
        q_nope_features=rotating(at, "q_nope_features", turns, (config.nope, tokens), dtype),
        absorb=rotating(at, "q_absorb", turns, (config.nope, rank), dtype),
        kv=place(at, "kv", (tokens, 1, rank + rope), nl.float32),
        kv_row=place(at, "kv_row", (tokens, 1, rope + rank), dtype),
        packed=packed,
        cos=place(at, "cos", (tokens, 1, rope // 2), nl.float32),
        sin=place(at, "sin", (tokens, 1, rope // 2), nl.float32),
        product_a=place(at, "product_a", half, nl.float32),
        product_b=place(at, "product_b", half, nl.float32),
        gamma_row=rotating(at, "gamma_row", gammas, (1, min(widest, BANK_COLUMNS)), nl.float32),
        row_of_ones=place(at, "row_of_ones", (1, tokens), nl.float32),
        square_sum=place(at, "square_sum", (tokens, 1), nl.float32),
        inverse_rms=place(at, "inverse_rms", (tokens, 1), nl.float32),
        slots=place(at, "slots", (tokens, 1), nl.int32),
    )
