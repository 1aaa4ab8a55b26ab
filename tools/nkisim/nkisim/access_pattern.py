"""`NkiTensor.ap`: views given as strides and counts over the whole storage."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

from nkisim.dtypes import DType, as_dtype
from nkisim.errors import ArgumentError, ViewError
from nkisim.views import Ints, View

if TYPE_CHECKING:
    from nkisim.tensor import NkiTensor


class Pattern(NamedTuple):
    """An access pattern, and how far it may move within its storage.

    Attributes:
        view: what it shows.
        dtype: in which elements it counts.
        room: elements by which its offset may grow before it leaves the storage (on-chip, the partition).
        fault: how it leaves the storage; None if it lies within.
    """

    view: View
    dtype: DType
    room: int
    fault: str | None


def of(tensor: NkiTensor, pattern: Any, offset: Any, dtype: Any, *, gathers: bool) -> Pattern:
    """The view that `[[stride, count], ...]` describes.

    Args:
        offset: first element, counted in `dtype` from the start of the storage; None keeps the tensor's own.
        gathers: the first stride gives way to an index, so that only the first row has to lie within the storage.

    Raises:
        ArgumentError: no such list; ViewError: it skips partitions.
    """
    new = as_dtype(dtype) if dtype is not None else tensor.dtype
    strides, shape = _pairs(pattern)
    start = _start(tensor, offset, new)
    if any(n < 1 for n in shape) or any(s < 0 for s in strides) or start < 0:
        raise ViewError(f"ap: pattern {pattern}, offset {start}; accepted: counts from 1, strides and offset from 0")
    allocation = tensor.storage.allocation
    row = allocation.row_bytes // new.itemsize
    if tensor.on_chip and shape[0] > 1 and strides[0] != row:
        raise ViewError(f"ap: partition stride {strides[0]} of {tensor.name}; accepted: {row}, the row's elements")
    reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    free = sum(reach[1:])
    total = allocation.partitions * row
    room = total - 1 - start - free - (0 if gathers else reach[0])
    fault = f"reaches element {total - 1 - room}; accepted: below {total}" if room < 0 else None
    if tensor.on_chip:
        room = row - 1 - start % row - free
        if room < 0:
            fault = f"runs past a partition of {row} elements"
    if fault is not None:
        fault = f"ap: pattern {pattern} at offset {start} of {tensor.name} {fault}"
    return Pattern(View(shape, strides, start), new, room, fault)


def _pairs(pattern: Any) -> tuple[Ints, Ints]:
    try:
        pairs = [(operator.index(stride), operator.index(count)) for stride, count in pattern]
    except (TypeError, ValueError):
        raise ArgumentError(f"ap: pattern {pattern!r}; accepted: [[stride, count], ...] in integers") from None
    if not pairs:
        raise ArgumentError("ap: pattern is empty; accepted: at least one [stride, count]")
    strides, shape = zip(*pairs, strict=True)
    return strides, shape


def _start(tensor: NkiTensor, offset: Any, dtype: DType) -> int:
    own_bytes = tensor.offset * tensor.dtype.itemsize
    if offset is None:
        if own_bytes % dtype.itemsize:
            raise ViewError(f"ap: byte {own_bytes}, where {tensor.name}'s view starts, is not a multiple of {dtype}")
        return own_bytes // dtype.itemsize
    if own_bytes:
        raise ViewError(
            f"ap: offset {offset} on a view of {tensor.name} that starts at byte {own_bytes}: the documentation counts "
            f"it from the start of the storage and, elsewhere, of the view; accepted: offset None, or ap on a view "
            f"that starts where {tensor.name} does"
        )
    try:
        return operator.index(offset)
    except TypeError:
        raise ArgumentError(
            f"ap: offset {offset!r}; accepted: an integer (scalar_offset takes registers and tensors)"
        ) from None
