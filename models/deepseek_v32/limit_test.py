"""Greedy decoding across the published selection limit of 2,048 positions, against full forwards of transformers."""

import dataclasses

import torch

from models.deepseek_v32 import checkpoint
from models.deepseek_v32.compare import measure
from models.deepseek_v32.generation import greedy
from models.deepseek_v32.model import Limits, Model
from models.deepseek_v32.testing import Collector, chosen, make_oracle, random_prompts, run_oracle, save
from models.deepseek_v32.tiny import TINY

REAL = dataclasses.replace(TINY, index_topk=2048, first_k_dense_replace=1, num_hidden_layers=2)
STEPS = 64
LENGTHS = (2010, 2047, 2300)
"""Before the limit, one step from it, and beyond it."""


def test_64_steps_across_2048(tmp_path):
    oracle = make_oracle(REAL)
    config, weights = checkpoint.load(save(oracle, tmp_path), torch.float32)
    model = Model(config, [weights], Limits(batch=3, n_blocks=120, block_size=64))
    sequences = random_prompts(*LENGTHS)
    names, logits = model.add(sequences)
    seen = Collector()
    for _ in range(STEPS):
        tokens = greedy(logits)
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.append(token)
        logits = model.decode(dict(zip(names, tokens, strict=True)), seen)
    for row, (sequence, length) in enumerate(zip(sequences, LENGTHS, strict=True)):
        expected, made = run_oracle(oracle, sequence), seen.of_batch(row)
        assert expected["logits"][length - 1 : -1].argmax(dim=-1).tolist() == sequence[length:]
        for name, value in expected.items():
            if not name.endswith(("selected", "experts", "expert_weights")):
                error = measure(made[name], value[length:])
                print(f"from {length}: {name}: {error}")
                assert error.relative_rms < 4e-6
        for layer in range(config.num_hidden_layers):
            name = f"layers.{layer}.selected"
            visible = torch.arange(len(sequence)) <= torch.arange(length, len(sequence))[:, None]
            ours, theirs = (chosen(value, len(sequence)) & visible for value in (made[name], expected[name][length:]))
            without_own = int((~ours.diagonal(length)).sum())
            print(f"from {length}: {name}: own position left out {without_own} times of {STEPS}")
            assert torch.equal(ours, theirs)
