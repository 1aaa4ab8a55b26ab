"""A plan's memory map as a table."""

from __future__ import annotations

from common.budget import MemoryMap
from tools.timeline_report.summary import Table


def table(memory: MemoryMap) -> Table:
    """Every allocation, where it lies and how long it stays."""
    rows = [
        (
            allocation.name,
            f"end of {allocation.scope}" if allocation.scope else "end",
            f"{allocation.address_bytes:,}",
            f"{allocation.bytes_per_partition:,}",
            f"{allocation.bytes_per_partition / memory.capacity_bytes:.1%}",
        )
        for allocation in memory.allocations
    ]
    peak = ("peak", "", "", f"{memory.peak_bytes:,}", f"{memory.peak_bytes / memory.capacity_bytes:.1%}")
    return Table(
        memory.memory,
        ("allocation", "until", "address", "bytes", "of usable"),
        (*rows, peak),
        f"Per partition; {memory.capacity_bytes:,} bytes are usable.",
        text_columns=2,
    )
