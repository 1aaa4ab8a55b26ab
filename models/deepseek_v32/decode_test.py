"""Step by step on the kernels against full forwards of transformers: tokens, and everything in between."""

import torch

from models.deepseek_v32.compare import measure
from models.deepseek_v32.generation import greedy
from models.deepseek_v32.model import Limits, Model
from models.deepseek_v32.testing import (
    BLOCK_SIZE,
    Collector,
    chosen,
    random_prompts,
    run_oracle,
    tiny_oracle,
    tiny_weights,
)
from models.deepseek_v32.tiny import TINY

STEPS = 64
CHOICES = ("selected", "experts", "expert_weights")


def test_64_steps_in_fp32():
    """A batch of different lengths, over page boundaries and from before the selection limit to beyond it."""
    model = Model(TINY, [tiny_weights(torch.float32)], Limits(batch=3, n_blocks=40, block_size=BLOCK_SIZE))
    sequences = random_prompts(5, 17, 40)
    lengths = [len(sequence) for sequence in sequences]
    assert lengths[0] < lengths[1] < TINY.index_topk < lengths[2]
    names, logits = model.add(sequences)
    seen = Collector()
    for _ in range(STEPS):
        tokens = greedy(logits)
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.append(token)
        logits = model.decode(dict(zip(names, tokens, strict=True)), seen)
    for row, (sequence, prompt) in enumerate(zip(sequences, lengths, strict=True)):
        expected = run_oracle(tiny_oracle(), sequence)
        assert expected["logits"][prompt - 1 : -1].argmax(dim=-1).tolist() == sequence[prompt:]
        require_equal(seen.of_batch(row), {name: value[prompt:] for name, value in expected.items()}, prompt)


def require_equal(made, expected, first):
    """Every intermediate of the tokens from position `first` on within fp32's rounding; the same choices."""
    assert made.keys() == expected.keys()
    for name, value in expected.items():
        kind = name.rpartition(".")[2]
        if kind not in CHOICES:
            error = measure(made[name], value).relative_rms
            assert error < 4e-6, (name, error)
    for layer in range(TINY.num_hidden_layers):
        name = f"layers.{layer}.selected"
        assert torch.equal(selection(made[name], first), selection(expected[name], first)), name
        if not TINY.is_dense(layer):
            require_same_experts(made, expected, f"layers.{layer}.")


def selection(selected, first):
    """[n, positions] mask of what tokens from `first` on look at; transformers also names positions behind them."""
    positions = torch.arange(first + len(selected))
    return chosen(selected, len(positions)) & (positions <= positions[first:, None])


def require_same_experts(made, expected, prefix):
    for way in (made, expected):
        order = way[f"{prefix}experts"].argsort(dim=-1)
        for name in ("experts", "expert_weights"):
            way[prefix + name] = way[prefix + name].gather(1, order)
    assert torch.equal(made[f"{prefix}experts"], expected[f"{prefix}experts"])
    assert measure(made[f"{prefix}expert_weights"], expected[f"{prefix}expert_weights"]).relative_rms < 4e-6


def test_own_position_is_selected_or_not():
    """The case above has both, so that it shows both the fused step and its two halves."""
    sequence = random_prompts(100)[0]
    selected = selection(run_oracle(tiny_oracle(), sequence)["layers.1.selected"], 0)
    own = selected.diagonal()
    assert own[: TINY.index_topk].all()
    assert 10 < int(own[TINY.index_topk :].sum()) < 66


def test_prompt_in_chunks_is_the_prompt(monkeypatch):
    """Taken in 7 tokens at a time, a prompt gives what transformers gives for all of it."""
    monkeypatch.setattr("models.deepseek_v32.model.PREFILL_TOKENS", 7)
    (prompt,) = random_prompts(60)
    model = Model(TINY, [tiny_weights(torch.float32)], Limits(batch=1, n_blocks=8, block_size=BLOCK_SIZE))
    seen = Collector()
    _, logits = model.add([prompt], seen)
    made, expected = seen.joined(), run_oracle(tiny_oracle(), prompt)
    assert torch.equal(logits[0], made["logits"][-1])
    for name in ("norm", "logits"):
        assert measure(made.pop(name)[-1:], expected.pop(name)[-1:]).relative_rms < 4e-6
    require_equal(made, expected, 0)
