"""Launches as callers meet them: threads, interrupts, cores that disagree, what comes back, what stays behind."""

import gc
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nkisim import Options, machine, run
from nkisim.errors import DivergenceError, LaunchError, TargetError

X = np.arange(128 * 8, dtype=np.float32).reshape(128, 8)


def added(x, times=1):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    for _ in range(times):
        nisa.tensor_scalar(tile, tile, nl.add, 1.0)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
    nisa.dma_copy(out, tile)
    return out


def test_threads_simulate_one_after_the_other():
    results = {}

    def work(number):
        results[number] = nki.simulate(added)(X * number, 300)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert machine.current is None
    for number, result in results.items():
        np.testing.assert_array_equal(result, X * number + 300)


def test_a_kernel_may_simulate_another():
    def kernel(x):
        assert nki.simulate(added)(X).shape == X.shape
        return added(x)

    np.testing.assert_array_equal(nki.simulate(kernel)(X), X + 1)


def test_an_interrupt_ends_every_core_before_it_reaches_the_caller():
    def endless(x):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        while True:
            nisa.tensor_scalar(tile, tile, nl.add, 1.0)

    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        nki.simulate(nki.jit(endless)[2])(X)
    timer.join()
    assert machine.current is None
    assert len(run(added, X, 5).cores[0].stream) == 7


@pytest.mark.parametrize("difference", ["name", "dtype", "shape"])
def test_cores_that_create_different_shared_tensors(difference):
    def kernel(x):
        core = nl.program_id(0)
        name = f"out_{core}" if difference == "name" else "out"
        dtype = (nl.float32, nl.int32)[core] if difference == "dtype" else nl.float32
        shape = (128, 8 + core) if difference == "shape" else (128, 8)
        return nl.ndarray(shape, dtype, buffer=nl.shared_hbm, name=name)

    with pytest.raises(DivergenceError, match="creates shared_hbm tensor 0"):
        nki.simulate(nki.jit(kernel)[2])(X)


def test_cores_that_return_different_things():
    def kernel(x):
        return added(x) if nl.program_id(0) == 0 else None

    with pytest.raises(DivergenceError, match="core 1 None; accepted: the same"):
        nki.simulate(nki.jit(kernel)[2])(X)


def test_a_function_that_runs_nothing_is_no_kernel():
    def kernel(x):
        yield x

    with pytest.raises(LaunchError, match="kernel is a generator or coroutine"):
        nki.simulate(kernel)(X)


def test_parameters_may_have_the_names_of_run():
    def kernel(kernel, options):
        return added(kernel, options)

    np.testing.assert_array_equal(nki.simulate(kernel)(kernel=X, options=2), X + 2)


class Pair(NamedTuple):
    first: object
    second: object


def test_a_named_tuple_comes_back_as_one():
    def kernel(x):
        return Pair(added(x), 3)

    result = nki.simulate(kernel)(X)
    assert type(result) is Pair
    assert result.second == 3
    np.testing.assert_array_equal(result.first, X + 1)


def test_a_view_of_an_argument_is_not_the_argument():
    square = np.arange(16, dtype=np.float32).reshape(4, 4)
    np.testing.assert_array_equal(nki.simulate(lambda x: x.permute((1, 0)))(square), square.T)
    np.testing.assert_array_equal(nki.simulate(lambda x: x[1:3])(square), square[1:3])


def test_zeros_written_to_an_argument_reach_the_caller():
    def kernel(x):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.memset(tile, 0)
        nisa.dma_copy(x, tile)
        return x

    given = X.copy()
    nki.simulate(kernel)(given)
    assert not given.any()


@pytest.mark.parametrize("enabled", [True, False])
def test_cycle_collection_is_as_it_was(enabled):
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        run(added, X)
        assert gc.isenabled() is enabled
        with pytest.raises(ZeroDivisionError):
            run(lambda x: 1 // 0, X)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_what_one_target_accepts_another_still_checks():
    def kernel(x):
        tile, moved = (nl.ndarray((32, 32), nl.float32) for _ in range(2))
        nisa.memset(tile, 1.0)
        nisa.dma_copy(moved, tile, priority=1)
        out = nl.ndarray((32, 32), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, moved)
        return out

    run(kernel, X, options=Options(target="trn3"))
    with pytest.raises(TargetError, match="trn2; accepted: trn3"):
        run(kernel, X, options=Options(target="trn2"))


def test_timing_only_runs_take_no_values():
    finished = run(added, X, options=Options(numerics=False))
    assert finished.outputs is None
    assert finished.cores[0].stream == run(added, X).cores[0].stream


KEPT: dict[str, Callable[[Any, Any, Any], Any]] = {
    "read": lambda kept, out, x: nisa.dma_copy(out, kept),
    "written": lambda kept, out, x: (nisa.dma_copy(kept, x), nisa.dma_copy(out, x)),
    "viewed": lambda kept, out, x: nisa.dma_copy(out, kept[:, 0:8].reshape((128, 2, 4))),
    "index": lambda kept, out, x: nisa.dma_copy(out, x.vector_select(0, kept[:, 0:1].view(nl.int32))),
}


@pytest.mark.parametrize("use", KEPT)
@pytest.mark.parametrize("numerics", [True, False])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.shared_hbm])
def test_a_tensor_of_an_earlier_launch_is_refused(use, numerics, buffer):
    kept = []

    def kernel(x):
        tile = nl.ndarray(x.shape, x.dtype, buffer, name="kept")
        nisa.dma_copy(tile, x)
        kept.append(tile)
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        KEPT[use](kept[0], out, x)
        return out

    if use == "index" and buffer is nl.shared_hbm:
        pytest.skip("an index lies in SBUF")
    options, zeros = Options(numerics=numerics), np.zeros_like(X)
    run(kernel, zeros, options=options)
    with pytest.raises(
        LaunchError, match=r"kept \[128, 8\], made at .*launch_test.py.* is used by dma_copy at .*launch_test"
    ):
        run(kernel, zeros, options=options)


def test_an_argument_of_an_earlier_launch_is_refused_too_also_when_returned():
    kept = []

    def kernel(x, give_back):
        kept.append(x)
        return kept[0] if give_back else added(kept[0])

    run(kernel, X, False)
    with pytest.raises(LaunchError, match=r"x \[128, 8\], made in another launch .* is used by dma_copy"):
        run(kernel, X, False)
    with pytest.raises(LaunchError, match=r"x \[128, 8\], made in another launch .* is used by the kernel's return"):
        run(kernel, X, True)


def test_a_tile_of_another_core_is_refused():
    kept = []

    def kernel(x):
        tile = nl.ndarray(x.shape, x.dtype, name="tile")
        nisa.dma_copy(tile, x)
        kept.append(tile)
        nisa.core_barrier(x, (0, 1))
        nisa.tensor_scalar(tile, kept[0], nl.add, 1.0)

    with pytest.raises(LaunchError, match=r"tile \[128, 8\], made .* by another core, is used by tensor_scalar"):
        run(nki.jit(kernel)[2], X)
