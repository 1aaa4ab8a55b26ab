"""From a schedule of nodes to a timeline of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from devicetime import occupancy
from devicetime.compiled import compiled
from devicetime.cost import COLLECTIVE, TRACK_NAMES
from devicetime.dependencies import DEPENDENCY, ORDER, REUSE
from devicetime.nodes import COMES, MEETS, NO_TRACK, TRANSFER, Work
from devicetime.scheduler import by_node
from devicetime.timeline import Cause, Timeline, Track, TrackKind

if TYPE_CHECKING:
    from devicetime.predict import Prediction

_CAUSE_OF_EDGE = np.zeros(5, np.int64)
_CAUSE_OF_EDGE[[DEPENDENCY, REUSE, ORDER]] = Cause.dependency, Cause.buffer_reuse, Cause.order
_CAUSE_OF_EDGE[[COMES, MEETS]] = Cause.queue, Cause.collective


def timeline(prediction: Prediction) -> Timeline:
    """The schedule of the nodes that have a track, in order of start."""
    work, made = prediction.work, prediction.schedule
    order, event_of = _in_order(work, made)
    queues = prediction.machine.constants.dma_queues
    cause, blocker = causes(work, made)
    occupied = [_occupied(prediction, number) for number in range(work.cores)]
    core = work.nodes["core"][order]
    return Timeline(
        hardware=prediction.machine.hardware,
        tracks=_tracks(work.cores, queues),
        streams=tuple(report.stream for report in prediction.reports),
        core=core.astype(np.int32),
        record=work.nodes["record"][order].astype(np.int32),
        track=(core * (TRANSFER + queues) + made["track"][order]).astype(np.int32),
        start_ns=made["start_ns"][order],
        end_ns=made["end_ns"][order],
        visible_ns=made["visible_ns"][order],
        cause=cause[order].astype(np.uint8),
        blocker=event_of[blocker[order]].astype(np.int32),
        edges=_edges(work, made, order, event_of),
        sbuf_bytes=tuple(sbuf for sbuf, _ in occupied),
        psum_banks=tuple(psum for _, psum in occupied),
    )


def _in_order(work: Work, made: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nodes with a track by start, core and record; and each node's event, -1 (also at the end) for none."""
    placed = np.flatnonzero(work.nodes["track"] != NO_TRACK)
    owner = work.nodes["core"][placed].astype(np.int64) << 32 | work.nodes["record"][placed]
    program = placed[np.argsort(owner, kind="stable")]
    order = program[np.argsort(made["start_ns"][program], kind="stable")]
    event_of = np.full(len(work.nodes) + 1, -1, np.int64)
    event_of[order] = np.arange(len(order))
    return order, event_of


def _tracks(cores: int, queues: int) -> tuple[Track, ...]:
    tracks = []
    for core in range(cores):
        for number, name in enumerate(TRACK_NAMES):
            kind = TrackKind.collective if number == COLLECTIVE else TrackKind.engine
            tracks.append(Track(f"core {core} {name}", name, kind, core))
        for queue in range(queues):
            tracks.append(Track(f"core {core} DMA queue {queue}", f"DMA {queue}", TrackKind.dma_queue, core))
    return tuple(tracks)


def causes(work: Work, made: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Per node: why it started when it did, and the node that this is about (-1 for none).

    A node that found its track busy waited for the one before it there. Of others the last edge tells; it was
    latency only where the track became free after the other's result was there.
    """
    edge, previous, start_ns = made["edge"], made["previous"], made["start_ns"]
    waited = edge >= 0
    cause = np.where(waited, _CAUSE_OF_EDGE[work.edges["kind"][edge]], Cause.none) if len(work.edges) else edge * 0
    blocker = np.where(waited, work.edges["before"][edge], -1) if len(work.edges) else edge.copy()
    free_ns = np.where(previous >= 0, made["end_ns"][previous], 0.0)
    transfer = work.nodes["track"] == TRANSFER
    data = (cause == Cause.dependency) | (cause == Cause.buffer_reuse)
    cause[(free_ns >= made["visible_ns"][blocker]) & data] = Cause.semaphore
    behind = (previous >= 0) & (free_ns >= start_ns) & ~transfer
    cause[behind] = Cause.engine
    blocker[behind] = previous[behind]
    begins = start_ns == 0
    cause[begins], blocker[begins] = Cause.none, -1
    return cause, past_joins(work, made, blocker)


def past_joins(work: Work, made: np.ndarray, node: np.ndarray) -> np.ndarray:
    """Joins stand for what they waited for last."""
    track = work.nodes["track"]
    while True:
        joins = np.flatnonzero((node >= 0) & (track[node] == NO_TRACK))
        if not len(joins):
            return node
        edge = made["edge"][node[joins]]
        node[joins] = np.where(edge >= 0, work.edges["before"][edge], -1)


def _edges(work: Work, made: np.ndarray, order: np.ndarray, event_of: np.ndarray) -> np.ndarray:
    """Edges between events; of several from one track only the latest, which implies the others."""
    before = past_joins(work, made, work.edges["before"].copy())
    by_after, first = by_node(np.ascontiguousarray(work.edges["after"]), len(work.nodes))
    lane = work.nodes["core"] * (TRANSFER + 1) + work.nodes["track"]
    lanes = work.cores * (TRANSFER + 1)
    visible_ns = np.ascontiguousarray(made["visible_ns"])
    pairs, count = _latest_of_lanes(before, by_after, first, lane, lanes, visible_ns, order, event_of)
    return pairs[:count]


@compiled
def _latest_of_lanes(
    before: np.ndarray,
    by_after: np.ndarray,
    first: np.ndarray,
    lane: np.ndarray,
    lanes: int,
    visible_ns: np.ndarray,
    order: np.ndarray,
    event_of: np.ndarray,
) -> tuple[np.ndarray, int]:
    """Pairs of events, sorted by the one that waits, and how many there are."""
    pairs = np.empty((len(before), 2), np.int32)
    count = 0
    seen = np.full(lanes, -1, np.int64)
    kept = np.empty(lanes, np.int64)
    for event in range(len(order)):
        begin = count
        for n in range(first[order[event]], first[order[event] + 1]):
            node = before[by_after[n]]
            if node < 0:
                continue
            if seen[lane[node]] != event:
                seen[lane[node]] = event
                kept[lane[node]] = count
                pairs[count, 0] = event_of[node]
                pairs[count, 1] = event
                count += 1
            elif visible_ns[node] > visible_ns[order[pairs[kept[lane[node]], 0]]]:
                pairs[kept[lane[node]], 0] = event_of[node]
        for n in range(begin + 1, count):  # few, and nearly in order
            m = n
            while m > begin and pairs[m - 1, 0] > pairs[m, 0]:
                moved = pairs[m, 0]
                pairs[m, 0] = pairs[m - 1, 0]
                pairs[m - 1, 0] = moved
                m -= 1
    return pairs, count


def _occupied(prediction: Prediction, number: int) -> tuple[np.ndarray, np.ndarray]:
    """SBUF and PSUM steps of a core."""
    nodes, made, core = prediction.work.nodes, prediction.schedule, prediction.cores[number]
    first = sum(len(other.class_of) for other in prediction.cores[:number])
    rows = slice(first, first + len(core.class_of))
    start_ns, end_ns = made["start_ns"][rows].copy(), made["visible_ns"][rows].copy()
    here = (nodes["track"] == TRANSFER) & (nodes["core"] == number)
    end_ns[nodes["record"][here]] = made["visible_ns"][here]
    return occupancy.steps(core.operands, core.byte, start_ns, end_ns, prediction.machine.hardware)
