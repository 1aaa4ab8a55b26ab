"""In which partitions SBUF tensors without an address may lie.

The compiler's allocator chooses the partition that a tensor begins on: 0, 32, 64 or 96 for up to 32 partitions, 0 or 64
for up to 64, else 0. So small tensors can lie side by side. What one instruction needs in the same lanes stays
together: the operands of a matrix product, data and scales of a quantisation, a tile and the index of its columns.
That a `tile_position` names rows of the array is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nkisim.enums import MemoryRegion
from nkisim.record import Record
from nkisim.storage import IndexedRegion, Region

QUADRANTS = 4
QUADRANT_PARTITIONS = 32
_SAME_LANES = ("nc_matmul", "nc_matmul_mx", "quantize_mx")


@dataclass(frozen=True)
class Placed:
    """A tensor without an address, from its first to its last access.

    Attributes:
        number: of its allocation.
        first, last: positions in the stream.
        partitions: how many it has.
        amount: bytes in each of them.
    """

    number: int
    first: int
    last: int
    partitions: int
    amount: int

    def quadrants(self, start: int) -> range:
        """Those that it occupies from one on."""
        return range(start, start - (-self.partitions // QUADRANT_PARTITIONS))

    @property
    def starts(self) -> range:
        """Quadrants that it may begin on."""
        taken = len(self.quadrants(0))
        return range(0, QUADRANTS, 1 if taken == 1 else 2 if taken == 2 else QUADRANTS)


def spread(tensors: Iterable[Placed], stream: list[Record], taken: list[int]) -> dict[int, int]:
    """The quadrant that each tensor begins on: in order of first access, where least is in use then.

    Args:
        tensors: of SBUF, without an address.
        stream: which tells what lies together.
        taken: bytes per partition that tensors with an address hold in each quadrant.
    """
    ordered = sorted(tensors, key=lambda tensor: tensor.first)
    together = _Together(stream, {tensor.number for tensor in ordered})
    allowed = {together.of(tensor.number): set(range(QUADRANTS)) for tensor in ordered}
    for tensor in ordered:
        allowed[together.of(tensor.number)] &= set(tensor.starts)
    allowed |= {group: {0} for group in together.fixed}
    starts: dict[int, int] = {}
    live: list[Placed] = []
    for tensor in ordered:
        live = [other for other in live if other.last >= tensor.first]
        used = list(taken)
        for other in live:
            for quadrant in other.quadrants(starts[other.number]):
                used[quadrant] += other.amount
        group = together.of(tensor.number)
        fullest = {start: max(used[q] for q in tensor.quadrants(start)) for start in sorted(allowed[group])}
        starts[tensor.number] = min(fullest, key=fullest.__getitem__)
        allowed[group] = {starts[tensor.number]}
        live.append(tensor)
    return starts


class _Together:
    """Groups of tensors that begin on one partition.

    Attributes:
        fixed: groups with a tensor that has an address: the simulator let them begin on partition 0.
    """

    def __init__(self, stream: list[Record], numbers: set[int]) -> None:
        self._above = {number: number for number in numbers}
        self.fixed: set[int] = set()
        for record in stream:
            operands = (*record.writes, *record.reads)
            if record.op in _SAME_LANES:
                self._join(operands)
            for region in operands:
                if type(region) is IndexedRegion and region.chosen_by is not None:
                    self._join((region, region.chosen_by))
        self.fixed = {self.of(number) for number in self.fixed}

    def of(self, number: int) -> int:
        """The tensor that stands for the group of this one."""
        while self._above[number] != number:
            number = self._above[number]
        return number

    def _join(self, operands: tuple[Region, ...]) -> None:
        found = {r.allocation.number: r.allocation for r in operands if r.allocation.buffer is MemoryRegion.sbuf}
        free = sorted(number for number, allocation in found.items() if allocation.address is None)
        for number in free[1:]:
            self._above[self.of(number)] = self.of(free[0])
        if free and len(free) < len(found):
            self.fixed.add(free[0])
