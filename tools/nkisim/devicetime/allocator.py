"""Addresses of on-chip tensors: the kernel's own where it gave them, elsewhere as a compiler might assign them.

A tensor without an address lives from its first access to its last and takes the lowest free bytes at or after the
end of the tensor placed before it, starting over at the end of memory: the space that was given back longest ago,
roughly, so that reuse makes as few instructions wait as it can. The vendor's algorithm is not published.
"""

from __future__ import annotations

import numpy as np

from common.budget import SBUF_ALIGNMENT_BYTES
from common.hardware import Hardware
from devicetime.compiled import compiled
from devicetime.operands import PSUM, SBUF, Operands


def place(operands: Operands, hardware: Hardware) -> tuple[np.ndarray, np.ndarray]:
    """First partition and first byte of each allocation; zeros for HBM."""
    given = [n for n, address in enumerate(operands.addresses) if address is not None]
    partition = np.zeros(len(operands.memory), np.int64)
    byte = np.zeros(len(operands.memory), np.int64)
    for n in given:
        partition[n], byte[n] = operands.addresses[n] or (0, 0)
    automatic = np.ones(len(operands.memory), bool)
    automatic[given] = False
    first, last = lives(operands.allocation, operands.record, len(operands.memory))
    granules = {
        SBUF: (hardware.sbuf_usable_bytes_per_partition, SBUF_ALIGNMENT_BYTES),
        PSUM: (hardware.psum_bytes_per_partition, hardware.psum_bank_bytes),
    }
    for memory, (capacity, granule) in granules.items():
        here = np.flatnonzero(automatic & (operands.memory == memory))
        if len(here):
            fixed = np.flatnonzero(~automatic & (operands.memory == memory))
            holes = _holes(byte[fixed], byte[fixed] + operands.row_bytes[fixed], capacity, granule)
            sizes = -(-operands.row_bytes[here] // granule) * granule
            starts = np.argsort(first[here], kind="stable")
            ends = np.argsort(last[here], kind="stable")
            byte[here] = _assign(holes, sizes, first[here], last[here], starts, ends)
    return partition, byte


@compiled
def lives(allocation: np.ndarray, record: np.ndarray, allocations: int) -> tuple[np.ndarray, np.ndarray]:
    """Records of the first and last access of each allocation; accesses are in program order."""
    first = np.full(allocations, -1, np.int64)
    last = np.full(allocations, -1, np.int64)
    for n in range(len(allocation)):
        if first[allocation[n]] < 0:
            first[allocation[n]] = record[n]
        last[allocation[n]] = record[n]
    return first, last


def _holes(starts: np.ndarray, stops: np.ndarray, capacity: int, granule: int) -> np.ndarray:
    """What the addresses that the kernel gave leave, in whole granules; all of it where they leave nothing."""
    holes, reached = [], 0
    for start, stop in sorted(zip(starts.tolist(), stops.tolist(), strict=True)):
        if start // granule * granule > reached:
            holes.append((reached, start // granule * granule))
        reached = max(reached, -(-stop // granule) * granule)
    if reached < capacity:
        holes.append((reached, capacity))
    return np.array(holes or [(0, capacity)], np.int64)


@compiled
def _assign(
    holes: np.ndarray, sizes: np.ndarray, first: np.ndarray, last: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """An address for each tensor. One for which there is no room shares the largest hole: reuse then makes it wait."""
    addresses = np.zeros(len(sizes), np.int64)
    owns = np.zeros(len(sizes), np.bool_)
    free = np.zeros((len(sizes) + len(holes) + 1, 2), np.int64)
    free[: len(holes)] = holes
    count = len(holes)
    largest = 0
    for n in range(1, count):
        if holes[n, 1] - holes[n, 0] > holes[largest, 1] - holes[largest, 0]:
            largest = n
    cursor = 0
    ended = 0
    for tensor in starts:
        while last[ends[ended]] < first[tensor]:
            gone = ends[ended]
            if owns[gone]:
                count = _give_back(free, count, addresses[gone], addresses[gone] + sizes[gone])
            ended += 1
        at = _find(free, count, cursor, sizes[tensor])
        if at < 0:
            at = _find(free, count, 0, sizes[tensor])
        if at < 0:
            addresses[tensor] = holes[largest, 0]
            continue
        addresses[tensor] = at
        owns[tensor] = True
        cursor = at + sizes[tensor]
        count = _take(free, count, at, cursor)
    return addresses


@compiled
def _find(free: np.ndarray, count: int, cursor: int, size: int) -> int:
    """The lowest address from the cursor on with `size` free bytes; -1 if there is none."""
    for n in range(count):
        at = max(free[n, 0], cursor)
        if free[n, 1] - at >= size:
            return at
    return -1


@compiled
def _take(free: np.ndarray, count: int, start: int, stop: int) -> int:
    """Cuts an interval out of the hole that contains it; returns how many holes there are."""
    n = 0
    while free[n, 1] < stop:
        n += 1
    low, high = free[n, 0], free[n, 1]
    if low < start and stop < high:
        for m in range(count, n, -1):
            free[m, 0], free[m, 1] = free[m - 1, 0], free[m - 1, 1]
        free[n, 1] = start
        free[n + 1, 0] = stop
        return count + 1
    if low < start:
        free[n, 1] = start
        return count
    if stop < high:
        free[n, 0] = stop
        return count
    for m in range(n, count - 1):
        free[m, 0], free[m, 1] = free[m + 1, 0], free[m + 1, 1]
    return count - 1


@compiled
def _give_back(free: np.ndarray, count: int, start: int, stop: int) -> int:
    """Makes an interval free again, joined with its neighbours; returns how many holes there are."""
    n = 0
    while n < count and free[n, 1] < start:
        n += 1
    before = n < count and free[n, 1] == start
    after = n + before < count and free[n + before, 0] == stop
    if before and after:
        free[n, 1] = free[n + 1, 1]
        for m in range(n + 1, count - 1):
            free[m, 0], free[m, 1] = free[m + 1, 0], free[m + 1, 1]
        return count - 1
    if before:
        free[n, 1] = stop
        return count
    if after:
        free[n, 0] = start
        return count
    for m in range(count, n, -1):
        free[m, 0], free[m, 1] = free[m - 1, 0], free[m - 1, 1]
    free[n, 0], free[n, 1] = start, stop
    return count + 1
