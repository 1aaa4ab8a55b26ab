"""Barriers, exchanges and collectives: nobody goes on before the last one came."""

import numpy as np
import pytest

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
import nkisim
from devicetime import constants
from devicetime.predict import predict

C = constants.TRN2
OPTIONS = nkisim.Options(target="trn2", numerics=False)
X = np.zeros((128, 256), np.float32)


def events(timeline, op, core):
    """Of a core, those of a call that are not triggers, in order."""
    return [
        n
        for n in range(timeline.events)
        if timeline.core[n] == core
        and timeline.record_of(n).op == op
        and (timeline.tracks[timeline.track[n]].short_name not in ("GpSimd", "Sync") or op == "core_barrier")
    ]


def busywork(tile, times):
    for _ in range(times):
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)


@nki.jit
def uneven_barrier(x):
    me = nl.program_id(0)
    shared = nl.ndarray((2, *x.shape), x.dtype, nl.shared_hbm, name="shared")
    tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    busywork(tile, 1 + 20 * me)
    nisa.dma_copy(dst=shared[me], src=tile)
    nisa.core_barrier(shared, (0, 1))
    nisa.dma_copy(dst=tile, src=shared[1 - me])
    out = nl.ndarray((2, *x.shape), x.dtype, nl.shared_hbm)
    nisa.dma_copy(dst=out[me], src=tile)
    return out


def test_a_barrier_waits_for_the_slower_core():
    timeline = predict(nkisim.run(uneven_barrier[2], X, options=OPTIONS))
    barriers = [events(timeline, "core_barrier", core)[0] for core in (0, 1)]
    stores = [events(timeline, "dma_copy", core)[1] for core in (0, 1)]
    loads = [events(timeline, "dma_copy", core)[2] for core in (0, 1)]
    last_store = max(timeline.visible_ns[stores])
    assert timeline.visible_ns[stores[0]] < timeline.visible_ns[stores[1]]
    assert timeline.start_ns[barriers] == pytest.approx([last_store + C.dma_completion_ns] * 2)
    assert (timeline.start_ns[loads] > timeline.visible_ns[barriers].max()).all()


@nki.jit
def swap(x):
    me = nl.program_id(0)
    tile, other = (nl.ndarray(x.shape, x.dtype, nl.sbuf) for _ in range(2))
    nisa.dma_copy(dst=tile, src=x)
    busywork(tile, 1 + 20 * me)
    nisa.sendrecv(tile, other, 1 - me, 1 - me, pipe_id=0)
    out = nl.ndarray((2, *x.shape), x.dtype, nl.shared_hbm)
    nisa.dma_copy(dst=out[me], src=other)
    return out


def test_an_exchange_starts_when_both_can():
    timeline = predict(nkisim.run(swap[2], X, options=OPTIONS))
    exchanged = [events(timeline, "sendrecv", core)[0] for core in (0, 1)]
    vector = [n for n in range(timeline.events) if timeline.tracks[timeline.track[n]].short_name == "Vector"]
    assert timeline.start_ns[exchanged[0]] == pytest.approx(timeline.start_ns[exchanged[1]])
    assert timeline.start_ns[exchanged[0]] > timeline.visible_ns[vector].max()


@nki.jit
def reduce_all(x, times, groups):
    tile, result = (nl.ndarray(x.shape, x.dtype, nl.sbuf) for _ in range(2))
    nisa.dma_copy(dst=tile, src=x)
    busywork(tile, times)
    ncc.all_reduce([tile], [result], ncc.ReplicaGroup(groups), nl.add)
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(dst=out, src=result)
    return out


@pytest.mark.parametrize("groups", [[[0, 1, 2, 3]], [[0, 1], [2, 3]]])
def test_a_collective_waits_for_the_slowest_rank_of_its_group(groups):
    runs = nkisim.run_ranks(reduce_all, [(X, 1 + 10 * rank, groups) for rank in range(4)], OPTIONS)
    timeline = predict(runs)
    begins = [timeline.start_ns[events(timeline, "all_reduce", rank)[0]] for rank in range(4)]
    lasts = [events(timeline, "all_reduce", rank)[0] for rank in range(4)]
    for group in groups:
        assert begins[group[0]] == pytest.approx(begins[group[-1]])
    assert (begins[0] == pytest.approx(begins[3])) == (len(groups) == 1)
    size = len(groups[0])
    moved = 2 * (size - 1) / size * X.nbytes / C.link_bytes_per_ns
    expected = 2 * (size - 1) * C.collective_hop_ns + moved
    assert timeline.end_ns[lasts] - timeline.start_ns[lasts] == pytest.approx([expected] * 4)


@nki.jit
def two_pass_something_on(x, pairs):
    source, out = (nl.ndarray(x.shape, x.dtype, nl.shared_hbm) for _ in range(2))
    nisa.dma_copy(dst=source, src=x)
    nisa.dma_copy(dst=out, src=x)
    ncc.collective_permute([source], [out], pairs)
    return out


def test_ranks_that_send_and_receive_nothing_wait_for_nobody():
    runs = nkisim.run_ranks(two_pass_something_on, [(X, [(0, 1)]) for _ in range(3)], OPTIONS)
    timeline = predict(runs)
    assert [len(events(timeline, "collective_permute", rank)) for rank in range(3)] == [1, 1, 0]


@nki.jit
def barrier_after(x, times):
    me = nl.program_id(0)
    shared = nl.ndarray((2, *x.shape), x.dtype, nl.shared_hbm, name="shared")
    tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    busywork(tile, times)
    nisa.dma_copy(dst=shared[me], src=tile)
    nisa.core_barrier(shared, (0, 1))
    return shared


def test_barriers_of_different_ranks_do_not_wait_for_each_other():
    timeline = predict(nkisim.run_ranks(barrier_after[2], [(X, 1), (X, 40)], OPTIONS))
    begins = [timeline.start_ns[events(timeline, "core_barrier", core)[0]] for core in range(4)]
    assert begins[0] == pytest.approx(begins[1])
    assert begins[2] == pytest.approx(begins[3])
    assert begins[2] > begins[0] + 20 * 256 / 2 / 0.96


@nki.jit
def gather_all(x):
    tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    result = nl.ndarray((x.shape[0], 4 * x.shape[1]), x.dtype, nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    ncc.all_gather([tile], [result], ncc.ReplicaGroup([[0, 1, 2, 3]]), collective_dim=1)
    out = nl.ndarray(result.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(dst=out, src=result)
    return out


def test_a_gather_is_three_hops_of_a_ring_and_three_quarters_of_the_result():
    timeline = predict(nkisim.run_ranks(gather_all, [(X,)] * 4, OPTIONS))
    event = events(timeline, "all_gather", 0)[0]
    expected = 3 * C.collective_hop_ns + 3 * X.nbytes / C.link_bytes_per_ns
    assert timeline.end_ns[event] - timeline.start_ns[event] == pytest.approx(expected)
