"""Heads and tokens shared by ranks, in one process and under torchrun, against one rank."""

import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from models.wan22.compare import compare
from models.wan22.conversion import convert_checkpoint
from models.wan22.mesh import Mesh
from models.wan22.model import WanDiT
from models.wan22.oracle import random_inputs
from models.wan22.projections import FFN_UP, SELF_QKV
from models.wan22.random_checkpoint import write_checkpoint
from models.wan22.ranks import LocalRanks

BF16_ROUNDING = 2.0**-8
"""Half an ulp, relative to the smallest number of its binade."""

INPUTS = random_inputs(size=(3, 6, 10), text_tokens=8)
"""45 tokens: padded on every mesh, and ragged on the last rank."""


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Converted checkpoints of one model with four heads: by whether self-attention's projection is quantised."""
    tmp = tmp_path_factory.mktemp("parallel")
    write_checkpoint(tmp / "published", heads=4, layers=2)
    convert_checkpoint(tmp / "published", tmp / "row_mx")
    convert_checkpoint(tmp / "published", tmp / "mixed", (SELF_QKV, FFN_UP))
    return tmp


def run(folder, mesh, ranks=None):
    """A step's output and its intermediates, with those of all ranks joined: [B, heads, S, d] or [B, S, hidden]."""
    model = WanDiT.load(folder, mesh=mesh, ranks=ranks)
    seen = {}

    def observe(name, parts):
        if name.endswith(("attn1.query", "attn1.key", "attn1.value")):
            groups = [torch.cat([parts[r] for r in mesh.tp_group(cp * mesh.tp)], 1) for cp in range(mesh.cp)]
            seen[name] = torch.cat(groups, 2)[:, :, :45]
        elif name.startswith("blocks.") and parts[0].dim() == 3 and parts[0].dtype == torch.bfloat16:
            seen[name] = torch.cat(list(parts), 1)[:, :45]

    output = model(INPUTS.latents, INPUTS.timestep, model.encode(INPUTS.text), None if ranks else observe)
    return output, seen


@pytest.mark.parametrize("kind", ["row_mx", "mixed"])
@pytest.mark.parametrize(("tp", "cp"), [(2, 1), (4, 1), (1, 2), (1, 3), (2, 2)])
def test_ranks_equal_one(folders, kind, tp, cp):
    """Within bf16 rounding (w2).

    The ranks' sums of squares add up in another order: some of Q and K may be another bf16 number. What follows differs
    by what such a difference makes of it. Every intermediate is compared: tokens would hide what is added to them.
    """
    expected, before = run(folders / kind, Mesh())
    output, seen = run(folders / kind, Mesh(tp=tp, cp=cp))
    assert set(seen) == set(before)
    assert len(seen) > 20
    for name in ("query", "key", "value"):
        error = compare(seen[f"blocks.0.attn1.{name}"], before[f"blocks.0.attn1.{name}"])
        assert error.max_ulps <= (1 if tp > 1 and name != "value" else 0)
    for name, tensor in seen.items():
        assert compare(tensor, before[name]).relative_rms <= BF16_ROUNDING, name
    assert compare(output, expected).relative_rms <= BF16_ROUNDING


def test_a_rank_has_its_heads_only(folders):
    """Each rank's weights of Q, K and V are its share; together they are the whole."""
    whole = WanDiT.load(folders / "row_mx").blocks[0].weights.shares[0].qkv.weight.view(torch.uint8)
    shares = [share.qkv.weight for share in WanDiT.load(folders / "row_mx", mesh=Mesh(tp=4)).blocks[0].weights.shares]
    assert all(share.shape == (128, 384, 4) for share in shares)
    parts = [torch.cat([share.view(torch.uint8).chunk(3, 1)[s] for share in shares], 1) for s in range(3)]
    assert torch.equal(torch.cat(parts, 1), whole)


PROGRAM = """
import sys
import torch
from pathlib import Path
from safetensors.torch import save_file
from models.wan22.mesh import Mesh
from models.wan22.parallel_test import run
from models.wan22.ranks import GroupRank
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
ranks = GroupRank()
outputs = {f"tp {tp} cp {cp}": run(Path(sys.argv[1]), Mesh(tp=tp, cp=cp), ranks)[0] for tp, cp in ((2, 1), (1, 2))}
save_file(outputs, f"{sys.argv[2]}/rank_{ranks.here[0]}.safetensors")
torch.distributed.destroy_process_group()
"""


def test_torchrun_gives_the_bits_of_one_process(folders, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    arguments = [str(program), str(folders / "row_mx"), str(tmp_path)]
    finished = subprocess.run([*launch, *arguments], env=environment, check=False, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-2000:]
    for tp, cp in ((2, 1), (1, 2)):
        expected, _ = run(folders / "row_mx", Mesh(tp=tp, cp=cp))
        for rank in range(2):
            outputs = load_file(tmp_path / f"rank_{rank}.safetensors")
            assert torch.equal(outputs[f"tp {tp} cp {cp}"], expected)


def test_meshes_that_do_not_fit(folders):
    for mesh, ranks, words in (
        (Mesh(tp=3), None, "tp is 3 with 4 attention heads; accepted: a divisor"),
        (Mesh(tp=2), LocalRanks(3), "ranks are 3; accepted: 2, for tp 2 and cp 1"),
    ):
        with pytest.raises(ValueError, match=words):
            WanDiT.load(folders / "row_mx", mesh=mesh, ranks=ranks)
    for sizes, words in (({"tp": 0}, "tp must be at least 1"), ({"cp": -1}, "cp must"), ({"lnc": 3}, "lnc is 3")):
        with pytest.raises(ValueError, match=words):
            Mesh(**sizes)


def test_every_rank_is_in_one_group_of_each_kind():
    mesh = Mesh(tp=2, cp=3)
    assert mesh.replica_groups == ((0, 1), (2, 3), (4, 5))
    assert [mesh.cp_group(rank) for rank in range(6)] == [(0, 2, 4), (1, 3, 5)] * 3
    assert mesh.padded(45) == 48
