"""Which instruction of a core waits for which: from the bytes they touch, and from what the kernel asked for.

Memory is kept in buckets of bytes; each lists the live entries that reach into it: bytes with who wrote them last and
who has read them since. A write ends the entries that it covers, so that lists stay as short as memory is divided.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from devicetime.compiled import compiled
from devicetime.operands import HBM, PSUM, Operands
from nkisim.execution import CoreReport

BUCKET_BYTES = 2048
HBM_BUCKETS = 1024
"""A tensor in HBM is divided into so many buckets at most."""

DEPENDENCY, REUSE, ORDER = 0, 1, 2
"""Kinds of edges: reads what another wrote; overwrites what another read or wrote; the kernel asked for it."""


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
    records = len(report.stream)
    used = _that_matter(operands)
    columns = _physical(operands, partition, byte, used)
    first_bucket, last_bucket, buckets = _buckets(operands, columns, used)
    capacity = 4 * len(used) + 16
    while True:
        before, after, kind, count, joins = _edges_of_bytes(
            operands.record[used],
            operands.is_write[used],
            columns,
            first_bucket,
            last_bucket,
            buckets,
            records,
            capacity,
        )
        if count <= capacity:
            break
        capacity *= 2
    asked = _asked_for(report, engines)
    return Edges(
        np.concatenate([before[:count], asked[:, 0]]),
        np.concatenate([after[:count], asked[:, 1]]),
        np.concatenate([kind[:count], np.full(len(asked), ORDER, np.int8)]),
        joins,
    )


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
    """Edges of `depends_on` and `no_reorder`."""
    pairs = [(before, after) for after, producers in report.dependencies.items() for before in producers]
    for start, stop in report.ordered:
        latest: dict[int, int] = {}
        for position in range(start, stop):
            engine = int(engines[position])
            if engine in latest:
                pairs.append((latest[engine], position))
            latest[engine] = position
    return np.array(sorted(set(pairs)), np.int64).reshape(-1, 2)


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
def _note(before: np.ndarray, after: np.ndarray, kind: np.ndarray, count: int, one: int, other: int, what: int) -> None:
    if count < len(before):
        before[count] = one
        after[count] = other
        kind[count] = what


@compiled
def _edges_of_bytes(  # noqa: C901 - one pass over one structure
    record: np.ndarray,
    is_write: np.ndarray,
    columns: np.ndarray,
    first_bucket: np.ndarray,
    last_bucket: np.ndarray,
    buckets: int,
    records: int,
    capacity: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, int]:
    """Edges (before, after, kind), how many there are (only counted beyond `capacity`), and joins."""
    accesses = len(record)
    before = np.empty(capacity, np.int64)
    after = np.empty(capacity, np.int64)
    kind = np.empty(capacity, np.int8)
    count = 0
    joins = 0
    told = np.full(records + accesses + 1, -1, np.int64)  # the last record that waits for this one
    box = np.empty((accesses, 6), np.int64)
    writer = np.full(accesses, -1, np.int64)
    readers = np.full(accesses, -1, np.int64)
    alive = np.zeros(accesses, np.bool_)
    seen = np.full(accesses, -1, np.int64)
    entries = 0
    reader = np.empty(2 * accesses, np.int64)
    more_readers = np.empty(2 * accesses, np.int64)
    reads = 0
    cells = 0
    for i in range(accesses):
        cells += last_bucket[i] - first_bucket[i] + 1
    cell_entry = np.empty(cells, np.int64)
    cell_next = np.empty(cells, np.int64)
    cells = 0
    head = np.full(buckets, -1, np.int64)
    for i in range(accesses):
        me = record[i]
        mine = columns[i]
        same = -1
        for bucket in range(first_bucket[i], last_bucket[i] + 1):
            previous = -1
            cell = head[bucket]
            while cell >= 0:
                following = cell_next[cell]
                entry = cell_entry[cell]
                if not alive[entry]:
                    if previous < 0:
                        head[bucket] = following
                    else:
                        cell_next[previous] = following
                    cell = following
                    continue
                previous = cell
                cell = following
                if seen[entry] == i:
                    continue
                seen[entry] = i
                if not _overlap(mine, box[entry]):
                    continue
                source = writer[entry]
                if not is_write[i]:
                    if source >= 0 and source != me and told[source] != me:
                        told[source] = me
                        _note(before, after, kind, count, source, me, DEPENDENCY)
                        count += 1
                    if _equal(mine, box[entry]):
                        same = entry
                    continue
                covered = _covers(mine, box[entry])
                at = readers[entry]
                if at < 0:
                    if source >= 0 and source != me and told[source] != me:
                        told[source] = me
                        _note(before, after, kind, count, source, me, REUSE)
                        count += 1
                else:
                    target = me
                    if not covered and more_readers[at] >= 0:
                        target = records + joins
                        joins += 1
                    while at >= 0:
                        source = reader[at]
                        if source != me and (target != me or told[source] != me):
                            if target == me:
                                told[source] = me
                            _note(before, after, kind, count, source, target, REUSE)
                            count += 1
                        at = more_readers[at]
                    if target != me:
                        _note(before, after, kind, count, target, me, REUSE)
                        count += 1
                        reader[reads], more_readers[reads] = target, -1
                        readers[entry] = reads
                        reads += 1
                if covered:
                    alive[entry] = False
                else:
                    _trim(box[entry], mine)
        if is_write[i] or same < 0:
            same = entries
            entries += 1
            alive[same] = True
            for n in range(6):
                box[same, n] = mine[n]
            for bucket in range(first_bucket[i], last_bucket[i] + 1):
                cell_entry[cells], cell_next[cells] = same, head[bucket]
                head[bucket] = cells
                cells += 1
        if is_write[i]:
            writer[same] = me
        else:
            reader[reads], more_readers[reads] = me, readers[same]
            readers[same] = reads
            reads += 1
    return before, after, kind, count, joins
