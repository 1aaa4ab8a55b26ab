"""One record per instruction, and what can be read off a stream of them.

Numerics, capacity, hazards, device time and the trace viewer read the same stream; a timing-only run writes the
same one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import CodeType
from typing import Any, NamedTuple

from nkisim.dtypes import DType
from nkisim.enums import MemoryRegion, engine
from nkisim.source import Site
from nkisim.storage import IndexedRegion, Region


class Record(NamedTuple):
    """One instruction as issued.

    Attributes:
        op: the call, for example "nc_matmul".
        engine: the engine that runs it; `engine.dma` for DMA.
        writes, reads: operands as memory regions.
        code, instruction: where the kernel made the call; see `site`.
        name: the kernel's name for it, if it gave one.
        detail: what else distinguishes it: operators, matmul mode, collective.
    """

    op: str
    engine: engine
    writes: tuple[Region, ...]
    reads: tuple[Region, ...]
    code: CodeType
    instruction: int
    name: str | None = None
    detail: Any = None

    @property
    def site(self) -> Site:
        """The kernel's line."""
        return Site(self.code, self.instruction)

    @property
    def dtype(self) -> DType:
        """Type of the first result (of the first operand where nothing is written)."""
        return (self.writes or self.reads)[0].dtype

    @property
    def elements(self) -> int:
        """Elements of the first result."""
        return (self.writes or self.reads)[0].elements

    @property
    def size_bytes(self) -> int:
        """Bytes of the first result."""
        return (self.writes or self.reads)[0].size_bytes


Access = tuple[Region, int, int]
"""A region, and the positions in a stream of its first and last use."""


def accesses(stream: Iterable[Record]) -> list[Access]:
    """Every region of a stream once, also the tiles of indices that choose."""
    regions: list[Region] = []
    positions: list[int] = []
    for position, record in enumerate(stream):
        operands = record.writes + record.reads
        regions += operands
        positions += [position] * len(operands)
    keys = list(map(id, regions))
    last = dict(zip(keys, positions, strict=True))
    first = dict(zip(reversed(keys), reversed(positions), strict=True))
    found = [(region, first[key], last[key]) for key, region in dict(zip(keys, regions, strict=True)).items()]
    for region, start, stop in found[:]:
        if type(region) is IndexedRegion and region.chosen_by is not None:
            found.append((region.chosen_by, start, stop))
    return found


_ON_CHIP_ENGINES = (engine.tensor, engine.vector, engine.scalar)
"""Have no path to HBM."""
_BARRIER = "core_barrier"
"""Names a tensor and moves nothing."""


class HbmTraffic(NamedTuple):
    """Bytes that DMAs read from and wrote to one HBM tensor."""

    read_bytes: int
    written_bytes: int


def is_hbm(region: Region) -> bool:
    """Whether the region lies in HBM."""
    buffer = region.allocation.buffer
    return buffer is MemoryRegion.private_hbm or buffer is MemoryRegion.shared_hbm


def count_by_engine(stream: Iterable[Record]) -> dict[str, Counter[str]]:
    """Instructions per engine name and call."""
    counts: dict[str, Counter[str]] = {}
    for (on, op), count in Counter((record.engine, record.op) for record in stream).items():
        counts.setdefault(on.name, Counter())[op] = count
    return counts


def hbm_traffic(stream: Iterable[Record]) -> dict[str, HbmTraffic]:
    """Bytes moved per HBM tensor, by the tensor's name (an argument's name for arguments)."""
    read: Counter[str] = Counter()
    written: Counter[str] = Counter()
    for record in stream:
        if record.engine in _ON_CHIP_ENGINES or record.op == _BARRIER:
            continue
        for region in record.reads:
            if is_hbm(region):
                read[region.allocation.name] += region.size_bytes
        for region in record.writes:
            if is_hbm(region):
                written[region.allocation.name] += region.size_bytes
    return {name: HbmTraffic(read[name], written[name]) for name in sorted(read | written)}
