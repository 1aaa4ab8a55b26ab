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
    bounds, places = np.unique(np.concatenate([start, stop]), return_inverse=True)
    low, high = places[: len(start)], places[len(start) :]
    times = np.concatenate([first, last])
    order = np.argsort(times, kind="stable")
    used = _covered(bounds, low, high, order)
    times = times[order]
    ends = np.flatnonzero(np.append(np.diff(times) > 0, True))
    return np.stack([times[ends], used[ends].astype(float)], axis=1)


@compiled
def _covered(bounds: np.ndarray, low: np.ndarray, high: np.ndarray, order: np.ndarray) -> np.ndarray:
    """How much is covered after each change: number n < len(low) adds interval n, number n + len(low) takes it away.

    A tree over the pieces between `bounds`, whose node n has nodes 2n and 2n + 1 below it, keeps for each node how many
    intervals cover all of its pieces without covering all of its parent's, and how much of them is covered.
    """
    leaves = 1
    while leaves < len(bounds) - 1:
        leaves *= 2
    widths = np.zeros(2 * leaves, np.int64)
    widths[leaves : leaves + len(bounds) - 1] = np.diff(bounds)
    for node in range(leaves - 1, 0, -1):
        widths[node] = widths[2 * node] + widths[2 * node + 1]
    counts = np.zeros(2 * leaves, np.int64)
    lengths = np.zeros(2 * leaves, np.int64)
    used = np.empty(len(order), np.int64)
    for n in range(len(order)):
        interval, change = order[n], 1
        if interval >= len(low):
            interval, change = interval - len(low), -1
        begin, end = leaves + low[interval], leaves + high[interval]
        first, last = begin, end - 1
        while begin < end:
            if begin % 2:
                counts[begin] += change
                _sum_up(begin, counts, lengths, widths, leaves)
                begin += 1
            if end % 2:
                end -= 1
                counts[end] += change
                _sum_up(end, counts, lengths, widths, leaves)
            begin, end = begin // 2, end // 2
        while first > 1:
            first, last = first // 2, last // 2
            _sum_up(first, counts, lengths, widths, leaves)
            _sum_up(last, counts, lengths, widths, leaves)
        used[n] = lengths[1]
    return used


@compiled
def _sum_up(node: int, counts: np.ndarray, lengths: np.ndarray, widths: np.ndarray, leaves: int) -> None:
    """How much of a node's pieces is covered, from what is known of the nodes below it."""
    if counts[node]:
        lengths[node] = widths[node]
    else:
        lengths[node] = lengths[2 * node] + lengths[2 * node + 1] if node < leaves else 0
