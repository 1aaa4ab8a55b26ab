"""The operands of a core's records as arrays: which bytes of which memory each one touches.

Views are many and their layouts few, so what needs Python happens once per layout; the rest is numpy.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, count
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from devicetime.compiled import compiled
from nkisim.enums import MemoryRegion
from nkisim.storage import Allocation, IndexedRegion, Region

SBUF, PSUM, HBM = 0, 1, 2
"""Memories, as `Operands.memory` numbers them."""

_MEMORY = {
    MemoryRegion.sbuf: SBUF,
    MemoryRegion.psum: PSUM,
    MemoryRegion.private_hbm: HBM,
    MemoryRegion.shared_hbm: HBM,
}


_BUFFER, _ROW_BYTES, _ADDRESS = (itemgetter(Allocation._fields.index(n)) for n in ("buffer", "row_bytes", "address"))


class Boxes(NamedTuple):
    """Bytes in a memory: a range of partitions times a range of bytes, of which runs are touched.

    Attributes:
        first_partition, last_partition: the last one exclusive; 0 and 1 for HBM.
        first_byte, last_byte: of each partition, the last one exclusive.
        period_bytes, width_bytes: bytes touched are those with (byte - first) % period < width; period 0 means all.
    """

    first_partition: np.ndarray
    last_partition: np.ndarray
    first_byte: np.ndarray
    last_byte: np.ndarray
    period_bytes: np.ndarray
    width_bytes: np.ndarray


@dataclass(frozen=True)
class Operands:
    """Parallel arrays, one entry per operand, in program order; of one record reads come before writes.

    Attributes:
        record: position of its record.
        is_write: bool.
        allocation: index into `allocations`, in order of first access.
        pattern: number of its layout, type and memory: operands of one pattern cost the same.
        boxes: where it lies within its allocation.
        allocations: what operands lie in; addresses, memory, row_bytes: where that is, and its bytes per partition.
        first_operand: per record, where its operands begin; one entry more at the end.
    """

    record: np.ndarray
    is_write: np.ndarray
    allocation: np.ndarray
    pattern: np.ndarray
    boxes: Boxes
    allocations: Sequence[Allocation]
    addresses: Sequence[tuple[int, int] | None]
    memory: np.ndarray
    row_bytes: np.ndarray
    first_operand: np.ndarray


def number(values: Iterable[Any], length: int) -> tuple[np.ndarray, list[Any]]:
    """The number of each of `length` values among the distinct ones, and these, in order of appearance."""
    numbers: defaultdict[Any, int] = defaultdict(count().__next__)
    found = np.fromiter(map(numbers.__getitem__, values), np.int64, length)
    return found, list(numbers)


def number_objects(objects: Sequence[Any]) -> tuple[np.ndarray, list[Any]]:
    """As `number`, by identity."""
    found, first = number_integers(np.fromiter(map(id, objects), np.int64, len(objects)))
    return found, list(map(objects.__getitem__, first.tolist()))


@compiled
def number_integers(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The number of each value among the distinct ones in order of appearance, and where each of these appears first.

    A hash table, since sorting would cost several times as much.
    """
    slots = 16
    while slots < 2 * len(values):
        slots *= 2
    table = np.full(slots, -1, np.int64)
    found = np.empty(len(values), np.int64)
    first = np.empty(len(values), np.int64)
    distinct = 0
    for n in range(len(values)):
        mixed = values[n] * 0x2545F4914F6CDD1D
        slot = (mixed ^ (mixed >> 29)) & (slots - 1)
        while table[slot] >= 0 and values[first[table[slot]]] != values[n]:
            slot = (slot + 1) & (slots - 1)
        if table[slot] < 0:
            table[slot] = distinct
            first[distinct] = n
            distinct += 1
        found[n] = table[slot]
    return found, first[:distinct].copy()


def gather(ops: Sequence[str], reads: Sequence[tuple[Region, ...]], writes: Sequence[tuple[Region, ...]]) -> Operands:
    """The operands of a stream's records, given as columns.

    An index tile counts as an operand that is read; a barrier writes what it reads.
    """
    if "core_barrier" in ops:
        writes = tuple(r if op == "core_barrier" else w for op, w, r in zip(ops, writes, reads, strict=True))
    region, regions = _flat(reads, writes)
    indexed = IndexedRegion in set(map(type, regions))
    if indexed:
        reads = tuple(map(_with_index_tiles, reads, writes))
        region, regions = _flat(reads, writes)
    records = len(ops)
    read_counts = np.fromiter(map(len, reads), np.int64, records)
    counts = read_counts + np.fromiter(map(len, writes), np.int64, records)
    first = np.concatenate([[0], np.cumsum(counts)])
    record = np.repeat(np.arange(records), counts)
    is_write = np.arange(len(region)) - first[record] >= read_counts[record]
    return _located(record, is_write, region, regions, first, indexed)


def _flat(reads: Sequence[tuple[Region, ...]], writes: Sequence[tuple[Region, ...]]) -> tuple[np.ndarray, list[Region]]:
    """The number of each operand's view, and the distinct views."""
    return number_objects([*chain.from_iterable(chain.from_iterable(zip(reads, writes, strict=True)))])


def _with_index_tiles(reads: tuple[Region, ...], writes: tuple[Region, ...]) -> tuple[Region, ...]:
    tiles = [r.chosen_by for r in (*reads, *writes) if type(r) is IndexedRegion and r.chosen_by is not None]
    return (*reads, *tiles) if tiles else reads


def _located(
    record: np.ndarray,
    is_write: np.ndarray,
    region: np.ndarray,
    regions: list[Region],
    first: np.ndarray,
    any_indexed: bool,
) -> Operands:
    if not regions:
        none = np.zeros(0, np.int64)
        return Operands(record, is_write, none, none, Boxes(*[none] * 6), (), (), none, none, first)
    allocation_of, dtypes, offsets, shapes, strides = zip(*regions, strict=True)
    allocation, allocations = number_objects(allocation_of)
    memory = np.fromiter(map(_MEMORY.__getitem__, map(_BUFFER, allocations)), np.int64, len(allocations))
    row_bytes = np.fromiter(map(_ROW_BYTES, allocations), np.int64, len(allocations))
    dtype_of = dict(zip(map(id, dtypes), dtypes, strict=True))
    layout, layouts = number(zip(shapes, strides, map(id, dtypes), strict=True), len(regions))
    on_chip = memory[allocation] != HBM
    extents = np.array([_extents(shape, stride, dtype_of[d].itemsize) for shape, stride, d in layouts])
    pick = layout * 2 + on_chip
    size, count_, step, span, period, width = extents.reshape(-1, 6)[pick].T
    start = np.array(offsets, np.int64) * size
    row = row_bytes[allocation]
    first_partition = np.where(on_chip, start // row, 0)
    first_byte = start - first_partition * row
    boxes = Boxes(
        first_partition,
        np.where(on_chip, first_partition + (count_ - 1) * (step // row) + 1, 1),
        first_byte,
        first_byte + span,
        period,
        width,
    )
    pattern = layout * 3 + memory[allocation]
    if any_indexed:
        indexed = np.fromiter((type(r) is IndexedRegion for r in regions), bool, len(regions))
        boxes = _anywhere(boxes, indexed, np.array([a.partitions for a in allocations])[allocation], row)
        pattern = pattern * 2 + indexed
    in_operands = Boxes(*[box[region] for box in boxes])
    return Operands(
        record=record,
        is_write=is_write,
        allocation=allocation[region],
        pattern=pattern[region],
        boxes=in_operands,
        allocations=allocations,
        addresses=list(map(_ADDRESS, allocations)),
        memory=memory,
        row_bytes=row_bytes,
        first_operand=first,
    )


def _anywhere(boxes: Boxes, indexed: np.ndarray, partitions: np.ndarray, row: np.ndarray) -> Boxes:
    """Operands with a dynamic index may touch all of their allocation."""
    zero = np.zeros(len(row), np.int64)
    whole = (zero, partitions, zero, row, zero, row)
    return Boxes(*[np.where(indexed, value, box) for value, box in zip(whole, boxes, strict=True)])


def _extents(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> list[tuple[int, ...]]:
    """(element size, partitions, bytes between them, span, period, width) of a layout in HBM, then on-chip."""
    in_hbm = (size, 1, 0, *_runs(shape, strides, size))
    if not shape:
        return [in_hbm, (size, 1, 0, size, 0, size)]
    step = strides[0] * size if shape[0] > 1 else 0
    return [in_hbm, (size, shape[0], step, *_runs(shape[1:], strides[1:], size))]


def _runs(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> tuple[int, int, int]:
    """(span, period, width) in bytes: dense runs of `width` whose starts are multiples of `period` apart."""
    dims = sorted((abs(stride) * size, n) for stride, n in zip(strides, shape, strict=True) if n > 1 and stride)
    span = size + sum((n - 1) * step for step, n in dims)
    width = size
    while dims and dims[0][0] <= width:
        step, n = dims.pop(0)
        width += (n - 1) * step
    period = math.gcd(*[step for step, _ in dims]) if dims else 0
    return (span, period, width) if width < period else (span, 0, span)
