"""Two cores: barriers, exchanges, and the races and deadlocks that go with them."""

from typing import Any

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nkisim import Options, run
from nkisim.errors import (
    ArgumentError,
    DeadlockError,
    DivergenceError,
    DtypeError,
    EngineError,
    LaunchError,
    RaceError,
    ShapeError,
    UninitializedReadError,
    WrongBufferError,
)

X = np.random.default_rng(1).standard_normal((64, 32)).astype(np.float32)


def _cores(kernel, *arrays, lnc=2, **options):
    return run(nki.jit(kernel)[lnc], *arrays, options=Options(**options))


def _halves(barrier):
    """Each core doubles its half into shared HBM, then reads all of it and writes its own copy times the core."""

    def kernel(x):
        me = nl.program_id(0)
        rows = x.shape[0] // 2
        shared = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="shared")
        out = nl.ndarray((2, *x.shape), x.dtype, nl.shared_hbm)
        mine = nl.multiply(nl.load(x[nl.ds(me * rows, rows)]), 2.0)
        nisa.dma_copy(shared[nl.ds(me * rows, rows)], mine)
        barrier(shared)
        nl.store(out[me], nl.multiply(nl.load(shared), float(me + 1)))
        return out

    return kernel


def _barrier(shared):
    nisa.core_barrier(shared, (0, 1))


def test_a_barrier_shows_each_core_what_the_other_wrote():
    finished = _cores(_halves(_barrier), X)
    np.testing.assert_array_equal(finished.outputs, np.stack([X * 2, X * 4]))
    for core in finished.cores:
        (record,) = [r for r in core.stream if r.op == "core_barrier"]
        assert record.engine is nisa.engine.gpsimd
        assert record.reads[0].allocation.name == "shared"


def test_a_timing_only_run_meets_too():
    streams = [[r.op for r in core.stream] for core in _cores(_halves(_barrier), X, numerics=False).cores]
    assert streams == [[r.op for r in core.stream] for core in _cores(_halves(_barrier), X).cores]


def test_without_a_barrier_the_first_core_reads_what_nobody_has_written():
    with pytest.raises(UninitializedReadError, match="nothing has written it"):
        _cores(_halves(lambda shared: None), X)


def _one_way(write, use, ordered=True):
    """Core 1 calls `write`, core 0 then `use`, on a tensor of zeros that both have met over."""

    def kernel():
        shared = nl.ndarray((32, 8), nl.float32, nl.shared_hbm, name="shared")
        me = nl.program_id(0)
        if me == 0:
            nl.store(shared, nl.zeros((32, 8), nl.float32))
        nisa.core_barrier(shared, (0, 1))  # the core that came last goes on first
        if me == 1:
            write(shared)
        if ordered:
            nisa.core_barrier(shared, (0, 1))
        if me == 0:
            use(shared)
        return shared

    return kernel


def _store(value, rows=slice(0, 32)):
    return lambda shared: nl.store(shared[rows], nl.full((rows.stop - rows.start, 8), value, nl.float32))


def _load(rows=slice(0, 32)):
    return lambda shared: nl.load(shared[rows])


def _both(first, second):
    def use(shared):
        first(shared)
        second(shared)

    return use


def _twice(value):
    """Stores what the other core stored and reads it."""

    def use(shared):
        _store(value)(shared)
        nl.load(shared)

    return use


@pytest.mark.parametrize(
    ("write", "use", "words"),
    [
        (_store(1.0), _load(), r"core 0 reads shared \[32, 8\], part of which core 1 wrote at .*cores_test.py"),
        (_store(1.0, slice(0, 9)), _load(slice(8, 20)), "core 0 reads"),
        (_store(1.0), _store(2.0), r"core 0 overwrites shared \[32, 8\], part of which core 1 wrote"),
        (_load(), _store(2.0), r"core 0 overwrites shared \[32, 8\], part of which core 1 read"),
        (_store(1.0), _both(_store(1.0), _store(2.0)), "core 0 overwrites"),
        (_store(1.0), _both(_store(2.0), _store(1.0, slice(0, 31))), "core 0 overwrites"),
        (_store(1.0), _twice(2.0), "core 0 overwrites"),
    ],
)
def test_races(write, use, words):
    with pytest.raises(RaceError, match=words) as caught:
        _cores(_one_way(write, use, ordered=False))
    assert "accepted: nisa.core_barrier(shared, (0, 1)) in between" in str(caught.value)
    _cores(_one_way(write, use))


@pytest.mark.parametrize(
    ("write", "use"),
    [
        (_store(1.0, slice(0, 8)), _load(slice(8, 20))), (_store(1.0), _store(1.0)), (_load(), _load()),
        (_store(1.0, slice(0, 16)), _store(2.0, slice(16, 32))), (_load(), _store(0.0)), (_store(1.0), _twice(1.0)),
        (_store(1.0), _both(_store(2.0), _twice(1.0))),
    ],
)  # fmt: skip
def test_no_races(write, use):
    _cores(_one_way(write, use, ordered=False))


def test_a_barrier_on_another_tensor_orders_nothing():
    def kernel(x):
        a, b = (nl.ndarray((32, 8), nl.float32, nl.shared_hbm, name=n) for n in ("a", "b"))
        nl.store(b[nl.ds(nl.program_id(0) * 16, 16)], nl.zeros((16, 8), nl.float32))
        if nl.program_id(0) == 0:
            nl.store(a, nl.zeros((32, 8), nl.float32))
        nisa.core_barrier(b, (0, 1))
        if nl.program_id(0) == 1:
            nl.load(a)
        return a

    with pytest.raises(RaceError, match=r"core 1 reads a \[32, 8\]"):
        _cores(kernel, X)


def test_gathered_rows_race_by_row():
    def kernel(wanted):
        table = nl.ndarray((32, 8), nl.float32, nl.shared_hbm, name="table")
        me = nl.program_id(0)
        nl.store(table[nl.ds(me * 16, 16)], nl.full((16, 8), float(me), nl.float32))
        rows = nl.load(wanted[me])
        nisa.dma_copy(nl.ndarray((4, 8), nl.float32), table.vector_select(0, rows))
        return table

    own = np.array([[0, 3, 3, 15], [16, 20, 31, 16]], np.int32)[:, :, None]
    _cores(kernel, own)
    own[1, 2] = 4
    with pytest.raises(RaceError, match="core 1 reads table"):
        _cores(kernel, own)


def test_arguments_updated_in_place():
    def kernel(x, ordered):
        tile = nl.load(x)
        if ordered:
            nisa.core_barrier(x, (0, 1))
        if nl.program_id(0) == 1:
            nl.store(x, nl.multiply(tile, 3.0))
        return x

    mine = X.copy()
    _cores(kernel, mine, True)
    np.testing.assert_array_equal(mine, X * 3)
    with pytest.raises(RaceError, match=r"core 1 overwrites x \[64, 32\], part of which core 0 read"):
        _cores(kernel, mine, False)


def _exchange(pipe=lambda me: 0, target=lambda me: 1 - me, source=lambda me: 1 - me, dma=nisa.dma_engine.dma, **tile):
    shape, dtype = tile.get("shape", (64, 32)), tile.get("dtype", nl.float32)

    def kernel(x):
        me = nl.program_id(0)
        sent = nl.multiply(nl.load(x), float(me + 1), dtype).reshape(shape(me) if callable(shape) else shape)
        received = nl.ndarray(sent.shape, sent.dtype)
        nisa.sendrecv(sent, received, target(me), source(me), pipe(me), dma_engine=dma)
        out = nl.ndarray((2, *sent.shape), sent.dtype, nl.shared_hbm)
        nl.store(out[me], received)
        return out

    return kernel


@pytest.mark.parametrize("dma", list(nisa.dma_engine))
def test_exchange(dma):
    finished = _cores(_exchange(dma=dma), X)
    np.testing.assert_array_equal(finished.outputs, np.stack([X * 2, X]))
    (record,) = [r for r in finished.cores[0].stream if r.op == "sendrecv"]
    assert record.engine is (nisa.engine.dma if dma is nisa.dma_engine.dma else nisa.engine.gpsimd)
    assert record.detail == (1, 1, 0, dma)


def test_exchange_with_oneself():
    outputs = _cores(_exchange(target=lambda me: me, source=lambda me: me), X).outputs
    np.testing.assert_array_equal(outputs, np.stack([X, X * 2]))


def test_pipes_match_in_any_order():
    def kernel(x):
        me = nl.program_id(0)
        out = nl.ndarray((2, 2, 64, 32), nl.float32, nl.shared_hbm)
        sent = nl.multiply(nl.load(x), float(me + 1))
        for pipe in (0, 0):
            received = nl.ndarray(sent.shape, sent.dtype)
            nisa.sendrecv(sent, received, 1 - me, 1 - me, pipe_id=pipe)
            sent = nl.multiply(received, 10.0)
        nl.store(out[me, 0], sent)
        nl.store(out[me, 1], received)
        return out

    outputs = _cores(kernel, X).outputs
    np.testing.assert_allclose(outputs[0, 1], X * 10, rtol=1e-6)
    np.testing.assert_allclose(outputs[1, 0], X * 200, rtol=1e-6)


def test_gpsimd_dma_sizes():
    for dtype, size in ((nl.float32, 4), (nl.bfloat16, 2)):
        x = np.ones((8, 256), np.float32)
        _cores(_exchange(dma=nisa.dma_engine.gpsimd_dma, shape=(8, 256), dtype=dtype), x)
        with pytest.raises(
            ShapeError, match=f"{257 * size} bytes per partition by gpsimd_dma; accepted: up to {256 * size}"
        ):
            _cores(
                _exchange(dma=nisa.dma_engine.gpsimd_dma, shape=(8, 257), dtype=dtype), np.ones((8, 257), np.float32)
            )
    _cores(_exchange(shape=(8, 257)), np.ones((8, 257), np.float32))


def test_elements_that_nobody_wrote_stay_so():
    def kernel(x, written_before):
        me = nl.program_id(0)
        sent, received = nl.ndarray((64, 32), nl.float32), nl.ndarray((64, 32), nl.float32)
        nisa.dma_copy(sent[:4], x[:4])
        if written_before:
            nisa.memset(received, 0.0)
        nisa.sendrecv(sent, received, 1 - me, 1 - me, 0)
        nl.exp(received[:4])
        with pytest.raises(UninitializedReadError):
            nl.exp(received[:5])

    _cores(kernel, X, False)
    _cores(kernel, X, True)
    with pytest.raises(UninitializedReadError, match=r"nisa.sendrecv: src: element"):
        _cores(lambda: nisa.sendrecv(nl.ndarray((4, 4), nl.int8), nl.ndarray((4, 4), nl.int8), 1, 1, 0))


def test_a_core_that_never_comes():
    def barrier(x):
        out = nl.ndarray((4, 4), nl.float32, nl.shared_hbm, name="out")
        if nl.program_id(0) == 1:
            nisa.core_barrier(out, (0, 1))

    with pytest.raises(DeadlockError, match=r"core 1 waits for core 0 at nisa.core_barrier number 1; core 0 finished"):
        _cores(barrier, X)
    with pytest.raises(DeadlockError, match=r"core 0 waits for core 1 at nisa.sendrecv number 1 on pipe 0"):
        _cores(_exchange(pipe=lambda me: me), X)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (_exchange(source=lambda me: 1), "accepted: each core receives from the one that sends to it"),
        (_exchange(shape=lambda me: (64, 32) if me else (64, 4, 8)), r"float32\[64, 4, 8\] on core 0"),
    ],
)
def test_cores_that_disagree(kernel, words):
    with pytest.raises(DivergenceError, match=words):
        _cores(kernel, X)


def test_barriers_on_different_tensors():
    def kernel(x):
        both = [nl.ndarray((4, 4), nl.float32, nl.shared_hbm, name=n) for n in "ab"]
        nisa.core_barrier(both[nl.program_id(0)], (0, 1))

    with pytest.raises(DivergenceError, match="data is a on core 0, data is b on core 1"):
        _cores(kernel, X)


def test_constants_are_the_same_on_both_cores():
    def kernel(differing):
        value = nl.program_id(0) if differing else 3
        nl.shared_constant(np.full((4, 4), value, np.float32))

    _cores(kernel, False)
    with pytest.raises(DivergenceError, match="core 1 gives other data"):
        _cores(kernel, True)


def _calls(**changed):
    def kernel():
        sb, hbm = nl.zeros((8, 8), nl.float32), nl.ndarray((8, 8), nl.float32, nl.shared_hbm)
        given: dict[str, Any] = {"src": sb, "dst": sb, "send_to_rank": 1, "recv_from_rank": 1, "pipe_id": 0}
        made = {k: v(sb, hbm) if callable(v) else v for k, v in changed.items()}
        nisa.sendrecv(**(given | made))

    return kernel


@pytest.mark.parametrize(
    ("kernel", "error", "words"),
    [
        (_calls(src=lambda sb, hbm: hbm), WrongBufferError, "src .* lies in shared_hbm; accepted: sbuf"),
        (_calls(dst=lambda sb, hbm: sb[:, :4]), ShapeError, "accepted: the same shape"),
        (_calls(dst=lambda sb, hbm: sb.view(nl.int32)), DtypeError, "accepted: the same type"),
        (_calls(send_to_rank=2), ArgumentError, "send_to_rank 2; accepted: 0 or 1"),
        (_calls(recv_from_rank=None), ArgumentError, "recv_from_rank None; accepted: 0 or 1"),
        (_calls(pipe_id="a"), ArgumentError, "pipe_id 'a'"),
        (_calls(dma_engine=2), EngineError, "dma_engine 2; accepted: dma_engine.dma"),
        (lambda: nisa.core_barrier(nl.zeros((4, 4), nl.float32), (0, 1)), WrongBufferError, "accepted: shared_hbm"),
        (lambda: nisa.core_barrier(nl.ndarray((4, 4), nl.float32, nl.hbm), (0, 1)), WrongBufferError, "private_hbm"),
        (lambda: nisa.core_barrier(nl.ndarray((4,), nl.float32, nl.shared_hbm), (0,)), ArgumentError, r"\(0,\)"),
        (lambda: nisa.core_barrier(nl.ndarray((4,), nl.float32, nl.shared_hbm), 2), ArgumentError, "cores 2"),
        (
            lambda: nisa.core_barrier(nl.ndarray((4,), nl.float32, nl.shared_hbm), (0, 1), nisa.engine.dma),
            EngineError, "engine 'dma'",
        ),
    ],
)  # fmt: skip
def test_arguments(kernel, error, words):
    with pytest.raises(error, match=words):
        _cores(kernel)


def test_one_core_has_nobody_to_meet():
    with pytest.raises(LaunchError, match=r"nisa.core_barrier: the kernel runs on 1 core; accepted: kernel\[2\]"):
        _cores(lambda: nisa.core_barrier(nl.ndarray((4,), nl.float32, nl.shared_hbm), (0, 1)), lnc=1)
    with pytest.raises(LaunchError, match=r"nisa.sendrecv: the kernel runs on 1 core"):
        _cores(_calls(), lnc=1)
