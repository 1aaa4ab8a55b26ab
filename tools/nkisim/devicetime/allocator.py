"""Addresses of on-chip tensors: the kernel's own where it gave them, elsewhere as a compiler might assign them.

A tensor without an address lives from its first access to its last and takes the lowest free bytes at or after the
end of the tensor placed before it, starting over at the end of memory: the space that was given back longest ago,
roughly, so that reuse makes as few instructions wait as it can. The vendor's algorithm is not published.
"""

from __future__ import annotations

import numpy as np

from common.budget import SBUF_ALIGNMENT_BYTES
from common.hardware import Hardware
from devicetime.operands import HBM, PSUM, SBUF, Operands


def place(operands: Operands, hardware: Hardware) -> tuple[np.ndarray, np.ndarray]:
    """First partition and first byte of each allocation; zeros for HBM."""
    partition = np.zeros(len(operands.allocations), np.int64)
    byte = np.zeros(len(operands.allocations), np.int64)
    for number, allocation in enumerate(operands.allocations):
        if allocation.address is not None and operands.memory[number] != HBM:
            partition[number], byte[number] = allocation.address
    first, last = _lives(operands)
    granules = {
        SBUF: (hardware.sbuf_usable_bytes_per_partition, SBUF_ALIGNMENT_BYTES),
        PSUM: (hardware.psum_bytes_per_partition, hardware.psum_bank_bytes),
    }
    for memory, (capacity, granule) in granules.items():
        here = np.flatnonzero(operands.memory == memory)
        fixed = [n for n in here if operands.allocations[n].address is not None]
        automatic = [n for n in here if operands.allocations[n].address is None]
        if automatic:
            taken = [(int(byte[n]), int(byte[n]) + operands.allocations[n].row_bytes) for n in fixed]
            rows = np.array([operands.allocations[n].row_bytes for n in automatic])
            sizes = -(-rows // granule) * granule
            space = _Space(_holes(taken, capacity, granule))
            byte[automatic] = _assign(space, sizes, first[automatic], last[automatic])
    return partition, byte


def _lives(operands: Operands) -> tuple[np.ndarray, np.ndarray]:
    """Records of the first and last access of each allocation."""
    first = np.full(len(operands.allocations), np.iinfo(np.int64).max)
    last = np.full(len(operands.allocations), -1)
    np.minimum.at(first, operands.allocation, operands.record)
    np.maximum.at(last, operands.allocation, operands.record)
    return first, last


def _holes(taken: list[tuple[int, int]], capacity: int, granule: int) -> list[tuple[int, int]]:
    """What the addresses that the kernel gave leave, in whole granules."""
    holes, reached = [], 0
    for start, stop in sorted(taken):
        if start // granule * granule > reached:
            holes.append((reached, start // granule * granule))
        reached = max(reached, -(-stop // granule) * granule)
    if reached < capacity:
        holes.append((reached, capacity))
    return holes or [(0, capacity)]


class _Space:
    """Free intervals of a memory, in order of address, handed out in turn."""

    def __init__(self, free: list[tuple[int, int]]) -> None:
        self.free = free
        self._largest = max(free, key=lambda hole: hole[1] - hole[0])
        self._next = 0

    def take(self, size: int) -> int:
        """An address. Where no interval is large enough, one that others still use: reuse then waits for them."""
        for wrapped in (False, True):
            for n, (start, stop) in enumerate(self.free):
                at = start if wrapped else max(start, self._next)
                if stop - at >= size:
                    self.free[n : n + 1] = [hole for hole in ((start, at), (at + size, stop)) if hole[0] < hole[1]]
                    self._next = at + size
                    return at
        return self._largest[0]

    def give_back(self, start: int, stop: int) -> None:
        """Makes an interval free again."""
        merged = []
        for low, high in self.free:
            if high < start or low > stop:
                merged.append((low, high))
            else:
                start, stop = min(start, low), max(stop, high)
        merged.append((start, stop))
        self.free = sorted(merged)


def _assign(space: _Space, sizes: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    addresses = np.zeros(len(sizes), np.int64)
    ends = np.argsort(last, kind="stable")
    ended = 0
    for n in np.argsort(first, kind="stable"):
        while last[ends[ended]] < first[n]:
            gone = ends[ended]
            space.give_back(int(addresses[gone]), int(addresses[gone] + sizes[gone]))
            ended += 1
        addresses[n] = space.take(int(sizes[n]))
    return addresses
