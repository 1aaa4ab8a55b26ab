"""List scheduling: which node runs when, on which track, and what it waited for.

The compiler may reorder whatever data and addresses allow. So an engine that is free takes, of the instructions that
could start, the one with the longest way to the end of the kernel; time moves forward over all cores together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from devicetime.compiled import compiled
from devicetime.constants import Constants
from devicetime.cost import SCALAR, TENSOR
from devicetime.dependencies import DEPENDENCY
from devicetime.nodes import COMES, NO_TRACK, TRANSFER, Work

_NEVER = 1e300
_LANES = TRANSFER + 1
"""Tracks of a core, its DMA queues counted as one."""

SCHEDULE = np.dtype(
    [
        ("start_ns", np.float64),
        ("end_ns", np.float64),
        ("visible_ns", np.float64),
        ("ready_ns", np.float64),
        ("edge", np.int64),
        ("previous", np.int64),
        ("track", np.int64),
    ]
)
"""Per node: when it held its track, when its result is there (of joins all three are the same), when its edges allowed
it to start, the edge that did so last (-1 for none), the node before it on its track (-1 for none), and the track of
its core, which for transfers is TRANSFER and the queue's number."""

_NUMBERS = np.dtype(
    [
        (name, np.float64)
        for name in (
            "semaphore_ns",
            "dma_completion_ns",
            "tensor_throttled_rate",
            "tensor_throttle_window_ns",
            "tensor_full_share",
            "scalar_table_load_ns",
            "hbm_pair_bytes_per_ns",
        )
    ]
)
"""The constants that the schedule itself needs; see `Constants`."""

_LANE = np.dtype(
    [
        ("base", np.int64),
        ("later_size", np.int64),
        ("now_size", np.int64),
        ("free_ns", np.float64),
        ("latest", np.int64),
    ]
)
"""Where a lane begins in the heaps, how many nodes wait in them, when the lane is free, and who held it last."""

_CORE = np.dtype(
    [
        ("table", np.int64),
        ("window_first", np.int64),
        ("window_next", np.int64),
        ("worked_ns", np.float64),
        ("warm", np.bool_),
    ]
)
"""The Scalar Engine's function table; the Tensor Engine's instructions of the throttling window, the work in them, and
whether it runs at full rate."""


def schedule(work: Work, constants: Constants, dma_engines: int) -> np.ndarray:
    """Runs the nodes.

    Returns:
        An array of SCHEDULE.

    Raises:
        ValueError: nodes wait for each other.
    """
    nodes, edges = work.nodes, work.edges
    order, first = by_node(np.ascontiguousarray(edges["before"]), len(nodes))
    numbers = np.array([tuple(getattr(constants, name) for name in _NUMBERS.names or ())], _NUMBERS)[0]
    urgency, known = _ways(nodes, edges, order, first, numbers)
    if known < len(nodes):
        raise ValueError(f"{len(nodes) - known} of {len(nodes)} instructions wait for each other")
    made = np.zeros(len(nodes), SCHEDULE)
    made["edge"] = made["previous"] = -1
    made["track"] = nodes["track"]
    lanes = _lanes(nodes, work.cores)
    heaps = np.empty((2, len(nodes)), np.int64)
    queues = np.zeros((work.cores, constants.dma_queues, 2))
    queues[:, :, 1] = -1
    window = np.zeros((work.cores, int(np.bincount(nodes["core"][nodes["track"] == TENSOR], minlength=1).max()), 3))
    cores = np.zeros(work.cores, _CORE)
    dma = np.zeros((work.cores, dma_engines))
    _run(nodes, edges, order, first, numbers, urgency, lanes, heaps, cores, window, queues, dma, made)
    return made


def _lanes(nodes: np.ndarray, cores: int) -> np.ndarray:
    """Empty lanes."""
    placed = nodes["track"] != NO_TRACK
    counts = np.bincount(nodes["core"][placed] * _LANES + nodes["track"][placed], minlength=cores * _LANES)
    lanes = np.zeros(cores * _LANES, _LANE)
    lanes["base"] = np.cumsum(counts) - counts
    lanes["latest"] = -1
    return lanes


@compiled
def by_node(node: np.ndarray, total: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges sorted by a node of theirs, stably; those of node n are `order[first[n]:first[n + 1]]`."""
    first = np.zeros(total + 1, np.int64)
    for n in node:
        first[n + 1] += 1
    for n in range(total):
        first[n + 1] += first[n]
    order = np.empty(len(node), np.int64)
    at = first.copy()
    for edge in range(len(node)):
        order[at[node[edge]]] = edge
        at[node[edge]] += 1
    return order, first


@compiled
def _waits(edges: np.ndarray, total: int) -> np.ndarray:
    """How many edges lead to each node."""
    waits = np.zeros(total, np.int64)
    for n in range(len(edges)):
        waits[edges[n].after] += 1
    return waits


@compiled
def _delay(nodes: np.ndarray, kind: int, before: int, after: int, numbers: Any) -> tuple[int, float]:
    """What `after` waits for (0: the other's start, 1: its end, 2: its result), and for how long after that."""
    one, other = nodes[before], nodes[after]
    if kind == COMES:
        return 0, other.ready_ns
    if one.track == NO_TRACK:
        return 2, 0.0
    if one.track == TRANSFER:
        return 2, numbers.dma_completion_ns
    if one.track == other.track:  # Of one core: cores wait for each other through joins.
        return (2, 0.0) if kind == DEPENDENCY else (1, 0.0)
    return 2, numbers.semaphore_ns


@compiled
def _ways(
    nodes: np.ndarray, edges: np.ndarray, order: np.ndarray, first: np.ndarray, numbers: Any
) -> tuple[np.ndarray, int]:
    """Minus the time from each node's start to the kernel's end if only edges made anyone wait; how many are known.

    Nodes on a circle of edges are not known.
    """
    total = len(nodes)
    waits = _waits(edges, total)
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
            successor = edges[order[n]].after
            waits[successor] -= 1
            if waits[successor] == 0:
                topological[known] = successor
                known += 1
    way = np.zeros(total)
    for n in range(known - 1, -1, -1):
        node = topological[n]
        finish = max(nodes[node].hold_ns, nodes[node].done_ns)
        longest = finish
        for m in range(first[node], first[node + 1]):
            edge = edges[order[m]]
            what, latency = _delay(nodes, edge.kind, node, edge.after, numbers)
            since = 0.0 if what == 0 else (nodes[node].hold_ns if what == 1 else finish)
            longest = max(longest, since + latency - way[edge.after])
        way[node] = -longest
    return way, known


@compiled
def _push(heap: np.ndarray, base: int, size: int, node: int, key: np.ndarray) -> None:
    at = size
    while at > 0:
        parent = (at - 1) // 2
        other = heap[base + parent]
        if key[other] < key[node] or (key[other] == key[node] and other < node):
            break
        heap[base + at] = other
        at = parent
    heap[base + at] = node


@compiled
def _pop(heap: np.ndarray, base: int, size: int, key: np.ndarray) -> int:
    top = heap[base]
    size -= 1
    node = heap[base + size]
    at = 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        other = heap[base + child]
        if child + 1 < size:
            sibling = heap[base + child + 1]
            if key[sibling] < key[other] or (key[sibling] == key[other] and sibling < other):
                child += 1
                other = sibling
        if key[node] < key[other] or (key[node] == key[other] and node < other):
            break
        heap[base + at] = other
        at = child
    heap[base + at] = node
    return top


@compiled
def _next_lane(lanes: np.ndarray, later: np.ndarray, ready: np.ndarray) -> tuple[int, float]:
    """The lane where something starts next, and when; -1 if nothing is left."""
    chosen = -1
    when = _NEVER
    for n in range(len(lanes)):
        lane = lanes[n]
        if lane.now_size:
            possible = lane.free_ns
        elif lane.later_size:
            possible = max(lane.free_ns, ready[later[lane.base]])
        else:
            continue
        if possible < when:
            when = possible
            chosen = n
    return chosen, when


@compiled
def _choose(lane: Any, heaps: np.ndarray, when: float, ready: np.ndarray, urgency: np.ndarray) -> int:
    """Takes from a lane the most urgent node that may start now."""
    later, now = heaps[0], heaps[1]
    while lane.later_size and ready[later[lane.base]] <= when:
        node = _pop(later, lane.base, lane.later_size, ready)
        lane.later_size -= 1
        _push(now, lane.base, lane.now_size, node, urgency)
        lane.now_size += 1
    node = _pop(now, lane.base, lane.now_size, urgency)
    lane.now_size -= 1
    return node


@compiled
def _slower(core: Any, window: np.ndarray, when: float, numbers: Any) -> float:
    """By what a matmul that starts now takes longer: the work of the window before it decides."""
    opened = when - numbers.tensor_throttle_window_ns
    while core.window_first < core.window_next and window[core.window_first, 1] <= opened:
        gone = core.window_first
        core.worked_ns -= (window[gone, 1] - window[gone, 0]) * window[gone, 2]
        core.window_first += 1
    worked = core.worked_ns
    if core.window_first < core.window_next:
        oldest = core.window_first
        worked -= max(0.0, opened - window[oldest, 0]) * window[oldest, 2]
    share = worked / numbers.tensor_throttle_window_ns
    core.warm = share >= (numbers.tensor_throttled_rate if core.warm else numbers.tensor_full_share)
    return 1.0 if core.warm else 1.0 / max(numbers.tensor_throttled_rate, min(1.0, share))


@compiled
def _start_on_engine(node: Any, core: Any, window: np.ndarray, numbers: Any, made: Any, when: float) -> None:
    longer = 0.0
    if node.track == TENSOR:
        longer = node.hold_ns * (_slower(core, window, when, numbers) - 1.0)
        window[core.window_next, 0] = when
        window[core.window_next, 1] = when + node.hold_ns + longer
        window[core.window_next, 2] = node.activity
        core.window_next += 1
        core.worked_ns += (node.hold_ns + longer) * node.activity
    elif node.track == SCALAR and node.table > 0 and node.table != core.table:
        core.table = node.table
        longer = numbers.scalar_table_load_ns
    made.start_ns = when
    made.end_ns = when + node.hold_ns + longer
    made.visible_ns = when + max(node.hold_ns, node.done_ns) + longer


@compiled
def _start_transfer(
    node: Any,
    queues: np.ndarray,
    dma: np.ndarray,
    hbm_free_ns: float,
    numbers: Any,
    made: Any,
    when: float,
    last: float,
) -> float:
    """The first free queue takes the transfer; each DMA engine does its share after what it has begun.

    Args:
        last: the earliest end that its descriptors allow.

    Returns:
        Until when HBM is busy.
    """
    queue = 0
    while queues[queue, 0] > when:
        queue += 1
    begins = _NEVER
    ends = last
    for n in range(node.engines):
        engine = (node.first_engine + n) % len(dma)
        at = max(dma[engine], when + n * node.stagger_ns)
        dma[engine] = at + node.hold_ns
        begins = min(begins, at)
        ends = max(ends, at + node.hold_ns)
    hbm_free_ns = max(hbm_free_ns, begins) + node.hbm_bytes / numbers.hbm_pair_bytes_per_ns
    ends = max(ends, hbm_free_ns)
    made.start_ns = begins
    made.end_ns = ends
    made.visible_ns = ends
    made.track = TRANSFER + queue
    made.previous = int(queues[queue, 1])
    queues[queue, 0] = ends
    return hbm_free_ns


@compiled
def _earliest(queues: np.ndarray) -> float:
    """When a queue is free."""
    free = _NEVER
    for n in range(len(queues)):
        free = min(free, queues[n, 0])
    return free


@compiled
def _enter(nodes: np.ndarray, lanes: np.ndarray, later: np.ndarray, ready: np.ndarray, node: int) -> None:
    """Puts a node that waits for nothing but time into its lane."""
    lane = lanes[nodes[node].core * _LANES + nodes[node].track]
    _push(later, lane.base, lane.later_size, node, ready)
    lane.later_size += 1


@compiled
def _release(
    nodes: np.ndarray,
    edges: np.ndarray,
    order: np.ndarray,
    first: np.ndarray,
    numbers: Any,
    lanes: np.ndarray,
    later: np.ndarray,
    made: np.ndarray,
    ready: np.ndarray,
    waits: np.ndarray,
    stack: np.ndarray,
    node: int,
) -> None:
    """Tells the nodes after this one when they may start, through joins."""
    stack[0] = node
    depth = 1
    while depth:
        depth -= 1
        node = stack[depth]
        mine = made[node]
        for n in range(first[node], first[node + 1]):
            number = order[n]
            after = edges[number].after
            what, latency = _delay(nodes, edges[number].kind, node, after, numbers)
            at = latency + (mine.start_ns if what == 0 else (mine.end_ns if what == 1 else mine.visible_ns))
            theirs = made[after]
            if at > ready[after] or theirs.edge < 0:
                ready[after] = at
                theirs.ready_ns = at
                theirs.edge = number
            waits[after] -= 1
            if waits[after]:
                continue
            if nodes[after].track == NO_TRACK:
                theirs.start_ns = ready[after]
                theirs.end_ns = ready[after]
                theirs.visible_ns = ready[after]
                stack[depth] = after
                depth += 1
            else:
                _enter(nodes, lanes, later, ready, after)


@compiled
def _run(
    nodes: np.ndarray,
    edges: np.ndarray,
    order: np.ndarray,
    first: np.ndarray,
    numbers: Any,
    urgency: np.ndarray,
    lanes: np.ndarray,
    heaps: np.ndarray,
    cores: np.ndarray,
    window: np.ndarray,
    queues: np.ndarray,
    dma: np.ndarray,
    made: np.ndarray,
) -> None:
    """Fills the schedule."""
    waits = _waits(edges, len(nodes))
    ready = np.zeros(len(nodes))
    stack = np.empty(len(nodes) + 1, np.int64)
    hbm_free_ns = np.zeros((len(cores) + 1) // 2)
    later = heaps[0]
    for root in np.flatnonzero(waits == 0):
        if nodes[root].track == NO_TRACK:
            _release(nodes, edges, order, first, numbers, lanes, later, made, ready, waits, stack, int(root))
        else:
            _enter(nodes, lanes, later, ready, int(root))
    while True:
        chosen, when = _next_lane(lanes, later, ready)
        if chosen < 0:
            break
        lane = lanes[chosen]
        node = _choose(lane, heaps, when, ready, urgency)
        core = nodes[node].core
        mine = made[node]
        if nodes[node].track == TRANSFER:
            last = made[edges[mine.edge].before].end_ns + nodes[node].tail_ns
            hbm_free_ns[core // 2] = _start_transfer(
                nodes[node], queues[core], dma[core], hbm_free_ns[core // 2], numbers, mine, when, last
            )
            queues[core, mine.track - TRANSFER, 1] = node
            lane.free_ns = max(when, _earliest(queues[core]))
        else:
            _start_on_engine(nodes[node], cores[core], window[core], numbers, mine, when)
            mine.previous = lane.latest
            lane.latest = node
            lane.free_ns = mine.end_ns
        _release(nodes, edges, order, first, numbers, lanes, later, made, ready, waits, stack, node)
