"""How much of SBUF and PSUM is in use at each time of a schedule."""

from __future__ import annotations

import numpy as np

from common.hardware import Hardware
from devicetime.compiled import compiled
from devicetime.operands import PSUM, SBUF, Operands


def steps(
    operands: Operands, byte: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray, hardware: Hardware
) -> tuple[np.ndarray, np.ndarray]:
    """SBUF bytes per partition and PSUM banks of a core as (ns, used from then on) steps.

    In use is what lies in a tensor between its first and its last access; bytes that several tensors share count once.

    Args:
        operands: of the core's records.
        byte: where each allocation begins.
        start_ns, end_ns: per record, from its start to when its result is there.
    """
    first, last = _spans(operands.allocation, operands.record, start_ns, end_ns, len(operands.allocations))
    sbuf = np.flatnonzero(operands.memory == SBUF)
    psum = np.flatnonzero(operands.memory == PSUM)
    bank = hardware.psum_bank_bytes
    stop = byte + operands.row_bytes
    return (
        _in_use(first[sbuf], last[sbuf], byte[sbuf], stop[sbuf]),
        _in_use(first[psum], last[psum], byte[psum] // bank, -(-stop[psum] // bank)),
    )


@compiled
def _spans(
    allocation: np.ndarray, record: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray, allocations: int
) -> tuple[np.ndarray, np.ndarray]:
    """When each allocation is first and last accessed."""
    first = np.full(allocations, 1e300)
    last = np.zeros(allocations)
    for n in range(len(allocation)):
        first[allocation[n]] = min(first[allocation[n]], start_ns[record[n]])
        last[allocation[n]] = max(last[allocation[n]], end_ns[record[n]])
    return first, last


def _in_use(first: np.ndarray, last: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """Steps of how much of a memory intervals cover, each there from time `first` to `last`."""
    if not len(first):
        return np.zeros((0, 2))
    edge = np.zeros(stop.max() + 1, np.int64)
    edge[start] = edge[stop] = 1
    piece = np.cumsum(edge) - 1
    times = np.concatenate([first, last])
    order = np.argsort(times, kind="stable")
    used = _covered(np.diff(np.flatnonzero(edge)), piece[start], piece[stop], order)
    times = times[order]
    ends = np.flatnonzero(np.append(np.diff(times) > 0, True))
    return np.stack([times[ends], used[ends].astype(float)], axis=1)


@compiled
def _covered(widths: np.ndarray, low: np.ndarray, high: np.ndarray, order: np.ndarray) -> np.ndarray:
    """How much is covered after each change: number n < len(low) adds interval n, number n + len(low) takes it away.

    Args:
        widths: of the pieces that the ends of all intervals divide the memory into.
        low, high: first and last piece of each interval, the last one exclusive.
        order: of the changes.
    """
    counts = np.zeros(len(widths), np.int64)
    used = np.empty(len(order), np.int64)
    total = 0
    for n in range(len(order)):
        opens = order[n] < len(low)
        interval = order[n] if opens else order[n] - len(low)
        for piece in range(low[interval], high[interval]):
            if opens:
                total += widths[piece] if counts[piece] == 0 else 0
                counts[piece] += 1
            else:
                counts[piece] -= 1
                total -= widths[piece] if counts[piece] == 0 else 0
        used[n] = total
    return used
