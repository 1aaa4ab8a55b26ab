"""Router and experts against transformers."""

import dataclasses

import pytest
import torch
from transformers import DeepseekV32Config
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32MoE

from models.deepseek_v32 import mlp
from models.deepseek_v32.compare import measure
from models.deepseek_v32.tiny import TINY
from models.deepseek_v32.weights import ExpertWeights, MlpWeights

CASES = {
    "tiny": TINY,
    "one_group_of_all": dataclasses.replace(TINY, n_group=1, topk_group=1),
    "one_group_of_eight": dataclasses.replace(TINY, n_group=8, topk_group=1, num_experts_per_tok=2),
    "all_groups": dataclasses.replace(TINY, topk_group=4, num_experts_per_tok=9),
    "shares_as_they_are": dataclasses.replace(TINY, norm_topk_prob=False),
    "two_shared": dataclasses.replace(TINY, n_shared_experts=2),
}


def make(config, correction):
    """A random mixture of transformers', and the same weights as ours."""
    names = [field.name for field in dataclasses.fields(config) if field.name not in ("yarn", "rope_theta")]
    theirs = DeepseekV32MoE(DeepseekV32Config(**{name: getattr(config, name) for name in names}))
    theirs.requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for name, tensor in theirs.state_dict().items():
        size = correction if name.endswith("bias") else tensor.shape[-1] ** -0.5
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * size)
    both, down = theirs.experts.gate_up_proj, theirs.experts.down_proj
    experts = tuple(
        MlpWeights(gate_up.chunk(2)[0], gate_up.chunk(2)[1], out) for gate_up, out in zip(both, down, strict=True)
    )
    shared = theirs.shared_experts
    ours = MlpWeights(shared.gate_proj.weight, shared.up_proj.weight, shared.down_proj.weight)
    return theirs, ExpertWeights(theirs.gate.weight, theirs.gate.e_score_correction_bias, experts, ours)


@pytest.mark.parametrize("correction", [0.0, 0.1, 3.0])
@pytest.mark.parametrize("config", CASES.values(), ids=CASES.keys())
def test_as_transformers(config, correction):
    """Corrections up to those that alone decide, and that would dominate if they counted in the sum."""
    theirs, weights = make(config, correction)
    x = torch.randn(50, config.hidden_size, generator=torch.Generator().manual_seed(1))
    routing = mlp.route(config, weights, x)
    mixed = mlp.mix_experts(weights, x, routing)
    _, shares, experts = theirs.gate(x)
    order, their_order = routing.experts.argsort(dim=-1), experts.argsort(dim=-1)
    assert torch.equal(routing.experts.gather(1, order), experts.gather(1, their_order))
    assert measure(routing.weights.gather(1, order), shares.gather(1, their_order)).relative_rms < 1e-6
    assert measure(mixed, theirs(x[None])[0]).relative_rms < 1e-6


def test_a_token_of_nan_stays_alone():
    _, weights = make(TINY, 0.1)
    x = torch.randn(6, TINY.hidden_size, generator=torch.Generator().manual_seed(1))
    bad = x.clone()
    bad[2] = torch.nan
    ours = mlp.mix_experts(weights, bad, mlp.route(TINY, weights, bad))
    right = mlp.mix_experts(weights, x, mlp.route(TINY, weights, x))
    others = [0, 1, 3, 4, 5]
    assert torch.equal(ours[others], right[others])
    assert ours[2].isnan().all()
