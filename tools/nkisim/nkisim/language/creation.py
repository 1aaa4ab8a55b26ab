"""Tensor creation and the launch grid."""

from __future__ import annotations

from typing import Any

from nkisim import machine, memory
from nkisim.enums import MemoryRegion
from nkisim.errors import ArgumentError
from nkisim.tensor import NkiTensor
from nkisim.views import DynamicSlice


def ndarray(
    shape: Any,
    dtype: Any,
    buffer: MemoryRegion | str = MemoryRegion.sbuf,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> NkiTensor:
    """A new tensor whose elements are unwritten.

    Args:
        shape: sizes; in SBUF and PSUM the first is the partition dimension (up to 128).
        dtype: a type of `nki.language`.
        buffer: `nl.sbuf`, `nl.psum`, `nl.hbm` (private) or `nl.shared_hbm`.
        name: shown in errors, records and reports.
        address: on-chip, (first partition, first byte in the partition).

    Raises:
        ShapeError, DtypeError, WrongBufferError, PartitionError, CapacityError, TargetError.
    """
    return memory.create("nl.ndarray", shape, dtype, buffer, name, address)


def ds(start: Any, size: int) -> DynamicSlice:
    """`size` elements from `start` on, as an index."""
    return DynamicSlice(start, size)


def program_id(axis: int = 0) -> int:
    """Number of the core that runs, along the launch grid's one axis."""
    _check_axis("nl.program_id", axis)
    return machine.core("nl.program_id").program_id


def num_programs(axes: int = 0) -> int:
    """Number of cores that run the kernel."""
    _check_axis("nl.num_programs", axes)
    return machine.core("nl.num_programs").launch.num_programs


def program_ndim() -> int:
    """Axes of the launch grid: 1 where it was given, 0 where not."""
    return 1 if machine.core("nl.program_ndim").launch.num_programs > 1 else 0


def _check_axis(call: str, axis: Any) -> None:
    if axis is not None and not (isinstance(axis, int) and axis == 0):
        raise ArgumentError(f"{call}: axis {axis!r}; accepted: 0, the launch grid has one axis")
