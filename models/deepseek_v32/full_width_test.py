"""One layer at DeepSeek-V3.2's width, 128 heads over ranks, against transformers; minutes and about 16 GB."""

import dataclasses

import pytest
import torch

from models.deepseek_v32 import checkpoint
from models.deepseek_v32.compare import measure
from models.deepseek_v32.config import PUBLISHED
from models.deepseek_v32.testing import chosen, make_oracle, run_oracle_layer, run_our_layer, save

RANKS = 16
TOKENS, DECODED = 2080, 16
EXPERTS = 16

WIDE = {
    "dense": dataclasses.replace(PUBLISHED, num_hidden_layers=1, first_k_dense_replace=1, vocab_size=256),
    "experts": dataclasses.replace(
        PUBLISHED, num_hidden_layers=1, first_k_dense_replace=0, vocab_size=256, n_routed_experts=EXPERTS
    ),
}
"""The published widths; 16 experts of the 256, which would not fit in memory here."""


@pytest.mark.parametrize("config", WIDE.values(), ids=WIDE.keys())
def test_a_layer(config, tmp_path):
    oracle = make_oracle(config)
    folder = save(oracle, tmp_path, torch.bfloat16)
    weights = [checkpoint.load(folder, torch.bfloat16, rank, RANKS)[1].layers[0] for rank in range(RANKS)]
    hidden = torch.randn(TOKENS, config.hidden_size, generator=torch.Generator().manual_seed(0)).bfloat16()
    made = run_our_layer(config, weights, 0, hidden, range(TOKENS - DECODED, TOKENS))
    del weights
    expected = run_oracle_layer(oracle, 0, hidden)
    visible = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    ours, theirs = (chosen(seen.pop("layers.0.selected"), TOKENS) & visible for seen in (made, expected))
    last = slice(TOKENS - DECODED, None)
    missed = int((theirs & ~ours)[last].sum())
    print(f"{missed} of {DECODED * config.index_topk} selected positions differ in the decoded tokens")
    for name in sorted(expected):
        if name.endswith((".experts", ".expert_weights")):
            continue
        difference = measure(made[name][last], expected[name][last], torch.bfloat16)
        print(f"{name}: {difference}")
        assert difference.cosine > 0.9999, (name, difference)
    assert missed < 0.01 * DECODED * config.index_topk
