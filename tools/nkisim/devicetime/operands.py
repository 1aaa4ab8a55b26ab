"""The operands of a core's records as arrays: which bytes of which memory each one touches.

Views are many and their patterns few, so what needs Python happens once per pattern; the rest is numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from nkisim.enums import MemoryRegion
from nkisim.record import Record
from nkisim.storage import Allocation, IndexedRegion, Region

SBUF, PSUM, HBM = 0, 1, 2
"""Memories, as `Operands.memory` numbers them."""

_MEMORY = {
    MemoryRegion.sbuf: SBUF,
    MemoryRegion.psum: PSUM,
    MemoryRegion.private_hbm: HBM,
    MemoryRegion.shared_hbm: HBM,
}


@dataclass(frozen=True)
class Operands:
    """Parallel arrays, one entry per operand, in program order; of one record reads come before writes.

    Attributes:
        record: position of its record.
        is_write: bool.
        region: index into `regions`.
        allocation: index into `allocations`, in order of first access.
        pattern: number of its shape, strides, type and memory: operands of one pattern cost the same.
        first_partition, last_partition: within the allocation, the last one exclusive; 0 and 1 for HBM.
        first_byte, last_byte: of each partition, the last one exclusive.
        period_bytes, width_bytes: bytes touched are those with (byte - first) % period < width; period 0 means all.
        regions: every distinct view object.
        allocations, memory: what they lie in.
    """

    record: np.ndarray
    is_write: np.ndarray
    region: np.ndarray
    allocation: np.ndarray
    pattern: np.ndarray
    first_partition: np.ndarray
    last_partition: np.ndarray
    first_byte: np.ndarray
    last_byte: np.ndarray
    period_bytes: np.ndarray
    width_bytes: np.ndarray
    regions: list[Region]
    allocations: list[Allocation]
    memory: np.ndarray


def index_objects(objects: Sequence[Any]) -> tuple[np.ndarray, list[Any]]:
    """The number of each object among the distinct ones, by identity, and these in order of appearance."""
    ids = list(map(id, objects))
    distinct = dict(zip(ids, objects, strict=True))
    numbers = dict(zip(distinct, range(len(distinct)), strict=True))
    return np.fromiter(map(numbers.__getitem__, ids), np.int64, len(ids)), list(distinct.values())


def index_values(values: Iterable[Any]) -> tuple[np.ndarray, list[Any]]:
    """The number of each value among the distinct ones, by equality, and these in order of appearance."""
    values = list(values)
    numbers: dict[Any, int] = dict.fromkeys(values, 0)
    numbers.update(zip(numbers, range(len(numbers)), strict=True))
    return np.fromiter(map(numbers.__getitem__, values), np.int64, len(values)), list(numbers)


def gather(stream: Sequence[Record]) -> Operands:
    """The operands of a stream. An index tile counts as an operand that is read."""
    records = len(stream)
    reads = list(map(attrgetter("reads"), stream))
    writes = [r.reads if r.op == "core_barrier" else r.writes for r in stream]  # a barrier orders what comes before it
    objects = [*chain.from_iterable(reads), *chain.from_iterable(writes)]
    counts = [np.fromiter(map(len, each), np.int64, records) for each in (reads, writes)]
    record = np.concatenate([np.repeat(np.arange(records), each) for each in counts])
    is_write = np.repeat(np.array([False, True]), [int(each.sum()) for each in counts])
    record, is_write, objects = _with_index_tiles(record, is_write, objects)
    order = np.argsort(record, kind="stable")
    region, regions = index_objects(objects)
    return _located(record[order], is_write[order], region[order], regions)


def _with_index_tiles(
    record: np.ndarray, is_write: np.ndarray, objects: list[Region]
) -> tuple[np.ndarray, np.ndarray, list[Region]]:
    indexed = [
        (int(record[n]), r.chosen_by)
        for n, r in enumerate(objects)
        if type(r) is IndexedRegion and r.chosen_by is not None
    ]
    if not indexed:
        return record, is_write, objects
    owners, tiles = zip(*indexed, strict=True)
    return (
        np.concatenate([np.array(owners), record]),
        np.concatenate([np.zeros(len(tiles), bool), is_write]),
        [*tiles, *objects],
    )


def _located(record: np.ndarray, is_write: np.ndarray, region: np.ndarray, regions: list[Region]) -> Operands:
    if not regions:
        none = np.zeros(0, np.int64)
        return Operands(none, none > 0, *[none] * 9, [], [], none)
    allocation_of, dtypes, offsets, shapes, strides = zip(*regions, strict=True)
    allocation, allocations = index_objects(allocation_of)
    layout, layouts = index_values(zip(shapes, strides, dtypes, map(type, regions), strict=True))
    memory = np.array([_MEMORY[a.buffer] for a in allocations])
    row_bytes = np.array([a.row_bytes for a in allocations])
    partitions = np.array([a.partitions for a in allocations])
    on_chip = memory[allocation] != HBM
    shape_of = np.array([_extents(*each) for each in layouts])
    shape_in_hbm = np.array([_flat_extents(*each) for each in layouts])
    count, partition_bytes, span, period, width, size = shape_of[layout].T
    flat_span, flat_period, flat_width = shape_in_hbm[layout].T
    start = np.array(offsets) * size
    row = row_bytes[allocation]
    first_partition = np.where(on_chip, start // row, 0)
    first_byte = np.where(on_chip, start % row, start)
    steps = np.where(count > 1, partition_bytes // row, 0)
    boxes = [
        first_partition,
        np.where(on_chip, first_partition + (count - 1) * steps + 1, 1),
        first_byte,
        first_byte + np.where(on_chip, span, flat_span),
        np.where(on_chip, period, flat_period),
        np.where(on_chip, width, flat_width),
    ]
    anywhere = np.fromiter((type(r) is IndexedRegion for r in regions), bool, len(regions))
    if anywhere.any():
        whole = [0, partitions[allocation], 0, row, 0, 0]
        boxes = [np.where(anywhere, value, box) for box, value in zip(boxes, whole, strict=True)]
    pattern = np.unique(layout * 4 + memory[allocation], return_inverse=True)[1]
    per_region = [allocation, pattern, *boxes]
    return Operands(record, is_write, region, *[each[region] for each in per_region], regions, allocations, memory)


def _extents(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, _: type) -> tuple[int, ...]:
    """(partitions, bytes between them, span, period and width in a partition, element size) of an on-chip view."""
    size = dtype.itemsize
    if not shape:
        return (1, 0, size, 0, size, size)
    return (shape[0], strides[0] * size, *_runs(shape[1:], strides[1:], size), size)


def _flat_extents(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, _: type) -> tuple[int, int, int]:
    """(span, period, width) in bytes of a view of HBM."""
    return _runs(shape, strides, dtype.itemsize)


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
