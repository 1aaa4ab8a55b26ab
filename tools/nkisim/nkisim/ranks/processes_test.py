"""One rank per process: the results of one process, and an end within seconds whatever a rank does."""

import os
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nkisim import run_ranks

PROGRAM = """
import os, sys, time
import numpy as np
from nkisim.ranks import processes_test as test
from nkisim import Options, errors, run_in_group
rank, timeout, folder, ways = int(os.environ["RANK"]), float(sys.argv[1]), sys.argv[2], sys.argv[3:]
for number, way in enumerate(ways):
    fault = way if rank == 1 else "right"
    if fault == "never":
        time.sleep(60)
    try:
        finished = run_in_group(
            test.kernel_of(2), *test.arguments(rank, number, fault), options=Options(rank_timeout_seconds=timeout)
        )
    except errors.NkiValidationError as error:
        print(number, type(error).__name__, str(error).replace("\\n", " "), flush=True)
        if way in ("killed", "never"):
            raise
    else:
        np.savez(f"{folder}/{rank}_{number}.npz", *finished.outputs)
"""


def kernel(x, y, groups, fault):
    """An all-reduce of two tensors in shared HBM, a ring in SBUF and an all-to-all in variable lengths."""
    group, core = ncc.ReplicaGroup(groups), nl.program_id(0)
    a, b = (nl.ndarray(t.shape, t.dtype, nl.shared_hbm) for t in (x, y))
    nisa.dma_copy(a, x)
    nisa.dma_copy(b, y)
    if fault == "raises" and core == 1:
        nl.ndarray((300, 1), nl.float32, nl.sbuf)
    if fault == "killed" and core == 1:
        os.kill(os.getpid(), 9)
    if fault == "stops":
        return a, b
    if fault == "shape":
        a, b = b, a
    if fault != "skips":
        ncc.all_reduce([a, b], [a, b], group, nl.maximum if fault == "op" else nl.add)
    out = nl.ndarray((nl.num_programs(0), *x.shape), x.dtype, nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    nisa.dma_copy(tile, x)
    ncc.collective_permute_implicit([[tile]], [[tile]], group)
    nisa.dma_copy(out[core], tile)
    return a, b, out


def kernel_of(lnc):
    import nki

    return nki.jit(kernel)[lnc]


def arguments(rank, round_number, fault="right"):
    rng = np.random.default_rng(10 * round_number + rank)
    x, y = (rng.standard_normal(shape).astype(dtype) for shape, dtype in (((7, 9), "float32"), ((5, 6), "float16")))
    return x, y, [[0, 1]], fault


def start(tmp_path, timeout_seconds, *ways, waits_for=(0, 1)):
    """Runs the program on two ranks; returns exit codes and what they printed, and ends every process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    environment |= {"PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-c", PROGRAM, str(timeout_seconds), str(tmp_path), *ways]
    with open(tmp_path / "0.txt", "w") as first, open(tmp_path / "1.txt", "w") as second:
        processes = [
            subprocess.Popen(program, env=environment | {"RANK": str(rank)}, stdout=file, stderr=subprocess.STDOUT)
            for rank, file in enumerate((first, second))
        ]
        try:
            for rank in waits_for:
                processes[rank].wait(timeout=100)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return [p.returncode for p in processes], [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)]


def test_same_bits_as_in_one_process_whatever_went_wrong_before(tmp_path):
    """Both ranks print a typed error in rounds 1 to 4, and the group works again afterwards."""
    codes, texts = start(tmp_path, 60, "right", "op", "shape", "raises", "stops", "right")
    assert codes == [0, 0], texts
    for number in (0, 5):
        expected = run_ranks(kernel_of(2), [arguments(rank, number) for rank in range(2)])
        for rank in range(2):
            found = np.load(tmp_path / f"{rank}_{number}.npz")
            for n, output in enumerate(expected[rank].outputs):
                np.testing.assert_array_equal(found[f"arr_{n}"], output)
    for words in (
        "1 DivergenceError ncc.all_reduce over ranks 0, 1: op of rank 0 is add, of rank 1 maximum",
        "2 DivergenceError ncc.all_reduce over ranks 0, 1: srcs of rank 0 is float32[7, 9] in HBM, float16[5, 6]",
        "3 RankFailedError rank 0 waits for rank 1 at ncc.all_reduce over ranks 0, 1; rank 1 failed: ShapeError: ",
        "4 DeadlockError rank 0 waits for rank 1 at ncc.all_reduce over ranks 0, 1; rank 1 finished without it",
    ):
        assert words in texts[0]
    for words in (
        "3 ShapeError nl.ndarray: 300 partitions",
        "4 RankFailedError rank 0 failed after rank 1 had finished",
    ):
        assert words in texts[1]
    assert len(list(tmp_path.glob("*.npz"))) == 4


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("killed", "DeadlockError rank 0 has waited 6 s for rank 1 at ncc.all_reduce over ranks 0, 1"),
        ("never", "DeadlockError rank 0 waits for the other 1 of 2 ranks to start"),
    ],
)
def test_a_rank_that_does_not_arrive(tmp_path, way, words):
    began = time.monotonic()
    codes, texts = start(tmp_path, 6, way, waits_for=(0,))
    assert codes[0] == 1
    assert words in texts[0]
    assert time.monotonic() - began < 60
