"""Schedules of a few nodes by hand, and the Tensor Engine's throttle against a plain account of its window."""

import dataclasses

import numpy as np
import pytest

from devicetime import constants
from devicetime.cost import GPSIMD, SCALAR, TENSOR, VECTOR
from devicetime.dependencies import DEPENDENCY, ORDER, REUSE
from devicetime.nodes import COMES, EDGE, NODE, TRANSFER, Work
from devicetime.scheduler import schedule

C = dataclasses.replace(constants.TRN2, semaphore_ns=100, dma_completion_ns=300)


def work(rows, edges, cores=1):
    """Rows of (track, hold, done), all of core 0."""
    nodes = np.zeros(len(rows), NODE)
    for n, (track, hold, done) in enumerate(rows):
        nodes[n]["track"], nodes[n]["hold_ns"], nodes[n]["done_ns"], nodes[n]["record"] = track, hold, done, n
    return Work(nodes, np.array(edges, EDGE), cores)


def starts(given, values=C):
    return schedule(given, values, 16)["start_ns"].tolist()


def test_another_engine_waits_for_the_result_and_a_semaphore():
    assert starts(work([(VECTOR, 10, 50), (SCALAR, 10, 20)], [(0, 1, DEPENDENCY)])) == [0, 150]


def test_the_same_engine_waits_for_the_result_only():
    assert starts(work([(VECTOR, 10, 50), (VECTOR, 10, 20)], [(0, 1, DEPENDENCY)])) == [0, 50]


@pytest.mark.parametrize("kind", [REUSE, ORDER])
def test_the_same_engine_overwrites_and_keeps_order_at_once(kind):
    assert starts(work([(VECTOR, 10, 50), (VECTOR, 10, 20)], [(0, 1, kind)])) == [0, 10]


def test_the_longest_way_goes_first():
    """Nodes 0 and 1 could both start; node 1 has a long successor on another engine."""
    rows = [(VECTOR, 10, 10), (VECTOR, 10, 10), (SCALAR, 500, 500)]
    assert starts(work(rows, [(1, 2, DEPENDENCY)])) == [10, 0, 110]


def test_a_way_counts_latencies_between_engines():
    """Node 0 leads to 150 ns on its own engine, node 1 to 100 ns on another one, behind a semaphore of 100."""
    rows = [(VECTOR, 10, 10), (VECTOR, 10, 10), (VECTOR, 150, 150), (SCALAR, 100, 100)]
    assert starts(work(rows, [(0, 2, DEPENDENCY), (1, 3, DEPENDENCY)])) == [10, 0, 20, 110]


def test_of_equals_the_first_goes_first():
    assert starts(work([(VECTOR, 10, 10)] * 3, [])) == [0, 10, 20]


def test_a_circle_is_refused():
    with pytest.raises(ValueError, match="2 of 3 instructions wait for each other"):
        starts(work([(VECTOR, 1, 1)] * 3, [(0, 1, ORDER), (1, 0, ORDER)]))


def test_tables_are_loaded_when_the_function_changes():
    given = work([(SCALAR, 10, 10)] * 4, [])
    given.nodes["table"] = [1, 0, 1, 2]
    load = C.scalar_table_load_ns
    assert starts(given) == [0, 10 + load, 20 + load, 30 + load]


def transfers(count, engines, hold, hbm_bytes=0.0):
    """As many triggers and transfers of them."""
    given = work(
        [(GPSIMD, 10, 10)] * count + [(TRANSFER, hold, hold)] * count, [(n, count + n, COMES) for n in range(count)]
    )
    moved = given.nodes[count:]
    moved["engines"], moved["ready_ns"], moved["hbm_bytes"] = engines, 50, hbm_bytes
    return given


def test_transfers_share_dma_engines_in_turn():
    made = schedule(transfers(3, 16, 1000), C, 16)[3:]
    assert made["start_ns"].tolist() == [50, 1050, 2050]
    assert made["end_ns"].tolist() == [1050, 2050, 3050]
    assert made["track"].tolist() == [TRANSFER, TRANSFER + 1, TRANSFER + 2]


def test_transfers_on_different_engines_run_together():
    given = transfers(3, 4, 1000)
    given.nodes["first_engine"][3:] = [0, 4, 8]
    made = schedule(given, C, 16)[3:]
    assert made["end_ns"].tolist() == [1050, 1060, 1070]


def test_no_more_transfers_at_once_than_queues():
    given = transfers(20, 1, 1000)
    given.nodes["first_engine"][20:] = np.arange(20) % 16
    made = schedule(given, dataclasses.replace(C, dma_queues=4), 16)[20:]
    running = [(made["start_ns"] <= t) & (t < made["end_ns"]) for t in range(0, 6000, 10)]
    assert max(r.sum() for r in running) == 4


def test_transfers_share_hbm():
    rate = C.hbm_pair_bytes_per_ns
    made = schedule(transfers(2, 1, 100, hbm_bytes=1000 * rate), C, 16)[2:]
    assert made["end_ns"].tolist() == pytest.approx([1050, 2050])


def throttled(intervals, activity=1.0):
    """Start and end of matmuls that would hold the engine for these times and begin as soon as they can."""
    window, when = C.tensor_throttle_window_ns, 0.0
    done: list[tuple[float, float]] = []
    warm = False
    for held in intervals:
        opened = when - window
        share = sum(max(0.0, end - max(start, opened)) for start, end in done) * activity / window
        warm = share >= C.tensor_throttled_rate if warm else share >= C.tensor_full_share
        longer = held if warm else held / max(C.tensor_throttled_rate, min(1.0, share))
        done.append((when, when + longer))
        when += longer
    return done


@pytest.mark.parametrize("activity", [1.0, 0.6, 0.25])
def test_throttle(activity):
    held = np.random.default_rng(3).integers(50, 400, 80).astype(float).tolist()
    given = work([(TENSOR, h, h) for h in held], [])
    given.nodes["activity"] = activity
    given.nodes["record"] = np.arange(80)
    for n in range(79):
        given = given._replace(edges=np.append(given.edges, np.array([(n, n + 1, ORDER)], EDGE)))
    made = schedule(given, C, 16)
    expected = throttled(held, activity)
    assert made["start_ns"].tolist() == pytest.approx([start for start, _ in expected])
    assert made["end_ns"].tolist() == pytest.approx([end for _, end in expected])


def test_full_rate_after_three_microseconds_of_work():
    given = work([(TENSOR, 100, 100)] * 100, [])
    given.nodes["activity"] = 1.0
    made = schedule(given, C, 16)
    held = made["end_ns"] - made["start_ns"]
    assert held[0] == pytest.approx(200)
    assert held[-1] == pytest.approx(100)
    assert (np.diff(held) <= 1e-9).all()
    assert 2700 <= made["start_ns"][np.flatnonzero(held < 100.1)[0]] <= 3400


@pytest.mark.parametrize(("pause_ns", "last_ns"), [(40, 100), (90, 100), (150, 150)])
def test_full_rate_lasts_while_half_of_the_window_is_work(pause_ns, last_ns):
    """Products of 100 ns warm the engine; with pauses of 40 or 90 ns they still are more than half of the time."""
    warm, paused = 60, 60
    rows = [(TENSOR, 100, 100)] * warm + [(VECTOR, pause_ns, pause_ns), (TENSOR, 100, 100)] * paused
    given = work(rows, [(n, n + 1, ORDER) for n in range(len(rows) - 1)])
    given.nodes["activity"] = given.nodes["track"] == TENSOR
    made = schedule(given, dataclasses.replace(C, semaphore_ns=0), 16)
    held = (made["end_ns"] - made["start_ns"])[given.nodes["track"] == TENSOR]
    assert held[warm - 1] == pytest.approx(100)
    if last_ns == 100:
        assert held[warm:] == pytest.approx(np.full(paused, 100))
    else:
        assert held[-1] > last_ns


def test_two_cores_share_the_bytes_of_their_stack_and_nothing_else():
    """Four cores, a transfer each: HBM's time for two one after the other, engines and queues of their own."""
    given = transfers(4, 16, 100, hbm_bytes=1000 * C.hbm_pair_bytes_per_ns)._replace(cores=4)
    given.nodes["core"] = np.arange(8) % 4
    moved = schedule(given, C, 16)[4:]
    assert moved["start_ns"].tolist() == [50] * 4
    assert moved["end_ns"].tolist() == pytest.approx([1050, 2050, 1050, 2050])
    assert moved["track"].tolist() == [TRANSFER] * 4


def test_an_engine_is_free_after_its_interval_and_not_only_after_the_result():
    assert starts(work([(VECTOR, 10, 500), (VECTOR, 10, 500)], [])) == [0, 10]


def test_late_descriptors_move_bytes_late():
    """The trigger ends at 10; the last descriptor's bytes are there 900 ns after that."""
    given = transfers(1, 1, 100)
    given.nodes["tail_ns"][1] = 900
    assert schedule(given, C, 16)[1]["end_ns"] == 910
