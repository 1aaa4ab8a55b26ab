"""Where time goes, by hand: causes of single nodes, and tables of a load, an instruction and a store."""

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
import nkisim
from devicetime import analysis, constants, report
from devicetime.cost import GPSIMD, SCALAR, SYNC, TENSOR, VECTOR
from devicetime.dependencies import DEPENDENCY, ORDER, REUSE
from devicetime.nodes import COMES, EDGE, MEETS, NO_TRACK, NODE, TRANSFER, Work
from devicetime.predict import predict
from devicetime.scheduler import schedule
from devicetime.timeline import Cause

C = constants.TRN2
OPTIONS = nkisim.Options(target="trn2", numerics=False)


def causes(rows, edges):
    """Cause and blocker of nodes, given as (track, hold, done)."""
    nodes = np.zeros(len(rows), NODE)
    for n, (track, hold, done) in enumerate(rows):
        nodes[n]["track"], nodes[n]["hold_ns"], nodes[n]["done_ns"], nodes[n]["record"] = track, hold, done, n
        nodes[n]["engines"] = track == TRANSFER
    work = Work(nodes, np.array(edges, EDGE), 1)
    cause, blocker = report.causes(work, schedule(work, C, 16))
    return [(Cause(c), b) for c, b in zip(cause.tolist(), blocker.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("other_ns", "expected"),
    [
        (20, (Cause.dependency, 0)),  # free before the result was there
        (400, (Cause.semaphore, 0)),  # free while the result was on its way: it is there at 300, seen at 568
        (600, (Cause.engine, 1)),
    ],
)
def test_what_an_instruction_waited_for(other_ns, expected):
    rows = [(VECTOR, 10, 300), (SCALAR, other_ns, other_ns), (SCALAR, 10, 10)]
    assert causes(rows, [(0, 2, DEPENDENCY), (1, 2, ORDER)])[2] == expected


@pytest.mark.parametrize(
    ("kind", "cause"),
    [(DEPENDENCY, Cause.dependency), (REUSE, Cause.buffer_reuse), (ORDER, Cause.order), (MEETS, Cause.collective)],
)
def test_kinds_of_edges_are_causes(kind, cause):
    found = causes([(VECTOR, 10, 300), (SCALAR, 10, 10)], [(0, 1, kind)])
    assert found == [(Cause.none, -1), (cause, 0)]


def test_a_transfer_waits_for_its_descriptors_and_joins_stand_for_their_last():
    rows = [(GPSIMD, 5, 5), (TRANSFER, 50, 50), (VECTOR, 10, 100), (NO_TRACK, 0, 0), (TENSOR, 10, 10)]
    edges = [(0, 1, COMES), (1, 3, REUSE), (2, 3, REUSE), (3, 4, REUSE)]
    found = causes(rows, edges)
    assert found[1] == (Cause.none, -1)  # it begins at 0
    # The transfer's bytes are there at 50 and seen at 375, the result at 368.
    assert found[4] == (Cause.buffer_reuse, 1)


@nki.jit
def load_scale_store(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


DESCRIPTORS = C.software_dge_ns + 128 * C.software_dge_descriptor_ns
FIRST_BYTE = C.software_dge_ns + 8 * C.software_dge_descriptor_ns + C.dma_fetch_ns
LAST_BYTE = (
    FIRST_BYTE + 15 * 8 * C.software_dge_descriptor_ns + 8 * (C.dma_descriptor_ns + 2048 / C.dma_engine_bytes_per_ns)
)
SCALED_NS, SCALING_NS = (512 / 2 + C.vector_latency_cycles) / 0.96, (512 / 2 + C.vector_overhead_cycles) / 0.96
TOTAL = 2 * LAST_BYTE + C.dma_completion_ns + SCALED_NS + C.semaphore_ns


@pytest.fixture(scope="module")
def timeline():
    return predict(nkisim.run(load_scale_store, np.zeros((128, 512), np.float32), options=OPTIONS))


def test_busy_shares(timeline):
    assert analysis.busy_shares(timeline) == {
        "core 0 Vector": pytest.approx(SCALING_NS / TOTAL),
        "core 0 GpSimd": pytest.approx(2 * DESCRIPTORS / TOTAL),
        "core 0 DMA": pytest.approx(2 * (LAST_BYTE - FIRST_BYTE) / TOTAL),
    }


def test_transfers_that_overlap_are_busy_once():
    assert analysis._covered(np.array([0.0, 1, 2, 20]), np.array([10.0, 3, 12, 21])) == 13


def test_the_critical_path_by_call(timeline):
    path = analysis.critical_path(timeline)
    assert path.events.tolist() == [0, 1, 2, 3, 4]
    assert analysis.path_by_call(timeline, path) == {
        "dma_copy on DMA": pytest.approx(2 * (LAST_BYTE - FIRST_BYTE)),
        "dma_copy on GpSimd": pytest.approx(2 * DESCRIPTORS),
        "waiting: dependency": pytest.approx(C.dma_completion_ns + C.semaphore_ns),
        "tensor_scalar on Vector": pytest.approx(SCALED_NS),
        "waiting: queue": pytest.approx(2 * (FIRST_BYTE - DESCRIPTORS)),
    }
    lines = analysis.path_by_line(timeline, path)
    assert sum(lines.values()) == pytest.approx(TOTAL)
    here = load_scale_store.__wrapped__.__code__.co_firstlineno
    assert f"analysis_test.py:{here + 5} on Vector" in lines
    assert list(lines.values()) == sorted(lines.values(), reverse=True)


def test_stalls(timeline):
    """The second load's descriptors wait for the result and a semaphore; Vector for the last byte and its arrival."""
    scaled = LAST_BYTE + C.dma_completion_ns + SCALED_NS
    found = analysis.stalls(timeline)
    assert found["core 0 GpSimd"] == {
        "dependency": pytest.approx(scaled - DESCRIPTORS),
        "none": pytest.approx(TOTAL - scaled - C.semaphore_ns - DESCRIPTORS),
        "semaphore": pytest.approx(C.semaphore_ns),
    }
    assert found["core 0 Vector"] == {
        "dependency": pytest.approx(LAST_BYTE),
        "none": pytest.approx(TOTAL - LAST_BYTE - C.dma_completion_ns - SCALING_NS),
        "semaphore": pytest.approx(C.dma_completion_ns),
    }
    assert set(found) == {"core 0 GpSimd", "core 0 Vector"}


@nki.jit
def one_bank(x):
    tile = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    out = nl.ndarray((2, 128, 128), dtype=nl.float32, buffer=nl.shared_hbm)
    for n in range(2):
        bank = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum, address=(0, 0))
        kept = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
        nisa.nc_matmul(dst=bank, stationary=tile, moving=tile)
        nisa.tensor_copy(dst=kept, src=bank, engine=nisa.engine.vector)
        nisa.dma_copy(dst=out[n], src=kept)
    return out


def test_a_bank_that_is_reused_stalls_the_tensor_engine():
    """The second product waits for the first one's eviction (128 columns out of PSUM), then for its semaphore."""
    made = predict(nkisim.run(one_bank, np.zeros((128, 128), np.float32), options=OPTIONS))
    found = analysis.stalls(made)["core 0 Tensor"]
    evicted = (128 + C.vector_latency_cycles) / 0.96
    assert found["buffer_reuse"] == pytest.approx(C.tensor_fill_ns + C.semaphore_ns + evicted)
    assert found["semaphore"] == pytest.approx(C.dma_completion_ns + C.semaphore_ns)


def test_the_path_leads_through_what_held_an_engine():
    """Two loads' descriptors one after the other: the second waits for GpSimd, not for data."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, *x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
        for n in range(2):
            nisa.dma_copy(dst=out[n], src=x)
        return out

    made = predict(nkisim.run(kernel, np.zeros((128, 512), np.float32), options=OPTIONS))
    path = analysis.critical_path(made)
    assert [Cause(int(made.cause[event])) for event in path.events] == [Cause.none, Cause.engine, Cause.queue]
    assert path.wait_ns[1] == 0
    assert SYNC not in made.track.tolist()
