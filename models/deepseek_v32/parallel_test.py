"""Ranks that share a model give what one gives, in one process and under torchrun."""

import functools
import os
import subprocess
import sys

import pytest
import torch

from models.deepseek_v32.generation import greedy
from models.deepseek_v32.model import Limits, Model
from models.deepseek_v32.ranks import LocalRanks
from models.deepseek_v32.testing import (
    BLOCK_SIZE,
    random_prompts,
    run_oracle,
    run_our_layer,
    tiny_oracle,
    tiny_weights,
)
from models.deepseek_v32.tiny import TINY

BF16, FP32 = torch.bfloat16, torch.float32
STEPS = 8


@functools.cache
def decode(ranks):
    """Logits of greedy steps of two sequences about the selection limit, [steps, 2, vocabulary]."""
    weights = [tiny_weights(FP32, rank, ranks.size) for rank in ranks.here]
    model = Model(TINY, weights, Limits(batch=2, n_blocks=12, block_size=BLOCK_SIZE), ranks=ranks)
    names, logits = model.add(random_prompts(6, 20))
    found = [logits]
    for _ in range(STEPS):
        found.append(model.decode(dict(zip(names, greedy(found[-1]), strict=True))))
    return torch.stack(found)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_in_one_process_in_fp32(size):
    whole, shared = decode(LocalRanks(1)), decode(LocalRanks(size))
    assert torch.equal(shared.argmax(dim=-1), whole.argmax(dim=-1))
    assert (shared - whole).norm() < 4e-6 * whole.norm()


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("layer", [0, 2])
def test_a_layer_in_bf16(size, layer):
    """Given the same input, ranks differ from one by the rounding of their parts and of the sums of these."""
    hidden = torch.randn(40, TINY.hidden_size, generator=torch.Generator().manual_seed(layer)).to(BF16)
    prefix = f"layers.{layer}."
    whole = run_our_layer(TINY, [tiny_weights(BF16).layers[layer]], layer, hidden, range(20, 40))
    parts = [tiny_weights(BF16, rank, size).layers[layer] for rank in range(size)]
    shared = run_our_layer(TINY, parts, layer, hidden, range(20, 40))
    assert torch.equal(shared[f"{prefix}selected"], whole[f"{prefix}selected"])
    expected = whole[f"{prefix}attention"].double()
    apart = (shared[f"{prefix}attention"].double() - expected).norm() / expected.norm()
    # A rounding of up to 2**-9 for each part, each sum, and the whole's own.
    assert 0 < apart < 2.0**-9 * (1 + size) ** 0.5
    assert torch.equal(shared[f"{prefix}cache_row"], whole[f"{prefix}cache_row"])


PROGRAM = """
import sys, torch
from models.deepseek_v32 import parallel_test as test
from models.deepseek_v32.ranks import GroupRank
test.tiny_weights(torch.float32)  # transformers saves on the first rank alone once there is a process group.
torch.distributed.init_process_group("gloo")
ranks = GroupRank.of()
torch.save(test.decode(ranks), f"{sys.argv[1]}/{ranks.here[0]}.pt")
torch.distributed.destroy_process_group()
"""


def test_under_torchrun(tmp_path):
    """A process for each rank: bit for bit the ranks of one process."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *meeting, program, tmp_path],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = decode(LocalRanks(2))
    for rank in range(2):
        assert torch.equal(torch.load(tmp_path / f"{rank}.pt", weights_only=True), expected)


def test_ranks_agree_with_transformers():
    logits = decode(LocalRanks(4))
    for row, prompt in enumerate(random_prompts(6, 20)):
        tokens = logits[:, row].argmax(dim=-1).tolist()
        expected = run_oracle(tiny_oracle(), prompt + tokens)["logits"][len(prompt) - 1 : -1]
        assert expected.argmax(dim=-1).tolist() == tokens


def test_ranks_that_do_not_divide():
    with pytest.raises(ValueError, match="num_attention_heads is 4; accepted over 3 ranks: a multiple of 3"):
        tiny_weights(FP32, 0, 3)
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        LocalRanks(0)
