"""SBUF and PSUM over the time of a run: what is live together, and whether it fits.

Tensors without an address are live from their first write to their last access, as a compiler sees them; tensors
with an address hold it for the whole run, and two of them may share bytes only while not both are live. SBUF is
counted in bytes per partition, PSUM in whole banks. Tensors of SBUF without an address begin on partition 0; where
they do not all fit there, those of up to 64 partitions are spread over the quadrants, as `placement` says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from common.budget import SBUF_ALIGNMENT_BYTES
from common.hardware import Hardware
from common.tiling import round_up
from nkisim import placement
from nkisim.enums import MemoryRegion
from nkisim.errors import CapacityError, OverlapError
from nkisim.placement import QUADRANT_PARTITIONS, Placed
from nkisim.record import Access, Record
from nkisim.storage import Allocation

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
    """An allocation from its first to its last access; `amount` bytes in each partition from quadrant `start` on."""

    allocation: Allocation
    first: int
    last: int
    amount: int
    start: int = 0

    @property
    def placed(self) -> Placed:
        return Placed(self.allocation.number, self.first, self.last, self.allocation.partitions, self.amount)

    def occupies(self, quadrant: int) -> bool:
        return quadrant in self.placed.quadrants(self.start)


def measure(stream: list[Record], touched: Iterable[Access], hardware: Hardware) -> MemoryReport:
    """Checks a finished run and reports its peaks.

    Args:
        stream: its records.
        touched: their accesses.

    Raises:
        CapacityError: more is live at once than there is; the message lists what is live at the peak.
        OverlapError: two tensors at overlapping addresses are live at once.
    """
    lives = _lives(touched)
    sbuf = _peak(lives, _sbuf(hardware), stream)
    psum = _peak(lives, _psum(hardware), stream)
    return MemoryReport(sbuf, psum // hardware.psum_bank_bytes)


@dataclass(frozen=True)
class _Memory:
    """How a memory is counted: in granules, below a limit; messages count in units."""

    name: str
    region: MemoryRegion
    limit_bytes: int
    granule_bytes: int
    unit: str
    unit_bytes: int


def _sbuf(hardware: Hardware) -> _Memory:
    """SBUF is given out in the ledger's alignment."""
    return _Memory(
        "SBUF", SBUF, hardware.sbuf_usable_bytes_per_partition, SBUF_ALIGNMENT_BYTES, "bytes per partition", 1
    )


def _psum(hardware: Hardware) -> _Memory:
    """PSUM is given out in banks; no two tensors without an address share one."""
    bank = hardware.psum_bank_bytes
    return _Memory("PSUM", PSUM, hardware.psum_bytes_per_partition, bank, "banks", bank)


Lives = dict[int, tuple[Allocation, int, int]]
"""On-chip allocations by number, with the positions of their first and last access."""


def _lives(touched: Iterable[Access]) -> Lives:
    lives: Lives = {}
    for region, first, last in touched:
        allocation = region.allocation
        if allocation.buffer is SBUF or allocation.buffer is PSUM:
            _, known_first, known_last = lives.get(allocation.number, (allocation, first, last))
            lives[allocation.number] = (allocation, min(first, known_first), max(last, known_last))
    return lives


def _peak(lives: Lives, memory: _Memory, stream: list[Record]) -> int:
    """Most bytes in use at once, in whole granules."""
    here = [
        _Life(allocation, first, last, round_up(allocation.row_bytes, memory.granule_bytes))
        for allocation, first, last in lives.values()
        if allocation.buffer is memory.region
    ]
    placed = [life for life in here if life.allocation.address is not None]
    free = [life for life in here if life.allocation.address is None]
    _check_overlaps(placed, memory)
    footprint = _footprint(placed, memory.granule_bytes)
    peak, live = _largest_together(free)
    if footprint + peak <= memory.limit_bytes:
        return footprint + peak
    if memory.region is PSUM:
        raise CapacityError(_refusal(memory, footprint, peak, live))
    return _spread_peak(placed, free, memory, stream)


def _spread_peak(placed: list[_Life], free: list[_Life], memory: _Memory, stream: list[Record]) -> int:
    """Most bytes in use at once in a partition of any quadrant, with tensors without an address side by side."""
    quadrants = range(placement.QUADRANTS)
    taken = [_footprint(filter(partial(_reaches, quadrant), placed), memory.granule_bytes) for quadrant in quadrants]
    starts = placement.spread([life.placed for life in free], stream, taken)
    spread = [replace(life, start=starts[life.allocation.number]) for life in free]
    peaks = [_largest_together([life for life in spread if life.occupies(quadrant)]) for quadrant in quadrants]
    fullest = max(quadrants, key=lambda quadrant: taken[quadrant] + peaks[quadrant][0])
    footprint, (peak, live) = taken[fullest], peaks[fullest]
    if footprint + peak > memory.limit_bytes:
        raise CapacityError(_refusal(memory, footprint, peak, live))
    return footprint + peak


def _reaches(quadrant: int, life: _Life) -> bool:
    """Whether a tensor with an address has partitions in the quadrant."""
    low, high = _partitions(life.allocation)
    return low < (quadrant + 1) * QUADRANT_PARTITIONS and quadrant * QUADRANT_PARTITIONS < high


def _row_span(allocation: Allocation) -> tuple[int, int]:
    """First byte in the partition and the one after the last, of a tensor with an address."""
    start = allocation.address[1] if allocation.address else 0
    return start, start + allocation.row_bytes


def _footprint(placed: Iterable[_Life], granule_bytes: int) -> int:
    """Bytes, in whole granules, that tensors with an address touch."""
    total = reached = 0
    for start, stop in sorted(_row_span(life.allocation) for life in placed):
        first, end = start // granule_bytes, -(-stop // granule_bytes)
        total += max(0, end - max(first, reached))
        reached = max(reached, end)
    return total * granule_bytes


def _check_overlaps(placed: list[_Life], memory: _Memory) -> None:
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
                    f"{memory.name}: {_describe(other.allocation)} and {_describe(life.allocation)} overlap, "
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


def _refusal(memory: _Memory, footprint: int, peak: int, live: list[_Life]) -> str:
    unit_bytes = memory.unit_bytes
    lines = [
        f"{memory.name}: {(footprint + peak) // unit_bytes} {memory.unit} live at once; "
        f"accepted: at most {memory.limit_bytes // unit_bytes}. Live at the peak:"
    ]
    if footprint:
        lines.append(f"  {footprint // unit_bytes:>8} at fixed addresses")
    for life in sorted(live, key=lambda life: -life.amount):
        lines.append(f"  {life.amount // unit_bytes:>8} {_describe(life.allocation)}")
    return "\n".join(lines)


def _describe(allocation: Allocation) -> str:
    place = f" at address {allocation.address}" if allocation.address else ""
    created = f", created at {allocation.site}" if allocation.site else ""
    return f"{allocation.name} ({allocation.dtype}{list(allocation.shape)}){place}{created}"
