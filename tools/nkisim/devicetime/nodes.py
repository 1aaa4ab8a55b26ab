"""The work of all cores as arrays that the scheduler reads: what runs where, for how long, and after what.

A record is one node, a DMA two: its trigger on an engine, and its transfer. Joins are nodes without a track.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.hardware import Hardware
from devicetime import allocator, compute_costs, dma_costs, meetings, operands
from devicetime.compute_costs import Machine
from devicetime.cost import ENGINE_NAMES, GPSIMD, SCALAR, SYNC, TENSOR, VECTOR, Cost
from devicetime.dependencies import Edges, link
from devicetime.operands import Operands
from nkisim.enums import engine
from nkisim.execution import CoreReport

NO_TRACK = -1
COLLECTIVE = len(ENGINE_NAMES)
TRANSFER = COLLECTIVE + 1
"""Tracks of a core: its engines, then collectives, then its DMA queues."""

COMES, MEETS = 3, 4
"""Kinds of edges beside those of `dependencies`: a DMA's transfer after its trigger; members of a meeting."""

_NUMBER = {
    engine.tensor: TENSOR,
    engine.vector: VECTOR,
    engine.scalar: SCALAR,
    engine.gpsimd: GPSIMD,
    engine.sync: SYNC,
    engine.dma: GPSIMD,
}


@dataclass(frozen=True)
class Nodes:
    """Parallel arrays. Nodes are the cores' records in order, then transfers, then joins.

    Attributes:
        core, record: whose record; -1 for joins.
        track: of its core; NO_TRACK for joins, TRANSFER for a transfer, whose queue the scheduler chooses.
        hold_ns, done_ns: as in `Cost`; of a transfer `hold_ns` is an engine's time.
        table: number of the Scalar Engine's function table; 0 where none is needed.
        activity: share of the PE array that works while a matmul holds the engine.
        transfer: float64 [n, 6] first engine, engines, HBM bytes, ready, stagger, tail as in `Transfer`.
        before, after, kind: edges.
        cores: how many.
    """

    core: np.ndarray
    record: np.ndarray
    track: np.ndarray
    hold_ns: np.ndarray
    done_ns: np.ndarray
    table: np.ndarray
    activity: np.ndarray
    transfer: np.ndarray
    before: np.ndarray
    after: np.ndarray
    kind: np.ndarray
    cores: int


@dataclass(frozen=True)
class _Core:
    """One core's records with their costs, as arrays, and the edges between them."""

    report: CoreReport
    engine: np.ndarray
    hold_ns: np.ndarray
    done_ns: np.ndarray
    table: list[str | None]
    activity: np.ndarray
    class_of: np.ndarray
    transfer: np.ndarray
    transfers: np.ndarray
    edges: Edges
    meets: dict[int, meetings.Meeting]
    meeting_ns: dict[int, float]


def build(reports: Sequence[CoreReport], ranks: Sequence[int], machine: Machine) -> Nodes:
    """Nodes and edges of cores that run together.

    Args:
        reports: of each core.
        ranks: whose core each is.
    """
    cores = [_core(report, rank, machine) for report, rank in zip(reports, ranks, strict=True)]
    return _Merger(cores, machine).nodes()


def _core(report: CoreReport, rank: int, machine: Machine) -> _Core:
    stream = report.stream
    found = operands.gather(stream)
    partition, byte = allocator.place(found, machine.hardware)
    class_of, exemplars, meets = _classes(report, found, partition, rank)
    costs = [_cost(stream[position], machine) for position in exemplars]
    on = np.array([c.engine for c in costs], np.int64)[class_of]
    transfer = np.array([_transfer_row(c) for c in costs]).reshape(-1, 7)[class_of]
    meeting_ns = {
        position: meetings.collective_ns(stream[position], machine)
        for position in meets
        if meetings.is_collective(stream[position])
    }
    return _Core(
        report=report,
        engine=on,
        hold_ns=np.array([c.hold_ns for c in costs])[class_of],
        done_ns=np.array([c.done_ns for c in costs])[class_of],
        table=[c.table for c in costs],
        activity=np.array([c.activity for c in costs])[class_of],
        class_of=class_of,
        transfer=transfer,
        transfers=np.flatnonzero(transfer[:, 0] >= 0),
        edges=link(found, partition, byte, report, on),
        meets=meets,
        meeting_ns=meeting_ns,
    )


def _classes(
    report: CoreReport, found: Operands, partition: np.ndarray, rank: int
) -> tuple[np.ndarray, list[int], dict[int, meetings.Meeting]]:
    """Which records cost the same: a class per record, a record of each class, and what takes part in meetings."""
    ops, engines, _, _, _, _, _, details = zip(*report.stream, strict=True)
    op, names = operands.index_values(ops)
    on, _ = operands.index_values(engines)
    detail, given = _index_details(details)
    mixed = _mix(op) + _mix(on + (1 << 20)) + _mix(detail + (1 << 40))
    starts = np.searchsorted(found.record, np.arange(len(ops)))
    place = np.arange(len(found.record)) - starts[found.record]
    row = found.first_partition + partition[found.allocation]
    np.add.at(mixed, found.record, _mix(found.pattern * 4096 + row * 8 + np.minimum(place, 7) + (1 << 50)))
    _, first, class_of = np.unique(mixed, return_index=True, return_inverse=True)
    meeting_details = np.array([meetings.may_meet("", d) for d in given])[detail]
    meeting_ops = np.array([meetings.may_meet(name, None) for name in names])[op]
    positions = np.flatnonzero(meeting_details | meeting_ops)
    meets = meetings.of_core(report.stream, rank, positions.tolist())
    return class_of, first.tolist(), meets


def _index_details(details: Sequence[Any]) -> tuple[np.ndarray, list[Any]]:
    try:
        return operands.index_values(details)
    except TypeError:  # one that has no hash
        numbers, _ = operands.index_values(map(repr, details))
        first = np.unique(numbers, return_index=True)[1]
        return numbers, [details[n] for n in first]


def _mix(values: np.ndarray) -> np.ndarray:
    """Numbers spread over 64 bits, so that sums of them tell combinations apart."""
    mixed = (values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _cost(record: Any, machine: Machine) -> Cost:
    if meetings.is_collective(record):
        return Cost(COLLECTIVE, 0.0, 0.0)
    if dma_costs.is_dma(record):
        return dma_costs.cost(record, machine)
    return compute_costs.cost(record, machine)


def _transfer_row(cost: Cost) -> tuple[float, ...]:
    t = cost.transfer
    if t is None:
        return (-1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    return (t.first_engine, t.engines, t.hbm_bytes, t.ready_ns, t.stagger_ns, t.tail_ns, t.engine_ns)


class _Merger:
    """Numbers the nodes of several cores and joins those that meet."""

    def __init__(self, cores: Sequence[_Core], machine: Machine) -> None:
        self.cores = cores
        self.machine = machine
        counts = [len(core.report.stream) for core in cores]
        self.first_record = np.concatenate([[0], np.cumsum(counts)])
        transfers = [len(core.transfers) for core in cores]
        self.first_transfer = self.first_record[-1] + np.concatenate([[0], np.cumsum(transfers)])
        self.joins = int(self.first_transfer[-1])
        self.edges: list[np.ndarray] = []
        self.extra: list[tuple[int, int, int]] = []

    def nodes(self) -> Nodes:
        """Everything, merged."""
        leaves = [self._core_edges(number) for number in range(len(self.cores))]
        self._meet(leaves)
        edges = np.concatenate([*self.edges, np.array(self.extra, np.int64).reshape(-1, 3)])
        records, total = int(self.first_record[-1]), self.joins
        owner = np.full(total, -1, np.int64)
        record = np.full(total, -1, np.int64)
        track = np.full(total, NO_TRACK, np.int64)
        hold, done, activity, transfer = np.zeros(total), np.zeros(total), np.zeros(total), np.zeros((total, 6))
        tables, table = self._tables()
        for number, core in enumerate(self.cores):
            here = slice(int(self.first_record[number]), int(self.first_record[number + 1]))
            there = slice(int(self.first_transfer[number]), int(self.first_transfer[number + 1]))
            owner[here] = owner[there] = number
            record[here] = np.arange(len(core.report.stream))
            record[there] = core.transfers
            track[here], track[there] = core.engine, TRANSFER
            hold[here], done[here], activity[here] = core.hold_ns, core.done_ns, core.activity
            hold[there] = core.transfer[core.transfers, 6]
            transfer[there] = core.transfer[core.transfers, :6]
            for position, ns in core.meeting_ns.items():
                hold[here.start + position] = done[here.start + position] = ns
        table_of = np.zeros(total, np.int64)
        table_of[:records] = np.concatenate(
            [np.array(t, np.int64)[c.class_of] for t, c in zip(table, self.cores, strict=True)]
        )
        del tables
        return Nodes(owner, record, track, hold, done, table_of, activity, transfer, *edges.T, len(self.cores))

    def _tables(self) -> tuple[dict[str, int], list[list[int]]]:
        numbers: dict[str, int] = {}
        table = [
            [0 if name is None else numbers.setdefault(name, len(numbers) + 1) for name in core.table]
            for core in self.cores
        ]
        return numbers, table

    def _core_edges(self, number: int) -> np.ndarray:
        """Adds a core's edges; returns the node whose end is the end of each of its records."""
        core, records = self.cores[number], len(self.cores[number].report.stream)
        base, transfers = int(self.first_record[number]), core.transfers
        first = np.concatenate([np.arange(records) + base, np.arange(core.edges.joins) + self.joins])
        self.joins += core.edges.joins
        last = first.copy()
        last[transfers] = np.arange(len(transfers)) + int(self.first_transfer[number])
        self.edges.append(
            np.stack([last[core.edges.before], first[core.edges.after], core.edges.kind.astype(np.int64)], axis=1)
        )
        comes = np.full(len(transfers), COMES)
        self.edges.append(np.stack([first[transfers], last[transfers], comes], axis=1))
        return last

    def _meet(self, leaves: list[np.ndarray]) -> None:
        """Members of a meeting start when all could, and are done when all are."""
        together: dict[meetings.Meeting, list[tuple[int, int]]] = {}
        for number, core in enumerate(self.cores):
            for position, meeting in core.meets.items():
                together.setdefault(meeting, []).append((number, position))
        members = [each for each in together.values() if len(each) > 1]
        if not members:
            return
        start_of, end_of = {}, {}
        for each in members:
            start, end = self.joins, self.joins + 1
            self.joins += 2
            for number, position in each:
                node = int(self.first_record[number]) + position
                start_of[node], end_of[int(leaves[number][position])] = start, end
                self.extra.append((start, node, MEETS))
                self.extra.append((int(leaves[number][position]), end, MEETS))
        for edges in self.edges:
            ordinary = edges[:, 2] != COMES
            for column, moved in ((0, end_of), (1, start_of)):
                keys = np.fromiter(moved, np.int64)
                hit = ordinary & np.isin(edges[:, column], keys)
                edges[hit, column] = [moved[int(node)] for node in edges[hit, column]]


def hardware_of(machine: Machine) -> Hardware:
    """The target."""
    return machine.hardware
