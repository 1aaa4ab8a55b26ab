"""Ranks of one process: agreement, failure, arguments."""

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nkisim import Options, errors, machine, run_ranks
from nkisim.launch import outputs_per_rank


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Every test ends within seconds and leaves no thread."""
    threads, began = threading.active_count(), time.monotonic()
    yield
    assert threading.active_count() == threads
    assert machine.current is None
    assert time.monotonic() - began < 30


@nki.jit
def kernel(x, groups, steps, dtype=None, op=nl.add):
    """Runs the steps named, each on a tensor of its own; returns the last result."""
    dtype = dtype or x.dtype
    source = nl.ndarray(x.shape, dtype, nl.shared_hbm)
    nisa.dma_copy(source, x)
    group = ncc.ReplicaGroup(groups)
    for step in steps:
        result = nl.ndarray(x.shape, dtype, nl.shared_hbm)
        if step == "reduce":
            ncc.all_reduce([source], [result], group, op)
        elif step == "exchange":
            ncc.all_to_all([source], [result], group, 0)
        elif step == "gather":
            big = nl.ndarray((x.shape[0] * len(groups[0]), *x.shape[1:]), dtype, nl.shared_hbm)
            ncc.all_gather([source], [big], group, 0)
        elif step == "fail":
            nl.ndarray((200, 1), dtype, nl.sbuf)
        elif step == "raise":
            raise KeyError(step)
        source = result
    return source


def start(*arguments, lnc=1):
    inputs = [(np.ones((8, 4), np.float32), *a) if isinstance(a, tuple) else a for a in arguments]
    return run_ranks(kernel[lnc], inputs)


FOUR = [[0, 1, 2, 3]]


@pytest.mark.parametrize("lnc", [1, 2])
def test_a_rank_that_skips_a_collective(lnc):
    right = (FOUR, ["reduce"])
    assert (start(right, right, right, right, lnc=lnc)[3].outputs == 4).all()
    with pytest.raises(errors.DeadlockError) as caught:
        start(right, (FOUR, []), right, right, lnc=lnc)
    message = str(caught.value)
    core = " core 1" if lnc == 2 else ""
    assert f"rank 0{core} waits for rank 1 at ncc.all_reduce over ranks 0, 1, 2, 3" in message
    assert "rank 1" in message.rpartition(";")[2]
    assert "finished without it" in message


def test_cores_that_skip_a_collective_of_their_rank():
    @nki.jit
    def torn(x, cores):
        source = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(source, x)
        if nl.program_id(0) in cores:
            ncc.all_reduce([source], [source], ncc.ReplicaGroup([[0, 1]]), nl.add)

    inputs = [np.ones((4, 4), np.float32)] * 2
    run_ranks(torn[2], [(x, (0, 1)) for x in inputs])
    with pytest.raises(errors.DeadlockError, match=r"rank 0 core 1 waits for core 0 of its rank at ncc\.all_reduce"):
        run_ranks(torn[2], [(x, (1,)) for x in inputs])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (([[0, 1]], ["exchange"]), "call of rank 0 is ncc.all_reduce, of rank 1 ncc.all_to_all"),
        (([[1, 0]], ["reduce"]), "replica_group of rank 0 is [[0, 1]], of rank 1 [[1, 0]]"),
        (([[0, 1]], ["reduce"], nl.bfloat16), "srcs of rank 0 is float32[8, 4] in HBM, of rank 1 bfloat16[8, 4]"),
        (([[0, 1]], ["reduce"], None, nl.maximum), "op of rank 0 is add, of rank 1 maximum"),
        (
            (np.ones((8, 5), np.float32), [[0, 1]], ["reduce"]),
            "srcs of rank 0 is float32[8, 4] in HBM, of rank 1 float32[8, 5]",
        ),
    ],
)
def test_ranks_that_disagree(other, words):
    shaped = isinstance(other[0], np.ndarray)
    inputs = [
        (np.ones((8, 4), np.float32), [[0, 1]], ["reduce"]),
        other if shaped else (np.ones((8, 4), np.float32), *other),
    ]
    for order in (inputs, inputs[:1] * 2):
        if order is inputs:
            with pytest.raises(errors.DivergenceError) as caught:
                run_ranks(kernel, order)
            assert words in str(caught.value)
            assert "accepted: the same on every rank" in str(caught.value)
        else:
            run_ranks(kernel, order)


def test_ranks_in_different_groups():
    with pytest.raises(
        errors.DeadlockError, match=r"rank 0 waits for rank 1 at ncc.all_reduce over ranks 0, 1; rank 1 f"
    ):
        start(([[0, 1]], ["reduce"]), ([[0], [1]], ["reduce"]))


def test_ranks_that_wait_in_a_circle():
    steps = ["reduce"]
    with pytest.raises(errors.DeadlockError) as caught:
        start(([[0, 1], [2]], steps), ([[1, 2], [0]], steps), ([[2, 0], [1]], steps))
    message = str(caught.value)
    for waiting, other in ((0, 1), (1, 2), (2, 0)):
        assert f"rank {waiting} waits for rank {other} at ncc.all_reduce" in message


@pytest.mark.parametrize(("step", "error"), [("fail", errors.ShapeError), ("raise", KeyError)])
@pytest.mark.parametrize("lnc", [1, 2])
def test_a_rank_that_dies(step, error, lnc):
    with pytest.raises(error) as caught:
        start((FOUR, ["reduce"]), (FOUR, ["reduce"]), (FOUR, [step]), (FOUR, ["reduce"]), lnc=lnc)
    assert caught.value.__notes__ == ["in rank 2 core 0" if lnc == 2 else "in rank 2"]


def test_many_ranks_run_the_same_every_time():
    x = np.random.default_rng(0).standard_normal((64, 8, 4)).astype(np.float32)
    groups = [list(range(64))]
    first, second = ([r.outputs for r in run_ranks(kernel[2], [(a, groups, ["reduce"] * 2) for a in x])] for _ in "ab")
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first[0], 64 * x.astype(np.float64).sum(0), rtol=1e-4, atol=1e-4)


@nki.jit
def in_place(x, group):
    ncc.all_reduce([x], [x], group, nl.add)
    return x


def test_arguments_are_updated_once_every_rank_has_succeeded():
    group = ncc.ReplicaGroup([[0, 1]])
    arrays = [torch.full((2, 3), float(rank + 1)) for rank in range(2)]
    found = run_ranks(in_place, [{"x": a, "group": group} for a in arrays])
    for array, finished in zip(arrays, found, strict=True):
        assert finished.outputs is array
        assert (array == 3).all()

    @nki.jit
    def fails_late(x, group, fails):
        ncc.all_reduce([x], [x], group, nl.add)
        return nl.ndarray((2, 2), nl.float32, nl.shared_hbm) if fails else x

    with pytest.raises(errors.OutputNotWrittenError):
        run_ranks(fails_late, [(a, group, n == 1) for n, a in enumerate(arrays)])
    assert all((a == 3).all() for a in arrays)


def test_an_array_of_two_ranks_is_not_written():
    group, x = ncc.ReplicaGroup([[0, 1]]), np.ones((2, 3), np.float32)
    with pytest.raises(errors.LaunchError, match="argument x is one array on ranks 0 and 1, and rank 0 writes to it"):
        run_ranks(in_place, [(x, group)] * 2)
    assert (x == 1).all()


@pytest.mark.parametrize("given", [[], [3], [(np.ones((2, 2)),)], [()]])
def test_arguments_that_are_none(given):
    with pytest.raises(errors.NkiValidationError, match=r"accepted|it takes|is not an NKI"):
        run_ranks(in_place, given)


def test_runner_for_other_suites():
    group, x = ncc.ReplicaGroup([[0, 1]]), np.ones((2, 3), np.float32)
    outputs = outputs_per_rank(in_place, 2, [{"x": x, "group": group}] * 2)
    assert all((o == 2).all() for o in outputs)
    assert (x == 1).all()


def test_options_bound_the_wait():
    with pytest.raises(ValueError, match="rank_timeout_seconds 0; accepted: above 0"):
        Options(rank_timeout_seconds=0)


@pytest.mark.parametrize("given", [[], None, "ab", {0: ()}])
def test_what_is_no_list_of_arguments_per_rank_is_refused(given: Any) -> None:
    with pytest.raises(errors.LaunchError, match=r"arguments_per_rank is .*; accepted: a list, one entry per rank"):
        run_ranks(lambda x: x, given)
