"""The work of all cores as arrays that the scheduler reads: what runs where, for how long, and after what.

A record is one node, a DMA two: its trigger on an engine, and its transfer. Joins are nodes without a track.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from devicetime import allocator, compute_costs, dma_costs, meetings, operands
from devicetime.cost import COLLECTIVE, Cost, Machine
from devicetime.dependencies import Edges, link
from devicetime.operands import Operands
from nkisim.execution import CoreReport
from nkisim.record import Record

NO_TRACK = -1
TRANSFER = COLLECTIVE + 1
"""Tracks of a core: its engines, then collectives, then its DMA queues."""

COMES, MEETS = 3, 4
"""Kinds of edges beside those of `dependencies`: a DMA's transfer after its trigger; members of a meeting."""

NODE = np.dtype(
    [
        ("core", np.int64),
        ("record", np.int64),
        ("track", np.int64),
        ("hold_ns", np.float64),
        ("done_ns", np.float64),
        ("table", np.int64),
        ("activity", np.float64),
        ("first_engine", np.int64),
        ("engines", np.int64),
        ("hbm_bytes", np.float64),
        ("ready_ns", np.float64),
        ("stagger_ns", np.float64),
        ("tail_ns", np.float64),
    ]
)
"""Whose record (-1 for joins); the track of its core (NO_TRACK for joins, TRANSFER for transfers, whose queue the
scheduler chooses); then as in `Cost`, with a number for the table, 0 for none; then as in `Transfer`. Of a transfer
`hold_ns` is what each DMA engine needs."""

EDGE = np.dtype([("before", np.int64), ("after", np.int64), ("kind", np.int64)])


class Work(NamedTuple):
    """What cores that run together do.

    Attributes:
        nodes: an array of NODE: the cores' records in order, then transfers, then joins.
        edges: an array of EDGE.
        cores: how many.
    """

    nodes: np.ndarray
    edges: np.ndarray
    cores: int


@dataclass(frozen=True)
class CoreWork:
    """One core's records with their costs and the edges between them.

    Attributes:
        costs: an array of NODE, one per class of records that cost the same; class_of: each record's class.
        moves: an array of NODE, the transfers of these classes; transfers: the positions of records with a transfer.
        edges: between records.
        meets: the meetings that records take part in, by position.
        operands, partition, byte: what they touch, and where each allocation begins.
    """

    costs: np.ndarray
    class_of: np.ndarray
    moves: np.ndarray
    transfers: np.ndarray
    edges: Edges
    meets: dict[int, meetings.Meeting]
    operands: Operands
    partition: np.ndarray
    byte: np.ndarray


def of_core(report: CoreReport, rank: int, machine: Machine) -> CoreWork:
    """A core's part of the work."""
    stream = report.stream
    ops, engines, writes, reads, _, _, _, details = zip(*stream, strict=True)
    found = operands.gather(ops, reads, writes)
    partition, byte = allocator.place(found, machine.hardware)
    kind, kinds = _kinds(ops, engines, details)
    class_of, exemplars = _classes(kind, found, partition)
    costs = [_cost(stream[position], machine) for position in exemplars]
    rows = _rows(costs)
    return CoreWork(
        costs=rows,
        class_of=class_of,
        moves=_transfer_rows(costs),
        transfers=np.flatnonzero(np.array([cost.transfer is not None for cost in costs])[class_of]),
        edges=link(found, partition, byte, report, rows["track"][class_of]),
        meets=meetings.of_core(stream, rank, np.flatnonzero(_may_meet(kinds)[kind]).tolist()),
        operands=found,
        partition=partition,
        byte=byte,
    )


def _kinds(
    ops: Sequence[str], engines: Sequence[Any], details: Sequence[Any]
) -> tuple[np.ndarray, list[tuple[str, Any, Any]]]:
    """The number of each record's call, engine and detail among the distinct ones, and these."""
    try:
        return operands.number(zip(ops, engines, details, strict=True), len(ops))
    except TypeError:  # a detail that has no hash; those of meetings have one
        shown = [detail if isinstance(detail, tuple) else repr(detail) for detail in details]
        return operands.number(zip(ops, engines, shown, strict=True), len(ops))


def _may_meet(kinds: list[tuple[str, Any, Any]]) -> np.ndarray:
    """Which kinds of records several cores may carry out together."""
    return np.array([meetings.may_meet(op, detail) for op, _, detail in kinds])


def _classes(kind: np.ndarray, found: Operands, partition: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """A class per record, of those that cost the same, and a record of each class."""
    place = np.minimum(np.arange(len(found.record)) - found.first_operand[found.record], 7)
    row = found.boxes.first_partition + partition[found.allocation]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_mix((found.pattern * 128 + row) * 8 + place + 1))])
    of_operands = sums[found.first_operand[1:]] - sums[found.first_operand[:-1]]
    mixed = of_operands + _mix(kind + (1 << 50))
    class_of, first = operands.number_integers(mixed.view(np.int64))
    return class_of, first.tolist()


def _mix(values: np.ndarray) -> np.ndarray:
    """Numbers spread over 64 bits, so that sums of them tell combinations apart."""
    mixed = (values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _cost(record: Record, machine: Machine) -> Cost:
    if meetings.is_collective(record):
        return meetings.cost(record, machine)
    if dma_costs.is_dma(record) and (record.reads or record.writes):
        return dma_costs.cost(record, machine)
    return compute_costs.cost(record, machine)


def _rows(costs: Sequence[Cost]) -> np.ndarray:
    """Nodes of instructions with these costs."""
    tables: dict[str | None, int] = {None: 0}
    rows = np.zeros(len(costs), NODE)
    for row, cost in zip(rows, costs, strict=True):
        row["track"], row["hold_ns"], row["done_ns"] = cost.engine, cost.hold_ns, cost.done_ns
        row["table"], row["activity"] = tables.setdefault(cost.table, len(tables)), cost.activity
    return rows


def _transfer_rows(costs: Sequence[Cost]) -> np.ndarray:
    """Nodes of their transfers."""
    rows = np.zeros(len(costs), NODE)
    for row, cost in zip(rows, costs, strict=True):
        transfer = cost.transfer
        if transfer is None:
            continue
        row["track"], row["hold_ns"], row["done_ns"] = TRANSFER, transfer.engine_ns, transfer.engine_ns
        for name in ("first_engine", "engines", "hbm_bytes", "ready_ns", "stagger_ns", "tail_ns"):
            row[name] = getattr(transfer, name)
    return rows


def merge(cores: Sequence[CoreWork]) -> Work:
    """Nodes and edges of cores that run together."""
    records = np.array([len(core.class_of) for core in cores])
    transfers = np.array([len(core.transfers) for core in cores])
    first_record = np.cumsum(records) - records
    first_transfer = records.sum() + np.cumsum(transfers) - transfers
    joins = int(records.sum() + transfers.sum())
    edges, ends = [], []
    for number, core in enumerate(cores):
        own, end = _edges(core, int(first_record[number]), int(first_transfer[number]), joins)
        joins += core.edges.joins
        edges.append(own)
        ends.append(end)
    met, joins = _meet(cores, edges, ends, first_record, joins)
    nodes = np.zeros(joins, NODE)
    for number, core in enumerate(cores):
        own = nodes[first_record[number] :][: records[number]]
        np.take(core.costs, core.class_of, out=own)
        own["core"], own["record"] = number, np.arange(len(own))
        own = nodes[first_transfer[number] :][: transfers[number]]
        np.take(core.moves, core.class_of[core.transfers], out=own)
        own["core"], own["record"] = number, core.transfers
    for name in ("core", "record", "track"):
        nodes[name][records.sum() + transfers.sum() :] = NO_TRACK
    return Work(nodes, np.concatenate([*edges, met]), len(cores))


def _edges(core: CoreWork, first_record: int, first_transfer: int, first_join: int) -> tuple[np.ndarray, np.ndarray]:
    """A core's edges, and the node whose end is the end of each of its records and joins."""
    between, moved = core.edges, core.transfers
    begin = np.concatenate([np.arange(len(core.class_of)) + first_record, np.arange(between.joins) + first_join])
    end = begin.copy()
    end[moved] = np.arange(len(moved)) + first_transfer
    edges = np.empty(len(between.before) + len(moved), EDGE)
    edges["before"] = np.concatenate([end[between.before], begin[moved]])
    edges["after"] = np.concatenate([begin[between.after], end[moved]])
    edges["kind"] = np.concatenate([between.kind, np.full(len(moved), COMES, np.int8)])
    return edges, end


def _meet(
    cores: Sequence[CoreWork], edges: list[np.ndarray], ends: list[np.ndarray], first_record: np.ndarray, joins: int
) -> tuple[np.ndarray, int]:
    """Members of a meeting start when all could, and are done when all are: through two joins.

    Returns:
        Edges of the joins, and the number of the first node after them. What led to a member in `edges` now leads to
        the first join, what came from one comes from the second.
    """
    together: dict[meetings.Meeting, list[tuple[int, int]]] = {}
    for number, core in enumerate(cores):
        for position, meeting in core.meets.items():
            together.setdefault(meeting, []).append((int(first_record[number]) + position, int(ends[number][position])))
    moved: dict[str, dict[int, int]] = {"before": {}, "after": {}}
    extra: list[tuple[int, int, int]] = []
    for members in together.values():
        if len(members) > 1:
            for begin, end in members:
                moved["after"][begin], moved["before"][end] = joins, joins + 1
                extra += [(joins, begin, MEETS), (end, joins + 1, MEETS)]
            joins += 2
    for own in edges if extra else ():
        for side, to in moved.items():
            hit = np.flatnonzero((own["kind"] != COMES) & np.isin(own[side], np.fromiter(to, np.int64, len(to))))
            own[side][hit] = [to[node] for node in own[side][hit].tolist()]
    return np.array(extra, EDGE), joins
