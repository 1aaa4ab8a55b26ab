"""SBUF and PSUM over the time of a run: what is live together, and whether it fits.

Tensors without an address are live from their first write to their last access, as a compiler sees them; tensors
with an address hold it for the whole run, and two of them may share bytes only while not both are live. SBUF is
counted in bytes per partition, PSUM in whole banks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from common.hardware import Hardware
from nkisim.enums import MemoryRegion
from nkisim.errors import CapacityError, OverlapError
from nkisim.record import Record
from nkisim.storage import Allocation, IndexedRegion

SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum


@dataclass(frozen=True)
class MemoryReport:
    """Measured use of a core's memories.

    Attributes:
        sbuf_peak_bytes: per partition.
        psum_peak_banks: of the core's banks.
    """

    sbuf_peak_bytes: int
    psum_peak_banks: int


@dataclass(frozen=True)
class _Life:
    allocation: Allocation
    first: int
    last: int
    amount: int


def banks(allocation: Allocation, hardware: Hardware) -> int:
    """PSUM banks that a tensor occupies; no two tensors share one."""
    return -(-allocation.row_bytes // hardware.psum_bank_bytes)


def measure(stream: list[Record], hardware: Hardware) -> MemoryReport:
    """Checks a finished run and reports its peaks.

    Raises:
        CapacityError: more is live at once than there is; the message lists what is live at the peak.
        OverlapError: two tensors at overlapping addresses are live at once.
    """
    lives = _lives(stream)
    sbuf = _peak(_select(lives, SBUF, lambda a: a.row_bytes), "SBUF", "bytes per partition",
                 hardware.sbuf_usable_bytes_per_partition, 1)  # fmt: skip
    psum = _peak(_select(lives, PSUM, lambda a: banks(a, hardware)), "PSUM", "banks",
                 hardware.psum_banks, hardware.psum_bank_bytes)  # fmt: skip
    return MemoryReport(sbuf, psum)


def _lives(stream: list[Record]) -> dict[int, tuple[Allocation, int, int]]:
    lives: dict[int, tuple[Allocation, int, int]] = {}
    for position, record in enumerate(stream):
        touched = [*record.writes, *record.reads]
        for region in touched:
            if type(region) is IndexedRegion and region.chosen_by is not None:
                touched.append(region.chosen_by)
            allocation = region.allocation
            if allocation.buffer is SBUF or allocation.buffer is PSUM:
                known = lives.get(allocation.number)
                lives[allocation.number] = (allocation, known[1] if known else position, position)
    return lives


def _select(
    lives: dict[int, tuple[Allocation, int, int]], buffer: MemoryRegion, amount: Callable[[Allocation], int]
) -> list[_Life]:
    return [_Life(a, first, last, amount(a)) for a, first, last in lives.values() if a.buffer is buffer]


def _peak(lives: list[_Life], memory: str, unit: str, limit: int, granule_bytes: int) -> int:
    placed = [life for life in lives if life.allocation.address is not None]
    _check_overlaps(placed, memory)
    footprint = _footprint(placed, granule_bytes)
    free = [life for life in lives if life.allocation.address is None]
    peak, live = _largest_together(free)
    total = footprint + peak
    if total > limit:
        raise CapacityError(_refusal(memory, unit, limit, total, footprint, live))
    return total


def _row_span(allocation: Allocation) -> tuple[int, int]:
    """First byte in the partition and the one after the last, of a tensor with an address."""
    start = allocation.address[1] if allocation.address else 0
    return start, start + allocation.row_bytes


def _footprint(placed: Iterable[_Life], granule_bytes: int) -> int:
    """Granules (bytes of SBUF, banks of PSUM) that tensors with an address touch."""
    total = reached = 0
    for start, stop in sorted(_row_span(life.allocation) for life in placed):
        first, end = start // granule_bytes, -(-stop // granule_bytes)
        total += max(0, end - max(first, reached))
        reached = max(reached, end)
    return total


def _check_overlaps(placed: list[_Life], memory: str) -> None:
    active: list[_Life] = []
    for life in sorted(placed, key=lambda item: item.first):
        active = [other for other in active if other.last >= life.first]
        start, stop = _row_span(life.allocation)
        low, high = _partitions(life.allocation)
        for other in active:
            other_start, other_stop = _row_span(other.allocation)
            other_low, other_high = _partitions(other.allocation)
            if start < other_stop and other_start < stop and low < other_high and other_low < high:
                raise OverlapError(
                    f"{memory}: {_describe(other.allocation)} and {_describe(life.allocation)} overlap, "
                    f"and the first is still used after the second is written"
                )
        active.append(life)


def _partitions(allocation: Allocation) -> tuple[int, int]:
    first = allocation.address[0] if allocation.address else 0
    return first, first + allocation.partitions


def _largest_together(lives: list[_Life]) -> tuple[int, list[_Life]]:
    """The largest sum of amounts live at one instruction, and who they are."""
    events = sorted(
        [(life.first, 1, life.amount) for life in lives] + [(life.last + 1, 0, -life.amount) for life in lives]
    )
    peak = now = when = 0
    for position, _, change in events:
        now += change
        if now > peak:
            peak, when = now, position
    return peak, [life for life in lives if life.first <= when <= life.last]


def _refusal(memory: str, unit: str, limit: int, total: int, footprint: int, live: list[_Life]) -> str:
    largest = sorted(live, key=lambda life: -life.amount)
    lines = [f"{memory}: {total} {unit} live at once; accepted: at most {limit}. Live at the peak:"]
    if footprint:
        lines.append(f"  {footprint:>8} at fixed addresses")
    lines += [f"  {life.amount:>8} {_describe(life.allocation)}" for life in largest]
    return "\n".join(lines)


def _describe(allocation: Allocation) -> str:
    place = f" at address {allocation.address}" if allocation.address else ""
    created = f", created at {allocation.site}" if allocation.site else ""
    return f"{allocation.name} ({allocation.dtype}{list(allocation.shape)}){place}{created}"
