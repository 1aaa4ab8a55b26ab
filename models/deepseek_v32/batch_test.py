"""Sequences that share a cache: refused before work, and none changes another's output."""

import dataclasses

import pytest
import torch

from models.deepseek_v32.attention import Device
from models.deepseek_v32.blocks import CacheExhaustedError
from models.deepseek_v32.compare import measure
from models.deepseek_v32.config import PUBLISHED
from models.deepseek_v32.generation import generate, greedy
from models.deepseek_v32.model import Limits, Model, require_servable
from models.deepseek_v32.ranks import LocalRanks
from models.deepseek_v32.testing import BLOCK_SIZE, random_prompts, run_oracle, tiny_oracle, tiny_weights
from models.deepseek_v32.tiny import TINY

FP32 = torch.float32
NAN_TOKEN = 255


def make(n_blocks=40, batch=4, weights=None, config=TINY):
    return Model(config, [weights or tiny_weights(FP32)], Limits(batch, n_blocks, BLOCK_SIZE))


def decode(model, names, logits, steps):
    """Logits of some greedy steps, [steps, n, vocabulary]."""
    found = []
    for _ in range(steps):
        logits = model.decode(dict(zip(names, greedy(logits), strict=True)))
        found.append(logits)
    return torch.stack(found)


def with_nan():
    """Weights with which one token makes a whole sequence NaN."""
    weights = tiny_weights(FP32)
    embedding = weights.embedding.clone()
    embedding[NAN_TOKEN] = torch.nan
    return dataclasses.replace(weights, embedding=embedding)


def test_a_sequence_of_nan_changes_no_other():
    """Bit for bit, while it is there and in the blocks that it leaves behind."""
    prompts = [[token % NAN_TOKEN for token in prompt] for prompt in random_prompts(9, 30, 20)]
    good, bad = make(weights=with_nan()), make(weights=with_nan())
    names, logits = good.add(prompts)
    prompts[1][4] = NAN_TOKEN
    bad_names, bad_logits = bad.add(prompts)
    assert bad_names == names
    assert bad_logits[1].isnan().all()
    for _ in range(6):
        tokens = greedy(logits)
        logits = good.decode(dict(zip(names, tokens, strict=True)))
        bad_logits = bad.decode(dict(zip(names, tokens, strict=True)))
        assert torch.equal(bad_logits[[0, 2]], logits[[0, 2]])
        assert bad_logits[1].isnan().all()
    for model in (good, bad):
        model.remove(names[1])
    (late,) = random_prompts(40, seed=9)
    late = [token % NAN_TOKEN for token in late]
    (name,), logits = good.add([late])
    _, bad_logits = bad.add([late])
    assert torch.equal(bad_logits, logits)
    assert torch.equal(decode(bad, [name], bad_logits, 3), decode(good, [name], logits, 3))


def test_blocks_are_reused():
    """A sequence in blocks that others left gives what transformers gives."""
    model = make(n_blocks=6, batch=2)
    names, _ = model.add(random_prompts(20, 20))
    for name in names:
        model.remove(name)
    (prompt,) = random_prompts(40, seed=5)
    (name,), logits = model.add([prompt])
    sequence = list(prompt)
    for _ in range(8):
        sequence += greedy(logits)
        logits = model.decode({name: sequence[-1]})
    assert run_oracle(tiny_oracle(), sequence)["logits"][39:-1].argmax(dim=-1).tolist() == sequence[40:]


def test_exhausted_cache_changes_nothing():
    """The step that finds no block is refused whole; once a sequence has gone it is as if nothing had been tried."""
    model, undisturbed = make(n_blocks=4, batch=2), make(n_blocks=8, batch=2)
    prompts = random_prompts(16, 15)
    names, logits = model.add(prompts)
    undisturbed.add(prompts)
    tokens = dict(zip(names, greedy(logits), strict=True))
    with pytest.raises(
        CacheExhaustedError, match="sequences 0 need 1 more cache blocks of 8 positions; 0 of 4 are free"
    ):
        model.decode(tokens)
    assert model.lengths == {0: 16, 1: 15}
    model.remove(1)
    undisturbed.remove(1)
    assert torch.equal(model.decode({0: tokens[0]}), undisturbed.decode({0: tokens[0]}))


def test_neighbours_change_nothing_beyond_rounding():
    prompts = random_prompts(30, 7, 45)
    together = make()
    names, logits = together.add(prompts)
    many = decode(together, names, logits, 5)
    for row, prompt in enumerate(prompts):
        alone = make()
        (name,), logits = alone.add([prompt])
        single = decode(alone, [name], logits, 5)[:, 0]
        assert measure(many[:, row], single).relative_rms < 4e-6


def test_two_cores_give_what_one_gives():
    """Within rounding: of even batches, whose tokens the cores share, and of odd ones, whose heads they share."""
    logits = []
    for device in (Device("trn2", 1), Device("trn2", 2), Device("trn3", 2)):
        model = Model(TINY, [tiny_weights(FP32)], Limits(4, 40, BLOCK_SIZE), device=device)
        names, first = model.add(random_prompts(30, 7, 45, 12))
        even = decode(model, names, first, 2)
        model.remove(names[3])
        logits.append((even, decode(model, names[:3], even[-1, :3], 2)))
    for even, odd in logits[1:]:
        assert measure(even, logits[0][0]).relative_rms < 4e-6
        assert measure(odd, logits[0][1]).relative_rms < 4e-6


def test_an_odd_batch_of_ranks_with_one_head_runs_on_one_core():
    """There is nothing that two cores could halve; whoever may have two sequences may have one."""
    ranks, device = LocalRanks(TINY.num_attention_heads), Device("trn2", 2)
    weights = [tiny_weights(FP32, rank, ranks.size) for rank in ranks.here]
    model = Model(TINY, weights, Limits(3, 40, BLOCK_SIZE), ranks=ranks, device=device)
    names, logits = model.add(random_prompts(30, 7, 45))
    found = decode(model, names, logits, 1)
    alone = make()
    names, logits = alone.add(random_prompts(30, 7, 45))
    assert measure(found, decode(alone, names, logits, 1)).relative_rms < 4e-6


def test_every_smaller_batch_is_servable():
    """Two cores halve the memory of an even batch; what is left of it when one ends may have to run on one core."""
    odd_heads = dataclasses.replace(PUBLISHED, num_attention_heads=127, vocab_size=127, intermediate_size=127)
    require_servable(odd_heads, 1, 54, torch.bfloat16, Device("trn2", 2))
    require_servable(odd_heads, 1, 55, torch.bfloat16, Device("trn2", 1))
    with pytest.raises(ValueError, match="batch 59 with 127 heads per rank does not fit"):
        require_servable(odd_heads, 1, 60, torch.bfloat16, Device("trn2", 2))
    with pytest.raises(ValueError, match="lnc is 3; accepted: 1 or 2"):
        require_servable(PUBLISHED, 16, 16, torch.bfloat16, Device("trn2", 3))


@pytest.mark.parametrize(
    ("prompts", "error", "message"),
    [
        ([[1, 2], []], ValueError, "prompt 1 is empty; accepted: at least one token"),
        ([[1, 256]], ValueError, "prompt 0 has token 256; accepted: 0 to 255"),
        ([[1, -1]], ValueError, "prompt 0 has token -1; accepted: 0 to 255"),
        ([[1.5]], TypeError, "prompt 0 has token 1.5; accepted: integers"),
        ([[True]], TypeError, "prompt 0 has token True; accepted: integers"),
        ([[1] * 33], ValueError, "prompt 0 has 33 tokens; accepted: up to 32, what the cache holds"),
        ([[1]] * 3, ValueError, "3 prompts beside 1 sequences; accepted: 3 in all"),
        ([[1] * 16, [1] * 16], CacheExhaustedError, "sequences 1, 2 need 4 more cache blocks of 8 positions; 3 of 4"),
        ([], ValueError, "prompts is empty; accepted: at least one"),
        (None, TypeError, "prompts is a NoneType; accepted: a list"),
        ([{1, 2}], TypeError, "prompt 0 is a set; accepted: a list"),
        ([[1], {0: 1}], TypeError, "prompt 1 is a dict; accepted: a list"),
    ],
)
def test_prompts_refused(prompts, error, message):
    model = make(n_blocks=4, batch=3)
    model.add([[1]])
    with pytest.raises(error) as refusal:
        model.add(prompts)
    assert message in str(refusal.value)
    assert model.lengths == {0: 1}
    assert model.free_blocks == 3


def test_positions_end():
    short = dataclasses.replace(TINY, max_position_embeddings=10)
    model = make(config=short)
    with pytest.raises(ValueError, match="prompt 0 has 11 tokens; accepted: up to 10, the model's positions"):
        model.add([[1] * 11])
    model.add([[1] * 10])
    with pytest.raises(ValueError, match="sequence 0 has 11 tokens; accepted: up to 10, the model's positions"):
        model.decode({0: 1})


@pytest.mark.parametrize(
    ("tokens", "error", "message"),
    [
        ({}, ValueError, "tokens is empty"),
        ([1], TypeError, "tokens is a list; accepted: a dictionary from sequences to their next tokens"),
        ({0: 300}, ValueError, "sequence 0 has token 300; accepted: 0 to 255"),
        ({0: 1, 7: 1}, KeyError, "no sequence 7; there are [0]"),
    ],
)
def test_steps_refused(tokens, error, message):
    model = make()
    model.add([[1, 2]])
    with pytest.raises(error) as refusal:
        model.decode(tokens)
    assert message in str(refusal.value)
    assert model.lengths == {0: 2}


def test_an_interrupt_leaves_no_sequence_behind():
    """Whoever called has no names yet, so that nobody could free the blocks."""

    def interrupt_layer(name, _value):
        if name == "layers.1.layer":
            raise KeyboardInterrupt

    def interrupt_second(number):
        if number == 2:
            raise KeyboardInterrupt

    model = make(n_blocks=4)
    for call in (
        lambda: model.add([[1], [2] * 9], interrupt_layer),
        lambda: generate(model, [[1]], 5, interrupt_second),
    ):
        with pytest.raises(KeyboardInterrupt):
            call()
        assert model.lengths == {}
        assert model.free_blocks == 4


def test_generation_beyond_the_positions_is_refused_before_work():
    model = make(config=dataclasses.replace(TINY, max_position_embeddings=12))
    with pytest.raises(ValueError, match=r"prompt 0 has 10 tokens and 4 to generate, .*; accepted: up to 12 positions"):
        generate(model, [[1] * 10], 4, lambda _: pytest.fail("work was done"))
    assert len(generate(model, [[1] * 10], 3)[0]) == 3
    assert model.free_blocks == 40


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(1, 1 << 40, 8), r"n_blocks 1099511627776 of block_size 8 are .* accepted: up to 2147483647"),
        (Limits(1, 1 << 18, 1 << 12), "no memory for 1073741824 positions"),
    ],
)
def test_caches_refused(limits, message):
    with pytest.raises(ValueError, match=message):
        Model(TINY, [tiny_weights(FP32)], limits)


def test_weights_of_another_config_refused():
    for config, message in (
        (dataclasses.replace(TINY, num_hidden_layers=4), "weights have 3 layers; accepted: 4"),
        (dataclasses.replace(TINY, num_hidden_layers=2), "weights have 3 layers; accepted: 2"),
        (dataclasses.replace(TINY, first_k_dense_replace=0), r"weights have no layers\.0\.mlp\.router; accepted: all"),
        (dataclasses.replace(TINY, first_k_dense_replace=2), r"weights have no layers\.1\.mlp\.gate; accepted: all"),
    ):
        with pytest.raises(ValueError, match=message):
            make(config=config)
    with pytest.raises(TypeError, match="weights have a str; accepted: ModelWeights"):
        make(weights="weights")


def test_weights_refused():
    weights = tiny_weights(FP32)
    layer = weights.layers[1]
    mixed = dataclasses.replace(layer.indexer, wk=layer.indexer.wk.bfloat16())
    layers = (weights.layers[0], dataclasses.replace(layer, indexer=mixed), weights.layers[2])
    with pytest.raises(
        TypeError,
        match=r"layers.1.indexer.wk is torch.bfloat16; accepted with an embedding of torch.float32: torch.float32",
    ):
        make(weights=dataclasses.replace(weights, layers=layers))
    with pytest.raises(
        ValueError, match=r"layers.0.attention.wq_b is \[64, 96\]; accepted on one of 1 ranks: \[64, 192\]"
    ):
        make(weights=tiny_weights(FP32, 0, 2))
    with pytest.raises(ValueError, match="weights of 2 ranks; accepted: those of 1, in this process"):
        Model(TINY, [weights, weights], Limits(1, 4, 8))
