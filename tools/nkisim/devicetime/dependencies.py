"""Which instruction of a core waits for which: from the bytes they touch, and from what the kernel asked for.

Memory is kept in buckets of bytes; each lists the live entries that reach into it: bytes with who wrote them last and
who has read them since. A write ends the entries that it covers, so that lists stay as short as memory is divided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from devicetime.compiled import compiled
from devicetime.operands import HBM, PSUM, Operands
from nkisim.execution import CoreReport

BUCKET_BYTES = 2048
HBM_BUCKETS = 1024
"""A tensor in HBM is divided into so many buckets at most."""

DEPENDENCY, REUSE, ORDER = 0, 1, 2
"""Kinds of edges: reads what another wrote; overwrites what another read or wrote; the kernel asked for it."""


_ENTRY = np.dtype([("writer", np.int64), ("readers", np.int64), ("seen", np.int64), ("alive", np.bool_)])
"""Who wrote its bytes last (-1 for nobody), the first of the list of those who read them since, the access that looked
at it last, and whether a later write has not covered it."""

_COUNTS = np.dtype([(name, np.int64) for name in ("edges", "joins", "entries", "readers", "cells")])


@dataclass(frozen=True)
class Edges:
    """Record `after` waits for record `before`, as `kind` says.

    Numbers from the stream's length on are joins: they stand for several readers that several writers wait for.
    """

    before: np.ndarray
    after: np.ndarray
    kind: np.ndarray
    joins: int


def link(operands: Operands, partition: np.ndarray, byte: np.ndarray, report: CoreReport, engines: np.ndarray) -> Edges:
    """All edges of a core.

    Args:
        operands: of its stream.
        partition, byte: where each allocation begins.
        report: its explicit dependencies and ordered blocks.
        engines: a number per record; instructions of one engine keep their order in ordered blocks.
    """
    used = _that_matter(operands)
    columns = _physical(operands, partition, byte, used)
    first_bucket, last_bucket, buckets = _buckets(operands, columns, used)
    given: list[Any] = [operands.record[used], operands.is_write[used], columns, first_bucket, last_bucket]
    room = 4 * len(used) + 16
    while True:
        found, counts = _traced(given, buckets, len(report.stream), room)
        if counts["edges"] <= room:
            break
        room = int(counts["edges"])
    before, after, kind = found[: counts["edges"]].T
    asked = _asked_for(report, engines)
    return Edges(
        np.concatenate([before, asked[:, 0]]),
        np.concatenate([after, asked[:, 1]]),
        np.concatenate([kind, np.full(len(asked), ORDER)]),
        int(counts["joins"]),
    )


def _traced(given: list[Any], buckets: int, records: int, room: int) -> tuple[np.ndarray, Any]:
    """Edges (before, after, kind) of bytes, as far as there is room, and how many there are of everything."""
    accesses, cells = len(given[0]), int((given[4] - given[3] + 1).sum())
    head = np.full(buckets, -1, np.int64)
    entries = np.zeros(accesses, _ENTRY)
    entries["seen"] = -1
    boxes, readers = np.empty((accesses, 6), np.int64), np.empty((2 * accesses, 2), np.int64)
    told = np.full(records + accesses, -1, np.int64)
    edges, counts = np.empty((room, 3), np.int64), np.zeros(1, _COUNTS)
    lists: list[Any] = [head, np.empty((cells, 2), np.int64), entries, boxes, readers, told]
    _edges_of_bytes(*given, *lists, *[records, edges, counts[0]])
    return edges, counts[0]


def _that_matter(operands: Operands) -> np.ndarray:
    """Operands in memory that anyone writes."""
    written = np.zeros(len(operands.allocations), bool)
    written[operands.allocation[operands.is_write]] = True
    return np.flatnonzero(written[operands.allocation])


def _physical(operands: Operands, partition: np.ndarray, byte: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Per operand: partitions from and to, bytes from and to, period, width."""
    columns = np.stack([box[used] for box in operands.boxes], axis=1)
    columns[:, 0:2] += partition[operands.allocation[used], None]
    columns[:, 2:4] += byte[operands.allocation[used], None]
    return columns


def _buckets(operands: Operands, columns: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """First and last bucket of each operand, and how many there are."""
    memory = operands.memory
    size = np.full(len(memory), BUCKET_BYTES)
    base = np.zeros(len(memory), np.int64)
    allocation = operands.allocation[used]
    reach = columns[memory[allocation] != HBM, 3].max(initial=0)
    on_chip = int(reach) // BUCKET_BYTES + 1
    base[memory == PSUM] = on_chip
    total = 2 * on_chip
    in_hbm = memory == HBM
    size[in_hbm] = np.maximum(BUCKET_BYTES, -(-operands.row_bytes[in_hbm] // HBM_BUCKETS))
    counts = operands.row_bytes[in_hbm] // size[in_hbm] + 1
    base[in_hbm] = total + np.cumsum(counts) - counts
    total += int(counts.sum())
    first = base[allocation] + columns[:, 2] // size[allocation]
    last = base[allocation] + (columns[:, 3] - 1) // size[allocation]
    return first, last, total


def _asked_for(report: CoreReport, engines: np.ndarray) -> np.ndarray:
    """Edges of `depends_on`, `no_reorder` and the reduce registers."""
    pairs = [(before, after) for after, producers in report.dependencies.items() for before in producers]
    for start, stop in report.ordered:
        latest: dict[int, int] = {}
        for position in range(start, stop):
            engine = int(engines[position])
            if engine in latest:
                pairs.append((latest[engine], position))
            latest[engine] = position
    pairs += _read_outs(report)
    return np.array(sorted(set(pairs)), np.int64).reshape(-1, 2)


def _read_outs(report: CoreReport) -> list[tuple[int, int]]:
    """Edges of the Scalar Engine's reduce registers, which no operand names.

    A read-out is recorded right after the instruction that filled them, and the next one that is read out overwrites
    them.
    """
    pairs, previous = [], None
    for position, record in enumerate(report.stream):
        if record.op == "read_reduce_registers":
            pairs.append((position - 1, position))
            if previous is not None:
                pairs.append((previous, position - 1))
            previous = position
    return pairs


@compiled
def _overlap(a: np.ndarray, b: np.ndarray) -> bool:
    if a[0] >= b[1] or b[0] >= a[1] or a[2] >= b[3] or b[2] >= a[3]:
        return False
    if a[4] == 0 and b[4] == 0:
        return True
    period = a[4]
    other = b[4]
    while other:
        period, other = other, period % other
    width_a = a[5] if a[4] else a[3] - a[2]
    width_b = b[5] if b[4] else b[3] - b[2]
    if width_a >= period or width_b >= period:
        return True
    distance = (b[2] - a[2]) % period
    return distance < width_a or period - distance < width_b


@compiled
def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a[0] == b[0] and a[1] == b[1] and a[2] == b[2] and a[3] == b[3] and a[4] == b[4] and a[5] == b[5]


@compiled
def _covers(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether `a` touches every byte that `b` does."""
    if a[0] > b[0] or a[1] < b[1] or a[2] > b[2] or a[3] < b[3]:
        return False
    if a[4] == 0:
        return True
    return a[4] == b[4] and (b[2] - a[2]) % a[4] + b[5] <= a[5]


@compiled
def _trim(entry: np.ndarray, write: np.ndarray) -> None:
    """Takes off a side of the entry that a dense write covers."""
    if write[4] or entry[4]:
        return
    if write[0] <= entry[0] and write[1] >= entry[1]:
        if write[2] <= entry[2]:
            entry[2] = write[3]
        elif write[3] >= entry[3]:
            entry[3] = write[2]
    elif write[2] <= entry[2] and write[3] >= entry[3]:
        if write[0] <= entry[0]:
            entry[0] = write[1]
        elif write[1] >= entry[1]:
            entry[1] = write[0]


@compiled
def _note(edges: np.ndarray, counts: Any, told: np.ndarray, before: int, after: int, kind: int) -> None:
    """Adds an edge, unless it was the last one from there or comes from nobody; only counts it without room."""
    if before < 0 or before == after or told[before] == after:
        return
    told[before] = after
    if counts.edges < len(edges):
        edges[counts.edges, 0] = before
        edges[counts.edges, 1] = after
        edges[counts.edges, 2] = kind
    counts.edges += 1


@compiled
def _add_reader(readers: np.ndarray, counts: Any, entry: Any, reader: int) -> None:
    readers[counts.readers, 0] = reader
    readers[counts.readers, 1] = entry.readers
    entry.readers = counts.readers
    counts.readers += 1


@compiled
def _overwrite(
    entry: Any,
    box: np.ndarray,
    mine: np.ndarray,
    me: int,
    readers: np.ndarray,
    edges: np.ndarray,
    counts: Any,
    told: np.ndarray,
    first_join: int,
) -> None:
    """Edges to a record that writes over an entry: from its readers, or its writer if nobody read it.

    Where several did and some of the entry lives on, they lead to a join, which stands for them from then on.
    """
    entry.alive = not _covers(mine, box)
    at = entry.readers
    target = me
    if at < 0:
        _note(edges, counts, told, entry.writer, me, REUSE)
    elif entry.alive and readers[at, 1] >= 0:
        target = first_join + counts.joins
        counts.joins += 1
    while at >= 0:
        if readers[at, 0] != me:
            _note(edges, counts, told, readers[at, 0], target, REUSE)
        at = readers[at, 1]
    if target != me:
        _note(edges, counts, told, target, me, REUSE)
        entry.readers = -1
        _add_reader(readers, counts, entry, target)
    _trim(box, mine)


@compiled
def _enter(box: np.ndarray, mine: np.ndarray, entry: Any) -> None:
    """A new entry, of bytes that nobody has touched as far as it knows."""
    for n in range(6):
        box[n] = mine[n]
    entry.alive = True
    entry.writer = -1
    entry.readers = -1


@compiled
def _list(entry: int, first: int, last: int, head: np.ndarray, cells: np.ndarray, counts: Any) -> None:
    """Puts an entry into the lists of its buckets."""
    for bucket in range(first, last + 1):
        cells[counts.cells, 0] = entry
        cells[counts.cells, 1] = head[bucket]
        head[bucket] = counts.cells
        counts.cells += 1


@compiled
def _edges_of_bytes(
    record: np.ndarray,
    is_write: np.ndarray,
    columns: np.ndarray,
    first_bucket: np.ndarray,
    last_bucket: np.ndarray,
    head: np.ndarray,
    cells: np.ndarray,
    entries: np.ndarray,
    box: np.ndarray,
    readers: np.ndarray,
    told: np.ndarray,
    first_join: int,
    edges: np.ndarray,
    counts: Any,
) -> None:
    """Fills `edges` and `counts`. A cell of a bucket's list is (entry, next cell)."""
    for access in range(len(record)):
        me, mine = record[access], columns[access]
        same = -1
        for bucket in range(first_bucket[access], last_bucket[access] + 1):
            previous = -1
            cell = head[bucket]
            while cell >= 0:
                number, following = cells[cell]
                entry = entries[number]
                if not entry.alive:
                    if previous < 0:
                        head[bucket] = following
                    else:
                        cells[previous, 1] = following
                else:
                    previous = cell
                    if entry.seen != access and _overlap(mine, box[number]):
                        if is_write[access]:
                            _overwrite(entry, box[number], mine, me, readers, edges, counts, told, first_join)
                        else:
                            _note(edges, counts, told, entry.writer, me, DEPENDENCY)
                            same = number if _equal(mine, box[number]) else same
                    entry.seen = access
                cell = following
        if is_write[access] or same < 0:
            same = counts.entries
            counts.entries += 1
            _enter(box[same], mine, entries[same])
            _list(same, first_bucket[access], last_bucket[access], head, cells, counts)
        if is_write[access]:
            entries[same].writer = me
        else:
            _add_reader(readers, counts, entries[same], me)
