"""Tensors that `NkiTensor(...)` binds to a storage, rather than `nl.ndarray` to a fresh one."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from nkisim.dtypes import DType
from nkisim.enums import MemoryRegion
from nkisim.errors import ArgumentError, ShapeError, WrongBufferError
from nkisim.storage import Allocation, Storage

if TYPE_CHECKING:
    from nkisim.tensor import NkiTensor

_NO_STORAGE = -1 << 31
"""Number of the allocation of a placeholder."""


def memory(buffer: Any) -> MemoryRegion:
    """The memory that a name stands for."""
    try:
        return MemoryRegion(buffer)
    except ValueError:
        raise WrongBufferError(
            f"NkiTensor: buffer {buffer!r}; accepted: {', '.join(m.value for m in MemoryRegion)}"
        ) from None


def placeholder(shape: tuple[int, ...], dtype: DType, buffer: MemoryRegion, name: Any) -> Storage:
    """What stands for the storage of a tensor that has none."""
    allocation = Allocation(_NO_STORAGE, str(name) or "placeholder", buffer, shape, dtype, 1, 0, None, None)
    return Storage(allocation, None, written=False)


def is_placeholder(storage: Storage) -> bool:
    """Whether no bytes are behind it."""
    return storage.allocation.number == _NO_STORAGE


def check(tensor: NkiTensor) -> None:
    """The storage is one, lies where it is said to, and the dense shape fills its partitions or fits its bytes."""
    shape, storage = tensor.shape, tensor.storage
    if not shape or min(shape) < 1 or (tensor.on_chip and len(shape) < 2):
        raise ShapeError(f"NkiTensor: shape {shape}; accepted: positive sizes, at least two of them on-chip")
    if not isinstance(storage, Storage):
        raise ArgumentError(f"NkiTensor: storage {storage!r}; accepted: the storage of a tensor, or None")
    if is_placeholder(storage):
        return
    allocation = storage.allocation
    if allocation.buffer is not tensor.buffer:
        raise WrongBufferError(
            f"NkiTensor: buffer {tensor.buffer!r} for {allocation.name}; accepted: {allocation.buffer!r}, where it lies"
        )
    size, rows = prod(shape) * tensor.dtype.itemsize, shape[0] if tensor.on_chip else 1
    fits = size == rows * allocation.row_bytes if tensor.on_chip else size <= allocation.row_bytes
    if not fits or rows > allocation.partitions:
        raise ShapeError(
            f"NkiTensor: {tensor.dtype}{list(shape)} on the storage of {allocation.name} {allocation.dtype}"
            f"{list(allocation.shape)}; accepted: whole partitions of it, or in HBM at most its bytes"
        )
