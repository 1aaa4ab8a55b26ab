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

    Args:
        operands: of the core's records.
        byte: where each allocation begins.
        start_ns, end_ns: per record, from its start to when its result is there.
    """
    first, last = _spans(operands.allocation, operands.record, start_ns, end_ns, len(operands.allocations))
    sbuf = np.flatnonzero(operands.memory == SBUF)
    psum = np.flatnonzero(operands.memory == PSUM)
    bank = hardware.psum_bank_bytes
    low, high = byte[psum] // bank, -(-(byte[psum] + operands.row_bytes[psum]) // bank)
    held = [_united(first[psum[b]], last[psum[b]]) for n in range(hardware.psum_banks) if len(b := _in(n, low, high))]
    opened, closed = np.concatenate(held, axis=1) if held else np.zeros((2, 0))
    return (
        _sum(first[sbuf], last[sbuf], operands.row_bytes[sbuf]),
        _sum(opened, closed, np.ones(len(opened), np.int64)),
    )


def _in(bank: int, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.flatnonzero((low <= bank) & (bank < high))


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


def _united(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Times (from, to) that at least one of the intervals covers."""
    order = np.argsort(first, kind="stable")
    first, reached = first[order], np.maximum.accumulate(last[order])
    fresh = np.concatenate([[True], first[1:] > reached[:-1]])
    ends = np.concatenate([np.flatnonzero(fresh)[1:] - 1, [len(first) - 1]])
    return np.stack([first[fresh], reached[ends]])


def _sum(first: np.ndarray, last: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """Steps of the sum of amounts, each in use from `first` to `last`."""
    times, at = np.unique(np.concatenate([first, last]), return_inverse=True)
    changes = np.bincount(at, np.concatenate([amount, -amount]), len(times)) if len(times) else np.zeros(0)
    return np.stack([times, np.cumsum(changes)], axis=1)
