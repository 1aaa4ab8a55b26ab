"""A model of DeepSeek-V3.2's structure that is small enough to be watched."""

from __future__ import annotations

import zlib

import torch

from models.deepseek_v32.config import ModelConfig, Yarn
from models.deepseek_v32.packing import Packed
from models.deepseek_v32.weights import ModelWeights, pack

TINY = ModelConfig(
    vocab_size=256,
    hidden_size=96,
    intermediate_size=160,
    moe_intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    n_routed_experts=16,
    n_shared_experts=1,
    num_experts_per_tok=4,
    n_group=4,
    topk_group=2,
    routed_scaling_factor=2.5,
    norm_topk_prob=True,
    first_k_dense_replace=1,
    q_lora_rank=64,
    kv_lora_rank=128,
    qk_nope_head_dim=32,
    qk_rope_head_dim=16,
    v_head_dim=24,
    index_n_heads=16,
    index_head_dim=32,
    index_topk=24,
    max_position_embeddings=4096,
    rope_theta=10000.0,
    yarn=Yarn(
        factor=40.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0
    ),
)
"""One dense layer and two of experts. 16 indexer heads, so that no key's scores are all cut off at 0 and tie."""


def random_weights(dtype: torch.dtype, rank: int, ranks: int, seed: int = 0) -> ModelWeights:
    """A rank's part of a random `TINY`: projections keep their input's size, norms are 1."""

    def read(packed: Packed, part: tuple[slice, ...]) -> torch.Tensor:
        if "norm" in packed.name:
            whole = (
                torch.zeros(packed.source_shape) if packed.name.endswith("bias") else torch.ones(packed.source_shape)
            )
        else:
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {packed.source}".encode()))
            whole = torch.randn(packed.source_shape, generator=generator) * packed.source_shape[-1] ** -0.5
        return whole[part]

    return pack(TINY, read, dtype, rank, ranks)
