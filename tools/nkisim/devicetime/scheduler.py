"""List scheduling: which node runs when, on which track, and what it waited for.

The compiler may reorder whatever data and addresses allow. So an engine that is free takes, of the instructions that
could start, the one with the longest way to the end of the kernel; time moves forward over all cores together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from devicetime.compiled import compiled
from devicetime.constants import Constants
from devicetime.cost import SCALAR, TENSOR
from devicetime.dependencies import DEPENDENCY
from devicetime.nodes import COMES, MEETS, NO_TRACK, TRANSFER, Nodes

_NEVER = 1e300


@dataclass(frozen=True)
class Schedule:
    """Per node: when it held its track, when its result is there, where it ran, and what it waited for.

    Attributes:
        start_ns, end_ns, visible_ns: of joins all three are the same.
        track: of its core; for transfers the queue, from TRANSFER on.
        ready_ns: when its edges allowed it to start.
        edge: the edge that allowed it last, -1 if none.
        previous: the node before it on its track, -1 if none.
    """

    start_ns: np.ndarray
    end_ns: np.ndarray
    visible_ns: np.ndarray
    track: np.ndarray
    ready_ns: np.ndarray
    edge: np.ndarray
    previous: np.ndarray


def schedule(nodes: Nodes, constants: Constants, dma_engines: int) -> Schedule:
    """Runs the nodes.

    Raises:
        ValueError: nodes wait for each other.
    """
    total = len(nodes.track)
    order = np.argsort(nodes.before, kind="stable")
    first = np.searchsorted(nodes.before[order], np.arange(total + 1))
    times = np.array([constants.semaphore_ns, constants.dma_completion_ns])
    length, known = _longest_ways(
        nodes.track,
        nodes.core,
        nodes.hold_ns,
        nodes.done_ns,
        nodes.transfer,
        nodes.after,
        nodes.kind,
        order,
        first,
        times,
    )
    if known < total:
        raise ValueError(f"{total - known} of {total} instructions wait for each other")
    rank = np.empty(total)
    rank[np.lexsort((nodes.record, -length))] = np.arange(total)
    parameters = np.array(
        [
            constants.tensor_throttled_rate,
            constants.tensor_throttle_window_ns,
            constants.scalar_table_load_ns,
            constants.hbm_pair_bytes_per_ns,
        ]
    )
    work = (nodes.track, nodes.core, nodes.hold_ns, nodes.done_ns, nodes.table, nodes.activity, nodes.transfer)
    edges = (nodes.before, nodes.after, nodes.kind, order, first)
    return Schedule(*_run(*work, *edges, rank, times, parameters, nodes.cores, constants.dma_queues, dma_engines))


@compiled
def _wait(kind: int, same_track: bool, from_track: int, to_track: int, times: np.ndarray) -> tuple[bool, float]:
    """Whether a node waits for the other's result (or only for its turn), and the latency after that."""
    if to_track == NO_TRACK or from_track == NO_TRACK or kind == MEETS:
        return True, 0.0 if from_track == NO_TRACK else (times[1] if from_track >= TRANSFER else times[0])
    if same_track and kind != DEPENDENCY:
        return False, 0.0
    if same_track:
        return True, 0.0
    return True, times[1] if from_track >= TRANSFER else times[0]


@compiled
def _longest_ways(
    track: np.ndarray,
    core: np.ndarray,
    hold: np.ndarray,
    done: np.ndarray,
    transfer: np.ndarray,
    after: np.ndarray,
    kind: np.ndarray,
    order: np.ndarray,
    first: np.ndarray,
    times: np.ndarray,
) -> tuple[np.ndarray, int]:
    """Time from each node's start to the end of the kernel if nothing but its edges made anyone wait."""
    total = len(track)
    waits = np.zeros(total, np.int64)
    for edge in after:
        waits[edge] += 1
    topological = np.empty(total, np.int64)
    known = 0
    for node in range(total):
        if waits[node] == 0:
            topological[known] = node
            known += 1
    at = 0
    while at < known:
        node = topological[at]
        at += 1
        for n in range(first[node], first[node + 1]):
            successor = after[order[n]]
            waits[successor] -= 1
            if waits[successor] == 0:
                topological[known] = successor
                known += 1
    length = np.zeros(total)
    for n in range(known - 1, -1, -1):
        node = topological[n]
        finish = max(hold[node], done[node])
        best = finish
        for m in range(first[node], first[node + 1]):
            edge = order[m]
            successor = after[edge]
            if kind[edge] == COMES:
                way = transfer[successor, 3]
            else:
                same = track[node] == track[successor] and core[node] == core[successor] and track[node] < TRANSFER
                result, latency = _wait(kind[edge], same, track[node], track[successor], times)
                way = (finish if result else hold[node]) + latency
            best = max(best, way + length[successor])
        length[node] = best
    return length, known


@compiled
def _push(heap: np.ndarray, size: int, node: int, key: np.ndarray, rank: np.ndarray) -> None:
    at = size
    while at > 0:
        parent = (at - 1) // 2
        other = heap[parent]
        if key[other] < key[node] or (key[other] == key[node] and rank[other] < rank[node]):
            break
        heap[at] = other
        at = parent
    heap[at] = node


@compiled
def _pop(heap: np.ndarray, size: int, key: np.ndarray, rank: np.ndarray) -> int:
    top = heap[0]
    node = heap[size - 1]
    size -= 1
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size:
            a, b = heap[child], heap[child + 1]
            if key[b] < key[a] or (key[b] == key[a] and rank[b] < rank[a]):
                child += 1
        other = heap[child]
        if key[node] < key[other] or (key[node] == key[other] and rank[node] < rank[other]):
            break
        heap[at] = other
        at = child
    heap[at] = node
    return top


@compiled
def _run(  # noqa: C901 - one loop over one state
    track: np.ndarray,
    core: np.ndarray,
    hold: np.ndarray,
    done: np.ndarray,
    table: np.ndarray,
    activity: np.ndarray,
    transfer: np.ndarray,
    before: np.ndarray,
    after: np.ndarray,
    kind: np.ndarray,
    order: np.ndarray,
    first: np.ndarray,
    rank: np.ndarray,
    times: np.ndarray,
    parameters: np.ndarray,
    cores: int,
    queues: int,
    dma_engines: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The fields of `Schedule`."""
    total = len(track)
    lanes = TRANSFER + 1
    throttled_rate, window, table_load, hbm_rate = parameters
    start, end, visible = np.zeros(total), np.zeros(total), np.zeros(total)
    ready = np.zeros(total)
    cause_edge = np.full(total, -1, np.int64)
    previous = np.full(total, -1, np.int64)
    ran_on = track.copy()
    waits = np.zeros(total, np.int64)
    for node in after:
        waits[node] += 1
    # one pair of heaps per lane: what could start later, by time, and what could start now, by rank
    sizes = np.zeros(cores * lanes, np.int64)
    for node in range(total):
        if track[node] != NO_TRACK:
            sizes[core[node] * lanes + track[node]] += 1
    base = np.zeros(cores * lanes + 1, np.int64)
    for lane in range(cores * lanes):
        base[lane + 1] = base[lane] + sizes[lane]
    later, now = np.empty(base[-1], np.int64), np.empty(base[-1], np.int64)
    later_size, now_size = np.zeros(cores * lanes, np.int64), np.zeros(cores * lanes, np.int64)
    free = np.zeros(cores * lanes)
    latest = np.full(cores * lanes, -1, np.int64)
    queue_free = np.zeros((cores, queues))
    queue_latest = np.full((cores, queues), -1, np.int64)
    engine_free = np.zeros((cores, dma_engines))
    hbm_free = np.zeros((cores + 1) // 2)
    loaded = np.zeros(cores, np.int64)
    most = 1
    for lane in range(cores * lanes):
        most = max(most, sizes[lane])
    busy = np.empty((cores, most, 3))
    busy_first, busy_next = np.zeros(cores, np.int64), np.zeros(cores, np.int64)
    busy_ns = np.zeros(cores)
    warm = np.zeros(cores, np.bool_)
    stack = np.empty(total + 1, np.int64)
    for node in range(total):
        if waits[node] == 0:
            lane = core[node] * lanes + track[node]
            _push(later[base[lane] :], later_size[lane], node, ready, rank)
            later_size[lane] += 1
    while True:
        chosen = -1
        when = _NEVER
        for lane in range(cores * lanes):
            if now_size[lane]:
                possible = free[lane]
            elif later_size[lane]:
                possible = max(free[lane], ready[later[base[lane]]])
            else:
                continue
            if possible < when:
                when = possible
                chosen = lane
        if chosen < 0:
            break
        while later_size[chosen] and ready[later[base[chosen]]] <= when:
            node = _pop(later[base[chosen] :], later_size[chosen], ready, rank)
            later_size[chosen] -= 1
            _push(now[base[chosen] :], now_size[chosen], node, rank, rank)
            now_size[chosen] += 1
        node = _pop(now[base[chosen] :], now_size[chosen], rank, rank)
        now_size[chosen] -= 1
        mine = core[node]
        if track[node] == TRANSFER:
            queue = 0
            while queue_free[mine, queue] > when:
                queue += 1
            begins, ends = _NEVER, 0.0
            for n in range(int(transfer[node, 1])):
                e = int(transfer[node, 0] + n) % dma_engines
                at = max(engine_free[mine, e], when + n * transfer[node, 4])
                engine_free[mine, e] = at + hold[node]
                begins = min(begins, at)
                ends = max(ends, at + hold[node])
            pair = mine // 2
            hbm_free[pair] = max(hbm_free[pair], begins) + transfer[node, 2] / hbm_rate
            ends = max(ends, hbm_free[pair])
            ends = max(ends, end[before[cause_edge[node]]] + transfer[node, 5])
            start[node], end[node] = begins, ends
            visible[node] = ends
            ran_on[node] = TRANSFER + queue
            previous[node] = queue_latest[mine, queue]
            queue_latest[mine, queue] = node
            queue_free[mine, queue] = ends
            earliest = _NEVER
            for n in range(queues):
                earliest = min(earliest, queue_free[mine, n])
            free[chosen] = max(when, earliest)
        else:
            held, finished = hold[node], done[node]
            if track[node] == TENSOR:
                while busy_first[mine] < busy_next[mine] and busy[mine, busy_first[mine], 1] <= when - window:
                    oldest = busy[mine, busy_first[mine]]
                    busy_ns[mine] -= (oldest[1] - oldest[0]) * oldest[2]
                    busy_first[mine] += 1
                worked = busy_ns[mine]
                if busy_first[mine] < busy_next[mine]:
                    oldest = busy[mine, busy_first[mine]]
                    worked -= max(0.0, when - window - oldest[0]) * oldest[2]
                share = worked / window
                if warm[mine]:
                    warm[mine] = share >= throttled_rate
                elif share > 0.99:
                    warm[mine] = True
                if not warm[mine]:
                    slower = held / max(throttled_rate, min(1.0, share))
                    finished += slower - held
                    held = slower
                newest = busy[mine, busy_next[mine]]
                newest[0], newest[1], newest[2] = when, when + held, activity[node]
                busy_next[mine] += 1
                busy_ns[mine] += held * activity[node]
            elif track[node] == SCALAR and table[node] > 0 and table[node] != loaded[mine]:
                loaded[mine] = table[node]
                held += table_load
                finished += table_load
            start[node], end[node] = when, when + held
            visible[node] = when + max(held, finished)
            previous[node] = latest[chosen]
            latest[chosen] = node
            free[chosen] = end[node]
        depth = 1
        stack[0] = node
        while depth:
            depth -= 1
            node = stack[depth]
            for n in range(first[node], first[node + 1]):
                edge = order[n]
                successor = after[edge]
                if kind[edge] == COMES:
                    at = start[node] + transfer[successor, 3]
                else:
                    same = track[node] == track[successor] and core[node] == core[successor] and track[node] < TRANSFER
                    result, latency = _wait(kind[edge], same, track[node], track[successor], times)
                    at = (visible[node] if result else end[node]) + latency
                if at > ready[successor] or cause_edge[successor] < 0:
                    ready[successor] = at
                    cause_edge[successor] = edge
                waits[successor] -= 1
                if waits[successor] == 0:
                    if track[successor] == NO_TRACK:
                        start[successor] = end[successor] = visible[successor] = ready[successor]
                        stack[depth] = successor
                        depth += 1
                    else:
                        lane = core[successor] * lanes + track[successor]
                        _push(later[base[lane] :], later_size[lane], successor, ready, rank)
                        later_size[lane] += 1
    return start, end, visible, ran_on, ready, cause_edge, previous
