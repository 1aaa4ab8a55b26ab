"""What the attention kernel is told: sizes, schedule and addresses, in a class that the NKI language knows."""

from dataclasses import dataclass

from nki.language import NKIObject

P_MAX = 128
"""Partitions; keys of a key tile, features of a latent tile."""

BANK_BYTES = 2048
"""A PSUM bank, per partition."""

KEY_MAJOR_BUFFERS = 2
"""Rotating buffers of feature-major keys: one token's are made while the one before is multiplied."""

CURRENT_BUFFERS = 2
"""Rotating buffers of the current token's row."""

PACKED_BUFFERS = 2
"""Rotating buffers of rows as an fp8 cache has them: one token's come in while the one before is dequantised."""

SCALED_CODES = 128
"""Codes of an fp8 row that share a scale."""

WEIGHT_BUFFERS = 2
"""Rotating buffers of streamed tail weights."""

BANKS_IN_TURN = 2
"""PSUM banks that transposes or products of a kind take in turn: one is evicted while the next is filled."""

MASKED_SCORE = -3.0e38
"""Score of a key that is not seen: finite, and far enough below any other that its weight is exactly 0."""


def row_bytes(kv_lora_rank: int, rope: int) -> int:
    """Bytes of a row of an fp8 cache: codes, a fp32 scale for each 128, and bf16 k_pe."""
    return kv_lora_rank + 4 * (kv_lora_rank // SCALED_CODES) + 2 * rope


@dataclass(frozen=True)
class Schedule(NKIObject):
    """Other ways to run a step, each tried and slower or neutral; they are here to be measured again.

    The seed's kernel is `Schedule(stationary_weights=True)`.

    Attributes:
        head_major: scores and softmax with heads on partitions, not keys.
        latent_bands: score products of a latent tile in 32 partitions of their own, added up afterwards, rather than
            one PSUM accumulation. Only with head_major, up to 32 heads and 2 to 4 latent tiles.
        per_token_tails: out-absorb and o-projection a token at a time, reading their weights for each.
        stationary_weights: the weighted sum as a product of weights and rows, not of rows and weights.
        late_weighted_sum: a group's weighted sums issued once the next group's first token has its scores.
    """

    head_major: bool = False
    latent_bands: bool = False
    per_token_tails: bool = False
    stationary_weights: bool = False
    late_weighted_sum: bool = False


@dataclass(frozen=True)
class AttentionConfig(NKIObject):
    """Everything `mla_decode_attention` needs beside its tensors.

    Attributes:
        cores: 1 or 2.
        cores_share: "tokens" or "heads", of which each core has its part.
        n_tokens, n_heads, n_prior: sizes of a core's part of the step.
        kv_lora_rank, rope, v_head_dim, hidden: widths.
        group_tokens: tokens that share one softmax.
        key_buffers: rotating token-major key buffers; at least group_tokens.
        dma_transposed_chunks: latent tiles that DMAs transpose; the Tensor Engine does the rest.
        fp8_cache: whether cache rows are in the format of `cache_format`, not in the weights' type.
        pass_columns: columns of `hidden` accumulated at once by the o-projection.
        schedule: ways to run it that are not the default.
        addresses: first byte of each SBUF buffer in its partitions, by name.
        banks: PSUM bank of each kind of transposes and products, by name.
    """

    cores: int
    cores_share: str
    n_tokens: int
    n_heads: int
    n_prior: int
    kv_lora_rank: int
    rope: int
    v_head_dim: int
    hidden: int
    group_tokens: int
    key_buffers: int
    dma_transposed_chunks: int
    fp8_cache: bool
    pass_columns: int
    schedule: Schedule
    addresses: dict[str, int]
    banks: dict[str, int]
