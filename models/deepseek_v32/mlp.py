"""Dense MLP and mixture of experts. Results are a rank's part, before the all-reduce."""

from __future__ import annotations

from typing import NamedTuple

import torch

from models.deepseek_v32.config import ModelConfig
from models.deepseek_v32.weights import ExpertWeights, MlpWeights


def dense(weights: MlpWeights, x: torch.Tensor) -> torch.Tensor:
    """silu(x @ gate) * (x @ up) @ down, [n, hidden] to [n, hidden]."""
    linear = torch.nn.functional.linear
    return linear(torch.nn.functional.silu(linear(x, weights.gate)) * linear(x, weights.up), weights.down)


class Routing(NamedTuple):
    """[n, num_experts_per_tok]: the experts of each token, int64, and what they count, float32."""

    experts: torch.Tensor
    weights: torch.Tensor


def route(config: ModelConfig, weights: ExpertWeights, x: torch.Tensor) -> Routing:
    """Chooses experts, in fp32.

    An expert is chosen by its sigmoid plus correction, among the groups whose two best such numbers have the largest
    sum. It counts by its sigmoid alone.
    """
    scores = torch.nn.functional.linear(x.float(), weights.router).sigmoid()
    corrected = (scores + weights.correction).unflatten(-1, (config.n_group, -1))
    best = corrected.topk(2, dim=-1).values.sum(dim=-1).topk(config.topk_group, dim=-1).indices
    allowed = torch.zeros(corrected.shape[:2], dtype=torch.bool).scatter(1, best, True)
    eligible = corrected.masked_fill(~allowed[..., None], -torch.inf).flatten(1)
    chosen = eligible.topk(config.num_experts_per_tok, dim=-1).indices
    shares = scores.gather(1, chosen)
    if config.norm_topk_prob:
        shares = shares / (shares.sum(dim=-1, keepdim=True) + 1e-20)
    return Routing(chosen, shares * config.routed_scaling_factor)


def mix_experts(weights: ExpertWeights, x: torch.Tensor, routing: Routing) -> torch.Tensor:
    """Weighted sum of each token's experts plus the shared one, added up in fp32, [n, hidden].

    Each expert that is chosen at all takes all tokens, and a select drops those that did not choose it. A step's few
    tokens cost no more than the expert's weights do, and no token's result depends on who else chose its experts.
    """
    total = dense(weights.shared, x).float()
    for expert in routing.experts.unique().tolist():
        chosen = routing.experts == expert
        share = torch.where(chosen, routing.weights, 0.0).sum(dim=-1, keepdim=True)
        part = dense(weights.experts[expert], x).float() * share
        total = torch.where(chosen.any(dim=-1, keepdim=True), total + part, total)
    return total.to(x.dtype)
