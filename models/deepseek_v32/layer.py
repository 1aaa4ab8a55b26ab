"""One decode layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from models.deepseek_v32 import indexer, mlp
from models.deepseek_v32.cache import PagedCache
from models.deepseek_v32.config import ModelConfig
from models.deepseek_v32.norm import rms_norm
from models.deepseek_v32.step import Step
from models.deepseek_v32.weights import AttentionWeights, ExpertWeights, LayerWeights, MlpWeights

Attend = Callable[[AttentionWeights, torch.Tensor, torch.Tensor, torch.Tensor, Step], torch.Tensor]
"""A rank's attention block: its weights, hidden states, selection, latent cache and step to [n, hidden]."""

AddUp = Callable[[Sequence[torch.Tensor]], torch.Tensor]
"""The sum over all ranks, from the parts of those in this process."""

Observe = Callable[[str, torch.Tensor], None]
"""Is shown intermediates by name."""


def ignore(name: str, value: torch.Tensor) -> None:
    """Observes nothing."""


def run_layer(
    config: ModelConfig,
    ranks: Sequence[LayerWeights],
    layer: int,
    hidden: torch.Tensor,
    cache: PagedCache,
    step: Step,
    attend: Attend,
    add_up: AddUp,
    observe: Observe = ignore,
) -> torch.Tensor:
    """Hidden states [n, hidden] through a layer; writes the step's rows and indexer keys to the cache.

    Args:
        config: the model.
        ranks: the layer's weights, of each rank in this process.
        layer: its number.
        hidden: [n, hidden].
        cache, step: where the tokens and those before them are.
        attend, add_up: how attention and the sum over ranks are computed.
        observe: is shown intermediates.
    """
    selected = _select(config, ranks[0], layer, hidden, cache, step, observe)
    latent = cache.latent[layer]
    attended = add_up([attend(own.attention, hidden, selected, latent, step) for own in ranks])
    observe("attention", attended)
    observe("cache_row", cache.latent_rows(layer)[step.slots.long()])
    hidden = hidden + attended
    observe("after_attention", hidden)
    x = rms_norm(hidden, ranks[0].mlp_norm)
    observe("mlp_norm", x)
    mixed = add_up(_mlp_parts(config, ranks, x, observe))
    observe("mlp", mixed)
    hidden = hidden + mixed
    observe("layer", hidden)
    return hidden


def _select(
    config: ModelConfig,
    weights: LayerWeights,
    layer: int,
    hidden: torch.Tensor,
    cache: PagedCache,
    step: Step,
    observe: Observe,
) -> torch.Tensor:
    """Runs the indexer, which every rank does alike."""
    x = rms_norm(hidden, weights.attention.input_norm)
    observe("input_norm", x)
    q_low = rms_norm(x @ weights.attention.wq_a, weights.attention.q_norm)
    observe("q_low", q_low)
    keys = indexer.make_keys(config, weights.indexer, x, step)
    observe("index_keys", keys)
    cache.index_keys[layer][step.slots.long()] = keys
    queries = indexer.make_queries(config, weights.indexer, q_low, step)
    observe("index_queries", queries)
    head_weights = indexer.weigh_heads(config, weights.indexer, x)
    observe("index_head_weights", head_weights)
    selected = indexer.select(config, queries, head_weights, cache.index_keys[layer], step)
    observe("selected", selected)
    return selected


def _mlp_parts(
    config: ModelConfig, ranks: Sequence[LayerWeights], x: torch.Tensor, observe: Observe
) -> list[torch.Tensor]:
    """Every rank's part; all ranks choose the same experts."""
    first = ranks[0].mlp
    if isinstance(first, MlpWeights):
        return [mlp.dense(own.mlp, x) for own in ranks if isinstance(own.mlp, MlpWeights)]
    routing = mlp.route(config, first, x)
    observe("experts", routing.experts)
    observe("expert_weights", routing.weights)
    return [mlp.mix_experts(own.mlp, x, routing) for own in ranks if isinstance(own.mlp, ExpertWeights)]
