"""What holds for every timeline: on random kernels, and on streams of every engine."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
import nkisim
from devicetime import analysis, constants, what_if
from devicetime.dma_costs import is_dma
from devicetime.predict import explain, predict
from devicetime.report import timeline as timeline_of
from devicetime.timeline import TrackKind

OPTIONS = nkisim.Options(target="trn2", numerics=False)
X = np.zeros((128, 128), np.float32)

CALLS = ("matmul", "vector", "scalar", "gpsimd", "load", "store", "transpose")
programs = st.lists(
    st.tuples(st.sampled_from(CALLS), st.integers(0, 3), st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=30
)


def step(call, target, data, whole, x, out):
    """One step of a random kernel: `whole` is the tile of which `data` are some columns."""
    columns = slice(0, data.shape[1])
    if call in ("matmul", "transpose"):
        bank = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)
        if call == "matmul":
            nisa.nc_matmul(bank, whole, whole)
        else:
            nisa.nc_transpose(bank, whole, nisa.engine.tensor)
        nisa.tensor_copy(dst=target, src=bank[:, columns], engine=nisa.engine.vector)
    elif call == "vector":
        nisa.tensor_tensor(dst=target, data1=target, data2=data, op=nl.add)
    elif call == "scalar":
        nisa.activation(dst=target, op=nl.exp, data=data)
    elif call == "gpsimd":
        nisa.memset(dst=target, value=1.0, engine=nisa.engine.gpsimd)
    elif call == "load":
        nisa.dma_copy(dst=target, src=x[:, columns])
    else:
        nisa.dma_copy(dst=out[:, columns], src=data)


def kernel_of(program):
    """Each step reads one of four tiles and writes another, some of their columns."""

    @nki.jit
    def kernel(x):
        tiles = [nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf) for _ in range(4)]
        out = nl.ndarray((4, *x.shape), x.dtype, nl.shared_hbm)
        for tile in tiles:
            nisa.memset(dst=tile, value=0.0)
        for call, to, source, parts in program:
            columns = slice(0, 32 * parts)
            step(call, tiles[to][:, columns], tiles[source][:, columns], tiles[source], x, out[to])
        for n in range(4):
            nisa.dma_copy(dst=out[n], src=tiles[n])
        return out

    return kernel


def check(timeline):
    """Tracks hold one event at a time, and nothing starts before what it needs."""
    assert (np.diff(timeline.start_ns) >= 0).all()
    assert (timeline.end_ns >= timeline.start_ns).all()
    assert (timeline.visible_ns >= timeline.end_ns).all()
    for track in range(len(timeline.tracks)):
        mine = np.flatnonzero(timeline.track == track)
        assert (timeline.start_ns[mine][1:] >= timeline.end_ns[mine][:-1]).all()
    before, after = timeline.edges.T
    triggers = (timeline.record[before] == timeline.record[after]) & (timeline.core[before] == timeline.core[after])
    released = np.where(
        timeline.track[before] == timeline.track[after], timeline.end_ns[before], timeline.visible_ns[before]
    )
    earliest = np.where(triggers, timeline.start_ns[before], released)
    assert (timeline.start_ns[after] >= earliest).all()
    assert (timeline.blocker < np.arange(timeline.events)).all()


def limit_ns(stream):
    """What no schedule can beat: products on a full array, bytes through a stack of HBM or all DMA engines."""
    moved = sum(max(r.size_bytes for r in (*record.reads, *record.writes)) for record in stream if is_dma(record))
    regions = [r for record in stream if is_dma(record) for r in (*record.reads, *record.writes)]
    in_hbm = sum(r.size_bytes for r in regions if r.allocation.buffer is nl.shared_hbm)
    passes = sum(4 * 128 for record in stream if record.op == "nc_matmul")
    c = constants.TRN2
    return max(passes / 2.4, in_hbm / c.hbm_pair_bytes_per_ns, moved / (16 * c.dma_engine_bytes_per_ns))


@given(programs)
@settings(max_examples=60, deadline=None)
def test_random_kernels(program):
    prediction = explain(nkisim.run(kernel_of(program), X, options=OPTIONS))
    timeline = timeline_of(prediction)
    check(timeline)
    path = analysis.critical_path(timeline)
    assert path.run_ns.sum() + path.wait_ns.sum() == pytest.approx(timeline.total_ns)
    assert (path.run_ns >= 0).all()
    assert (path.wait_ns >= 0).all()
    for name, waited in analysis.stalls(timeline).items():
        busy = analysis.busy_shares(timeline)[name] * timeline.total_ns
        assert busy + sum(waited.values()) == pytest.approx(timeline.total_ns)
    assert limit_ns(prediction.reports[0].stream) <= timeline.total_ns


@given(programs)
@settings(max_examples=40, deadline=None)
def test_a_cost_that_falls_costs_little_at_most(program):
    """List scheduling is not monotone (Graham's anomalies), but it stays within its bound of the best schedule."""
    prediction = explain(nkisim.run(kernel_of(program), X, options=OPTIONS))
    for answer in what_if.what_if(prediction):
        assert answer.gain >= -0.25, answer


@nki.jit
def in_a_row(x):
    """Each instruction needs the one before, so that there is one order only."""
    tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x)
    for _ in range(5):
        bank = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(bank, tile, tile)
        nisa.activation(dst=tile, op=nl.exp, data=bank)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_where_order_is_given_whatever_gets_cheaper_helps():
    prediction = explain(nkisim.run(in_a_row, X, options=OPTIONS))
    gains = {answer.without: answer.gain for answer in what_if.what_if(prediction)}
    assert all(gain >= 0 for gain in gains.values())
    assert all(gains[name] > 0 for name in ("Tensor Engine", "Vector Engine", "Scalar Engine", "GpSimd Engine"))
    assert all(gains[name] > 0 for name in ("DMA engines", "throttling", "dependency", "queue", "semaphore"))
    assert gains["order"] == gains["buffer_reuse"] == 0


def test_two_runs_are_byte_identical():
    program = [(CALLS[n % 7], n % 4, n // 2 % 4, 1 + n % 4) for n in range(60)]
    made = [predict(nkisim.run(kernel_of(program), X, options=OPTIONS)) for _ in range(2)]
    for name in ("core", "record", "track", "start_ns", "end_ns", "visible_ns", "cause", "blocker", "edges"):
        assert getattr(made[0], name).tobytes() == getattr(made[1], name).tobytes()
    assert made[0].sbuf_bytes[0].tobytes() == made[1].sbuf_bytes[0].tobytes()
    assert made[0].psum_banks[0].tobytes() == made[1].psum_banks[0].tobytes()


@nki.jit
def tall(x, repeats):
    """Independent chains, which the scheduler may interleave."""
    out = nl.ndarray((repeats, *x.shape), x.dtype, nl.shared_hbm)
    for n in range(repeats):
        tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
        made = nl.ndarray(x.shape, x.dtype, nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        nisa.tensor_scalar(dst=made, data=tile, op0=nl.add, operand0=1.0)
        nisa.dma_copy(dst=out[n], src=made)
    return out


def calls_of_python(function):
    import cProfile
    import pstats

    profile = cProfile.Profile()
    profile.runcall(function)
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]


def test_python_does_the_same_work_for_a_stream_ten_times_as_long():
    """What grows with the stream is numpy's and compiled; a call of Python per instruction would show."""
    short, long = (nkisim.run(tall, X, repeats, options=OPTIONS) for repeats in (200, 2000))
    predict(short)
    counts = [calls_of_python(lambda run=run: predict(run)) for run in (short, long)]
    assert counts[1] < counts[0] + 200


def test_independent_chains_overlap():
    """Descriptors for a load and a store take GpSimd 2 x 608 ns; everything else runs beside that."""
    timeline = predict(nkisim.run(tall, X, 50, options=OPTIONS))
    check(timeline)
    made = constants.TRN2.software_dge_ns + 128 * constants.TRN2.software_dge_descriptor_ns
    assert timeline.total_ns < 100 * made + 6000


def test_occupancy_ends_at_zero_and_stays_within_memory():
    timeline = predict(nkisim.run(tall, X, 50, options=OPTIONS))
    (sbuf,), (psum,) = timeline.sbuf_bytes, timeline.psum_banks
    assert sbuf[-1, 1] == 0
    assert 2 * 512 <= sbuf[:, 1].max() <= 100 * 512
    assert (np.diff(sbuf[:, 0]) > 0).all()
    assert len(psum) == 0


def test_tracks():
    timeline = predict(nkisim.run(tall, X, 2, options=OPTIONS))
    kinds = [track.kind for track in timeline.tracks]
    assert kinds.count(TrackKind.dma_queue) == 16
    assert timeline.tracks[0].name == "core 0 Tensor"
