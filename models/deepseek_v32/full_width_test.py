"""A decode step of one layer at DeepSeek-V3.2's width, 128 heads over ranks, against transformers; about 12 GB."""

import dataclasses
import functools

import pytest
import torch

from models.deepseek_v32 import attention, checkpoint
from models.deepseek_v32.attention import Device
from models.deepseek_v32.cache import PagedCache
from models.deepseek_v32.compare import measure
from models.deepseek_v32.config import PUBLISHED
from models.deepseek_v32.layer import run_layer
from models.deepseek_v32.ranks import LocalRanks, add_up
from models.deepseek_v32.step import make_step
from models.deepseek_v32.testing import Collector, chosen, make_oracle, run_oracle_layer, save

BF16 = torch.bfloat16
RANKS = 16
TOKENS, DECODED, BLOCK_SIZE = 2080, 16, 64
CHOICES = ("selected", "experts", "expert_weights")

WIDE = {
    "dense": dataclasses.replace(PUBLISHED, num_hidden_layers=1, first_k_dense_replace=1, vocab_size=256),
    "experts": dataclasses.replace(
        PUBLISHED, num_hidden_layers=1, first_k_dense_replace=0, vocab_size=256, n_routed_experts=16
    ),
}
"""The published widths; 16 experts of the 256, which would not fit in memory here."""


def decode(config, weights, hidden, expected):
    """The last tokens as one step of a batch, behind a cache of what transformers has for those before them."""
    seen, pages = Collector(), -(-TOKENS // BLOCK_SIZE)
    cache = PagedCache(config, pages, BLOCK_SIZE, BF16)
    cache.latent_rows(0)[:TOKENS] = expected["cache_row"].to(BF16)
    cache.index_keys[0][:TOKENS] = expected["index_keys"].to(BF16)
    positions = torch.arange(TOKENS - DECODED, TOKENS, dtype=torch.int32)
    step = make_step(config, positions, torch.arange(pages).int().expand(DECODED, -1), BLOCK_SIZE)
    attend = functools.partial(attention.on_kernels, config, Device())
    sums = functools.partial(add_up, LocalRanks(RANKS), target="trn2")
    run_layer(config, weights, 0, hidden[-DECODED:], cache, step, attend, sums, seen)
    return seen.joined()


@pytest.mark.parametrize("config", WIDE.values(), ids=WIDE.keys())
def test_a_layer(config, tmp_path):
    oracle = make_oracle(config)
    folder = save(oracle, tmp_path, BF16)
    hidden = torch.randn(TOKENS, config.hidden_size, generator=torch.Generator().manual_seed(0)).to(BF16)
    seen = run_oracle_layer(oracle, 0, hidden)
    del oracle
    everything = {name.removeprefix("layers.0."): value for name, value in seen.items()}
    expected = {name: value[-DECODED:] for name, value in everything.items()}
    weights = [checkpoint.load(folder, BF16, rank, RANKS)[1].layers[0] for rank in range(RANKS)]
    made = decode(config, weights, hidden, everything)
    ours, theirs = (chosen(way["selected"], TOKENS) for way in (made, expected))
    differing = int((theirs & ~ours).sum())
    print(f"{differing} of {theirs.sum()} selected positions differ")
    for name in sorted(made.keys() - {*CHOICES}):
        difference = measure(made[name], expected[name], BF16)
        print(f"  {name}: {difference}")
        assert difference.cosine > 0.9999, (name, difference)
    assert differing < 0.005 * int(theirs.sum())
