"""The lightning indexer: which positions a token's attention looks at.

Its keys and queries are rotated half-split, pairs (i, i + rope / 2), unlike those of the attention.
"""

from __future__ import annotations

import torch

from kernels.mla_decode.oracle.front_reference import rotate
from models.deepseek_v32.config import NORM_EPS, ModelConfig
from models.deepseek_v32.step import Step
from models.deepseek_v32.weights import IndexerWeights

NO_POSITION = -1
"""Where a token has fewer positions than the selection is wide."""


def make_keys(config: ModelConfig, weights: IndexerWeights, x: torch.Tensor, step: Step) -> torch.Tensor:
    """Keys [n, dim] of normalised hidden states [n, hidden]: LayerNorm, then RoPE on the first features; in fp32."""
    keys = torch.nn.functional.linear(x, weights.wk).float()
    keys = torch.nn.functional.layer_norm(keys, keys.shape[-1:], weights.k_norm, weights.k_norm_bias, NORM_EPS)
    return _rotate_first(config, keys, step.cos, step.sin).to(x.dtype)


def make_queries(config: ModelConfig, weights: IndexerWeights, q_low: torch.Tensor, step: Step) -> torch.Tensor:
    """Queries [n, heads, dim] of the attention's normalised low-rank queries [n, q_lora]."""
    queries = torch.nn.functional.linear(q_low, weights.wq_b).float().unflatten(-1, (config.index_n_heads, -1))
    return _rotate_first(config, queries, step.cos[:, None], step.sin[:, None]).to(q_low.dtype)


def _rotate_first(config: ModelConfig, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    turned, kept = x.split([config.qk_rope_head_dim, x.shape[-1] - config.qk_rope_head_dim], dim=-1)
    return torch.cat([rotate(turned, cos, sin, layout="half_split"), kept], dim=-1)


def weigh_heads(config: ModelConfig, weights: IndexerWeights, x: torch.Tensor) -> torch.Tensor:
    """[n, heads] float32: what each head's scores count."""
    size = (config.index_n_heads * config.index_head_dim) ** -0.5
    return torch.nn.functional.linear(x.float(), weights.head_weights) * size


def score(queries: torch.Tensor, head_weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """One token's score of every key, in fp32: sum over heads of weight * relu(query . key).

    Args:
        queries: [heads, dim]; head_weights: [heads]; keys: [n_keys, dim].

    Returns:
        [n_keys].
    """
    return head_weights @ torch.relu(queries.float() @ keys.float().T)


def select(
    config: ModelConfig, queries: torch.Tensor, head_weights: torch.Tensor, index_keys: torch.Tensor, step: Step
) -> torch.Tensor:
    """The positions up to its own that each token scores highest, its own among them or not.

    Args:
        config: index_topk is how many.
        queries: [n, heads, dim]; head_weights: [n, heads].
        index_keys: [cache rows, dim], those of this step included.
        step: tokens and where their sequences are cached.

    Returns:
        [n, index_topk] int32 in no particular order, then `NO_POSITION`.
    """
    selected = torch.full((len(queries), config.index_topk), NO_POSITION, dtype=torch.int32)
    for token, own in enumerate(step.positions.tolist()):
        seen = torch.arange(own + 1)
        if own >= config.index_topk:
            keys = index_keys[step.rows_of(token, seen)]
            seen = score(queries[token], head_weights[token], keys).topk(config.index_topk, sorted=False).indices
        selected[token, : len(seen)] = seen.int()
    return selected
