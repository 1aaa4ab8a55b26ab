"""Questions about the memory that a tensor lies in."""

from __future__ import annotations

from typing import Any

from nkisim.enums import MemoryRegion
from nkisim.errors import ArgumentError

_HBM = (MemoryRegion.private_hbm, MemoryRegion.shared_hbm)


def _region(call: str, buffer: Any) -> MemoryRegion:
    try:
        return MemoryRegion(buffer)
    except ValueError:
        names = ", ".join(f"nl.{region.value}" for region in MemoryRegion)
        raise ArgumentError(f"{call}: buffer {buffer!r}; accepted: {names}") from None


def is_hbm(buffer: Any) -> bool:
    """Whether it is HBM, shared or private."""
    return _region("nl.is_hbm", buffer) in _HBM


def is_on_chip(buffer: Any) -> bool:
    """Whether it is SBUF or PSUM."""
    return _region("nl.is_on_chip", buffer) not in _HBM


def is_psum(buffer: Any) -> bool:
    """Whether it is PSUM."""
    return _region("nl.is_psum", buffer) is MemoryRegion.psum


def is_sbuf(buffer: Any) -> bool:
    """Whether it is SBUF."""
    return _region("nl.is_sbuf", buffer) is MemoryRegion.sbuf
