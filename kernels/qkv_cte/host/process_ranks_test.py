"""One rank in each process: the values of one process, and an error on every rank when one is wrong."""

import dataclasses
import os
import socket
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from kernels.qkv_cte import NormType, QKNormConfig, qkv, qkv_ranks, row_mx_qkv_proj, row_mx_qkv_proj_ranks
from kernels.qkv_cte.host import process_ranks
from kernels.qkv_cte.oracle.cases import Case
from kernels.qkv_cte.oracle.norm_rope_cases import NormRopeCase, normal_operands
from kernels.qkv_cte.oracle.qkv_cases import QKVCase, random_call

PROGRAM = """
import sys
import torch, torch.distributed as dist
from kernels.qkv_cte.host import process_ranks, process_ranks_test
rank, port, folder, ways = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
process_ranks.ARRIVAL_SECONDS = 3.0
for number, way in enumerate(ways):
    function, call = process_ranks_test.call_of(rank, way if rank == 1 else "qkv" if "qkv" in way else "right")
    try:
        if rank == 0 or way != "absent":
            torch.save(function(**call), f"{folder}/{rank}_{number}.pt")
    except Exception as error:
        print(number, type(error).__name__, str(error).replace(chr(10), " "), flush=True)
"""


def call_of(rank, way="right"):
    """The function that rank `rank` of two calls, and its arguments: each rank has its own heads."""
    if way.startswith("qkv"):
        return qkv, qkv_call_of(rank) | ({} if way == "qkv" else {"bias": None})
    return row_mx_qkv_proj, row_mx_call_of(rank, way)


def qkv_call_of(rank):
    """Arguments of `qkv`."""
    norm = QKNormConfig(NormType.RMS_NORM_ACROSS_HEADS, NormType.RMS_NORM_ACROSS_HEADS)
    case = QKVCase("rank", 130, 128, 2, 1, 64, bias=True, rope=True, pre=norm, lnc=2, sums=("q",))
    return vars(dataclasses.replace(random_call(case, seed=rank), replica_groups=((0, 1),)))


def row_mx_call_of(rank, way="right"):
    """Arguments of `row_mx_qkv_proj`."""
    call = NormRopeCase(Case("rank", 34, 128, 2, "full", num_kv_heads=1, head_dim=64, lnc=2))
    operands, norm = normal_operands(call, seed=rank), NormType.RMS_NORM_ACROSS_HEADS
    assert operands.cos is not None
    assert operands.sin is not None
    packed_hidden, weight, weight_scales, bias = operands.projection.tensors
    given = {
        "packed_hidden": packed_hidden,
        "weight": weight,
        "weight_scales": weight_scales,
        "bias": bias,
        "num_heads": 2,
        "head_dim": 64,
        "num_kv_heads": 1,
        "fused_rope": True,
        "cos_cache": operands.cos,
        "sin_cache": operands.sin,
        "qk_norm_pre_rope": QKNormConfig(norm, norm),
        "qk_norm_pre_rope_q_gamma": operands.q_gamma,
        "qk_norm_pre_rope_k_gamma": operands.k_gamma,
        "replica_groups": ((0, 1),),
    }
    changes = {
        "right": {},
        "right beside qkv": {},
        "absent": {},
        "shape": {"packed_hidden": packed_hidden[:, :32], "cos_cache": operands.cos[:, :32]}
        | {"sin_cache": operands.sin[:, :32]},
        "gamma": {"qk_norm_pre_rope_k_gamma": torch.full((1, 64), torch.nan)},
        "eps": {"qk_norm_pre_rope": QKNormConfig(norm, norm, 1e-5)},
        "lnc": {"lnc": 1},
    }
    return given | changes[way]


def run(tmp_path, *ways):
    """Two processes, one call for each way; returns what each rank printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(port), str(tmp_path), *ways],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in (0, 1)
    ]
    try:
        return [process.communicate(timeout=120)[0].splitlines() for process in started]
    finally:
        for process in started:
            process.kill()


def test_two_processes_are_two_ranks(tmp_path):
    assert run(tmp_path, "right", "right") == [[], []]
    expected = row_mx_qkv_proj_ranks([row_mx_call_of(rank) for rank in (0, 1)])
    alone = row_mx_qkv_proj(**(row_mx_call_of(0) | {"replica_groups": None}))
    for number in (0, 1):
        for rank in (0, 1):
            found = torch.load(tmp_path / f"{rank}_{number}.pt", weights_only=True)
            assert torch.equal(found, expected[rank])
            assert not torch.equal(found, alone)


def test_a_general_call_in_two_processes(tmp_path):
    """The values of one process; a bias that one rank lacks and another function are named, and nothing runs."""
    named = [
        "1 ValueError bias of rank 1 is None; accepted: [1, 256] torch.float32, as on rank 0",
        "2 ValueError function of rank 1 is row_mx_qkv_proj; accepted: qkv, as on rank 0",
    ]
    assert run(tmp_path, "qkv", "qkv without bias", "right beside qkv", "qkv") == [named, named]
    expected = qkv_ranks([qkv_call_of(rank) for rank in (0, 1)])
    for number in (0, 3):
        for rank in (0, 1):
            assert torch.equal(torch.load(tmp_path / f"{rank}_{number}.pt", weights_only=True), expected[rank])
    assert not torch.equal(qkv(**(qkv_call_of(0) | {"replica_groups": None})), expected[0])


def test_one_wrong_rank_and_none_runs(tmp_path):
    """Each fault is named on both ranks, and the right call that follows succeeds on both."""
    rank_0, rank_1 = run(tmp_path, "shape", "gamma", "eps", "lnc", "right", "absent")
    differ = [
        "0 ValueError packed_hidden of rank 1 is [1, 32, 132] torch.float8_e4m3fn; accepted: [1, 34, 132] torch.float8",
        "1 ValueError ",
        "2 ValueError qk_norm_pre_rope of rank 1 is QKNormConfig(",
        "3 ValueError lnc of rank 1 is 1; accepted: 2, as on rank 0",
    ]
    for number, start in enumerate(differ):
        assert rank_0[number].startswith(start)
        assert rank_1[number].startswith(start)
    named = "qk_norm_pre_rope_k_gamma has nan at [0, 0]; accepted: finite values"
    assert rank_0[1] == f"1 ValueError rank 1 refuses its arguments: {named}"
    assert rank_1[1] == f"1 ValueError {named}"
    assert len(rank_1) == 4
    (late,) = rank_0[4:]
    assert late.startswith("5 DeadlockError rank 0 has waited 3 s for all 2 ranks to call row_mx_qkv_proj")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0_4.pt", "1_4.pt"]


@pytest.fixture
def alone():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (((1, 2),), r"replica_groups is \(\(1, 2\),\), without this process's rank 0; accepted: groups with it"),
        (((0, 1),), r"replica_groups is \(\(0, 1\),\); accepted: each of the 1 ranks of the process group, 0 to 0"),
        (((0,), (1,)), "replica_groups is .*; accepted: each of the 1 ranks"),
    ],
)
@pytest.mark.usefixtures("alone")
def test_groups_that_miss_a_rank_are_refused(groups, message, monkeypatch):
    monkeypatch.setattr(process_ranks, "_tell", lambda *_: pytest.fail("launched"))
    with pytest.raises(ValueError, match=f"^{message}"):
        row_mx_qkv_proj(**(row_mx_call_of(0) | {"replica_groups": groups}))


@pytest.mark.usefixtures("alone")
def test_a_group_of_one_is_no_group():
    assert torch.equal(
        row_mx_qkv_proj(**(row_mx_call_of(0) | {"replica_groups": ((0,),)})),
        row_mx_qkv_proj(**(row_mx_call_of(0) | {"replica_groups": None})),
    )
