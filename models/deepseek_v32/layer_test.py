"""One layer at a time against transformers, given the same input: bf16, positions, and the real selection limit."""

import dataclasses

import pytest
import torch

from kernels.mla_decode.oracle.front_reference import rotate
from models.deepseek_v32 import checkpoint, indexer, mlp, rope
from models.deepseek_v32.compare import measure
from models.deepseek_v32.testing import (
    chosen,
    layer_inputs,
    make_oracle,
    random_prompts,
    run_oracle,
    run_oracle_layer,
    run_our_layer,
    save,
    tiny_oracle,
    tiny_weights,
)
from models.deepseek_v32.tiny import TINY

BF16, FP32 = torch.bfloat16, torch.float32
TOKENS, PREFILLED = 100, 36
CHOICES = ("selected", "experts", "expert_weights")


@pytest.fixture(scope="module")
def inputs():
    """What goes into each layer, [tokens, hidden]."""
    return layer_inputs(TOKENS)


@pytest.mark.parametrize("layer", range(TINY.num_hidden_layers))
def test_bf16(layer, inputs):
    """Given bf16 input and the same choices, a layer keeps cosine 0.9999; choices differ only where they nearly tie."""
    hidden = inputs[layer].to(BF16)
    made = run_our_layer(TINY, [tiny_weights(BF16).layers[layer]], layer, hidden, range(PREFILLED, TOKENS))
    expected = run_oracle_layer(tiny_oracle(), layer, hidden)
    prefix = f"layers.{layer}."
    made, expected = ({name.removeprefix(prefix): value for name, value in seen.items()} for seen in (made, expected))
    same = require_near_ties(made, expected)
    if not TINY.is_dense(layer):
        same &= require_good_experts(layer, made, expected)
    print(f"layer {layer}: {int(same.sum())} of {TOKENS} tokens with the same choices")
    assert same.float().mean() > 0.85
    for name in sorted(expected.keys() - {*CHOICES}):
        difference = measure(made[name][same], expected[name][same], BF16)
        print(f"  {name}: {difference}")
        assert difference.cosine > 0.9999, (name, difference)
    assert (
        measure(made["layer"][PREFILLED:][same[PREFILLED:]], expected["layer"][PREFILLED:][same[PREFILLED:]]).cosine
        > 0.9999
    )


@pytest.mark.parametrize("layer", range(TINY.num_hidden_layers))
def test_bf16_given_transformers_choices(layer, inputs, monkeypatch):
    """Told which positions and experts to take, every token keeps cosine 0.9999: only near ties set layers apart."""
    hidden, prefix = inputs[layer].to(BF16), f"layers.{layer}."
    expected = run_oracle_layer(tiny_oracle(), layer, hidden)
    to_come = list(range(TOKENS))

    def their_positions(_config, _queries, _head_weights, _index_keys, step):
        theirs = expected[f"{prefix}selected"][step.positions.long()].int()
        return theirs.masked_fill(theirs > step.positions[:, None], indexer.NO_POSITION)

    def their_experts(_config, _weights, x):
        rows = [to_come.pop(0) for _ in x]
        return mlp.Routing(expected[f"{prefix}experts"][rows], expected[f"{prefix}expert_weights"][rows])

    monkeypatch.setattr(indexer, "select", their_positions)
    monkeypatch.setattr(mlp, "route", their_experts)
    made = run_our_layer(TINY, [tiny_weights(BF16).layers[layer]], layer, hidden, range(PREFILLED, TOKENS))
    for name in ("attention", "mlp", "layer"):
        difference = measure(made[prefix + name], expected[prefix + name], BF16)
        print(f"layer {layer}, all {TOKENS} tokens, {name}: {difference}")
        assert difference.cosine > 0.9999, (name, difference)


def test_what_chooses_is_computed_in_fp32():
    """Scores of heads, and with them the selection, do not depend on how bf16 rounds."""
    weights = tiny_weights(BF16).layers[1].indexer
    x = torch.randn(50, TINY.hidden_size, generator=torch.Generator().manual_seed(2)).to(BF16)
    exact = x.double() @ weights.head_weights.double().T * (TINY.index_n_heads * TINY.index_head_dim) ** -0.5
    assert measure(indexer.weigh_heads(TINY, weights, x).double(), exact).relative_rms < 1e-6


def require_near_ties(made, expected):
    """Where the selections differ, what was left out scores almost what was taken in. Returns where they do not."""
    scores = torch.einsum(
        "th,thk->tk",
        expected["index_head_weights"],
        torch.relu(torch.einsum("thd,kd->thk", expected["index_queries"], expected["index_keys"])),
    )
    visible = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    ours, theirs = (chosen(seen["selected"], TOKENS) & visible for seen in (made, expected))
    assert torch.equal(ours.sum(dim=-1), theirs.sum(dim=-1))
    same = (ours == theirs).all(dim=-1)
    for token in (~same).nonzero()[:, 0].tolist():
        seen = scores[token, : token + 1]
        lost, won = scores[token, theirs[token] & ~ours[token]], scores[token, ours[token] & ~theirs[token]]
        assert lost.max() - won.min() < 0.03 * seen.std(), (token, lost, won, seen.std())
    return same


def require_good_experts(layer, made, expected):
    """Other experts than transformers' are as good to a hundredth. Returns where they are the same."""
    gate = tiny_oracle().model.layers[layer].mlp.gate
    corrected = (expected["mlp_norm"] @ gate.weight.T).sigmoid() + gate.e_score_correction_bias
    ours, theirs = (chosen(seen["experts"], TINY.n_routed_experts) for seen in (made, expected))
    value = (corrected * ours).sum(dim=-1) - (corrected * theirs).sum(dim=-1)
    assert value.abs().max() < 0.01
    return (ours == theirs).all(dim=-1)


LIMIT = dataclasses.replace(TINY, index_topk=2048, num_hidden_layers=1)
LENGTHS = (1, 63, 64, 2047, 2048, 2049)


@pytest.fixture(scope="module")
def at_the_limit(tmp_path_factory):
    """2,049 tokens through a layer with the published selection limit: ours, transformers', and its dense attention."""
    oracle = make_oracle(LIMIT)
    config, weights = checkpoint.load(save(oracle, tmp_path_factory.mktemp("limit")), FP32)
    hidden = torch.randn(LENGTHS[-1], config.hidden_size, generator=torch.Generator().manual_seed(3))
    ours = run_our_layer(config, weights.layers, 0, hidden, [length - 1 for length in LENGTHS])
    sparse = run_oracle_layer(oracle, 0, hidden)
    oracle.model.layers[0].self_attn.indexer.index_topk = 1 << 20
    dense = run_oracle_layer(oracle, 0, hidden)
    return tuple(seen["layers.0.attention"] for seen in (ours, sparse, dense))


@pytest.mark.parametrize("length", LENGTHS)
def test_m5_lengths_about_the_limit(length, at_the_limit):
    """Up to 2048 keys attention is dense; with 2049 one is left out."""
    ours, sparse, dense = (attended[length - 1] for attended in at_the_limit)
    assert measure(ours, sparse).relative_rms < 4e-6
    if length <= LIMIT.index_topk:
        assert measure(ours, dense).relative_rms < 4e-6
    else:
        assert measure(ours, dense).relative_rms > 1e-4


def test_m1_each_part_has_its_own_rope_layout():
    """The attention's cache row is rotated in interleaved pairs and the indexer's key half-split, not the other way."""
    tokens = random_prompts(20)[0]
    oracle = tiny_oracle()
    seen = run_oracle(oracle, tokens)
    at, width = oracle.model.layers[1].self_attn, TINY.qk_rope_head_dim
    cos, sin = rope.cos_sin(TINY, torch.arange(len(tokens)))
    x = seen["layers.1.input_norm"]
    plain_row = at.kv_a_proj_with_mqa(x)[:, -width:]
    plain_key = at.indexer.k_norm(at.indexer.wk(x))[:, :width]
    for plain, turned, right, wrong in (
        (plain_row, seen["layers.1.cache_row"][:, :width], "interleaved", "half_split"),
        (plain_key, seen["layers.1.index_keys"][:, :width], "half_split", "interleaved"),
    ):
        made = {
            "interleaved": rotate(plain, cos, sin, layout="interleaved"),
            "half_split": rotate(plain, cos, sin, layout="half_split"),
        }
        assert measure(made[right], turned).relative_rms < 1e-5
        assert measure(made[wrong], turned).relative_rms > 0.1


def test_m7_yarn_shows_behind_position_0(inputs):
    """Without YaRN's scale and frequencies the layer differs from transformers', but not at position 0."""
    weights = [tiny_weights(FP32).layers[1]]
    expected = run_oracle_layer(tiny_oracle(), 1, inputs[1][:24])["layers.1.attention"]
    with_yarn = run_our_layer(TINY, weights, 1, inputs[1][:24], range(24))["layers.1.attention"]
    without = run_our_layer(dataclasses.replace(TINY, yarn=None), weights, 1, inputs[1][:24], range(24))
    without = without["layers.1.attention"]
    assert measure(with_yarn, expected).relative_rms < 4e-6
    assert measure(without[:1], expected[:1]).relative_rms < 4e-6
    for own in range(1, 24):
        assert measure(without[own], expected[own]).relative_rms > 1e-3
