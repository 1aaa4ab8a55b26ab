"""`predict`: finished runs of the simulator in, a timeline out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from common import hardware as chips
from common.hardware import Hardware
from devicetime import constants as numbers
from devicetime import nodes as work
from devicetime import scheduler
from devicetime.compute_costs import Machine
from devicetime.constants import Constants
from devicetime.cost import ENGINE_NAMES
from devicetime.dependencies import DEPENDENCY, ORDER, REUSE
from devicetime.nodes import COLLECTIVE, COMES, MEETS, TRANSFER, Nodes
from devicetime.scheduler import Schedule
from devicetime.timeline import Cause, Timeline, Track, TrackKind
from nkisim.execution import CoreReport, Run

_CAUSE_OF_EDGE = {
    DEPENDENCY: Cause.dependency,
    REUSE: Cause.buffer_reuse,
    ORDER: Cause.order,
    COMES: Cause.queue,
    MEETS: Cause.collective,
}


def predict(runs: Run | Sequence[Run], target: str | Hardware = "trn2", constants: Constants | None = None) -> Timeline:
    """When each recorded instruction would run on the device; simulated.

    Args:
        runs: one finished run, or those of all ranks in rank order, of one core or two each; with values or without.
        target: what they ran on.
        constants: other numbers than the target's, for sensitivity and what-if questions.

    Raises:
        ValueError: the target is unknown, or instructions wait for each other.
    """
    hardware = chips.get(target) if isinstance(target, str) else target
    ranks = [runs] if isinstance(runs, Run) else list(runs)
    reports = [(core, number) for number, rank in enumerate(ranks) for core in rank.cores]
    machine = Machine(hardware, constants or numbers.of(hardware))
    built = work.build([report for report, _ in reports], [number for _, number in reports], machine)
    made = scheduler.schedule(built, machine.constants, hardware.dma_engines_per_core)
    return timeline_of([report for report, _ in reports], built, made, machine)


def timeline_of(reports: Sequence[CoreReport], nodes: Nodes, made: Schedule, machine: Machine) -> Timeline:
    """The schedule of the nodes that have a track, in order of start."""
    shown = np.flatnonzero(nodes.track >= 0)
    order = shown[np.lexsort((nodes.record[shown], nodes.core[shown], made.start_ns[shown]))]
    event_of = np.full(len(nodes.track) + 1, -1, np.int64)
    event_of[order] = np.arange(len(order))
    queues = machine.constants.dma_queues
    tracks = _tracks(len(reports), queues)
    cause, blocker = _causes(nodes, made)
    return Timeline(
        hardware=machine.hardware,
        tracks=tracks,
        streams=tuple(report.stream for report in reports),
        core=nodes.core[order].astype(np.int32),
        record=nodes.record[order].astype(np.int32),
        track=(nodes.core[order] * (TRANSFER + queues) + made.track[order]).astype(np.int32),
        start_ns=made.start_ns[order],
        end_ns=made.end_ns[order],
        visible_ns=made.visible_ns[order],
        cause=cause[order].astype(np.uint8),
        blocker=event_of[blocker[order]].astype(np.int32),
        edges=_edges(nodes, made, event_of),
        sbuf_bytes=tuple(np.zeros((0, 2)) for _ in reports),
        psum_banks=tuple(np.zeros((0, 2)) for _ in reports),
    )


def _tracks(cores: int, queues: int) -> tuple[Track, ...]:
    tracks = []
    for core in range(cores):
        names = [(name, TrackKind.engine) for name in ENGINE_NAMES]
        names.append(("Collectives", TrackKind.collective))
        names += [(f"DMA {queue}", TrackKind.dma_queue) for queue in range(queues)]
        tracks += [Track(f"core {core} {name.replace('DMA', 'DMA queue')}", name, kind, core) for name, kind in names]
    assert names[COLLECTIVE][1] is TrackKind.collective
    return tuple(tracks)


def _causes(nodes: Nodes, made: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """Per node: why it started when it did, and the node that this is about (-1 for none)."""
    total = len(nodes.track)
    cause = np.full(total, Cause.none)
    blocker = np.full(total, -1, np.int64)
    edge = made.edge
    waited = np.flatnonzero(edge >= 0)
    kinds = np.zeros(max(_CAUSE_OF_EDGE) + 1, np.int64)
    for kind, value in _CAUSE_OF_EDGE.items():
        kinds[kind] = value
    cause[waited] = kinds[nodes.kind[edge[waited]]]
    blocker[waited] = nodes.before[edge[waited]]
    previous = np.flatnonzero(made.previous >= 0)
    idle_since = np.zeros(total)
    idle_since[previous] = made.end_ns[made.previous[previous]]
    only_latency = waited[idle_since[waited] >= made.visible_ns[blocker[waited]]]
    plain = np.isin(cause[only_latency], (Cause.dependency, Cause.buffer_reuse))
    cause[only_latency[plain]] = Cause.semaphore
    late = made.ready_ns < made.start_ns
    transfers = nodes.track == TRANSFER
    cause[late & transfers] = Cause.queue
    behind = previous[(late & ~transfers)[previous] | (idle_since >= made.start_ns)[previous]]
    behind = behind[~transfers[behind]]
    cause[behind] = Cause.engine
    blocker[behind] = made.previous[behind]
    cause[made.start_ns == 0] = Cause.none
    blocker[made.start_ns == 0] = -1
    return cause, _past_joins(nodes, made, blocker)


def _past_joins(nodes: Nodes, made: Schedule, blocker: np.ndarray) -> np.ndarray:
    """Joins as blockers stand for what they waited for last."""
    while True:
        joins = np.flatnonzero((blocker >= 0) & (nodes.track[blocker] < 0))
        if not len(joins):
            return blocker
        edge = made.edge[blocker[joins]]
        blocker[joins] = np.where(edge >= 0, nodes.before[edge], -1)


def _edges(nodes: Nodes, made: Schedule, event_of: np.ndarray) -> np.ndarray:
    """Edges between events; of several from one track only the latest, which implies the others."""
    before, after = _past_joins(nodes, made, nodes.before.copy()), nodes.after
    kept = (before >= 0) & (nodes.track[after] >= 0)
    before, after = before[kept], after[kept]
    lane = nodes.core[before] * (TRANSFER + 1) + nodes.track[before]
    order = np.lexsort((made.visible_ns[before], lane, after))
    before, after, lane = before[order], after[order], lane[order]
    last = np.ones(len(order), bool)
    last[:-1] = (after[1:] != after[:-1]) | (lane[1:] != lane[:-1])
    pairs = np.stack([event_of[before[last]], event_of[after[last]]], axis=1).astype(np.int32)
    return pairs[np.lexsort((pairs[:, 0], pairs[:, 1]))]
