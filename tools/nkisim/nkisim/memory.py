"""Creates tensors, reads them and writes them, with the checks that every instruction shares."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from nkisim import addressing, indirect, machine
from nkisim.dtypes import as_dtype
from nkisim.enums import MemoryRegion
from nkisim.errors import (
    ArgumentError,
    CapacityError,
    PartitionError,
    ShapeError,
    UninitializedReadError,
    WrongBufferError,
)
from nkisim.isa import rules
from nkisim.numerics import cast
from nkisim.tensor import NkiTensor

SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum


def create(
    call: str,
    shape: Any,
    dtype: Any,
    buffer: MemoryRegion | str,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> NkiTensor:
    """A new tensor, unwritten.

    Args:
        call: the public call it is made for, named in errors.
        shape: positive sizes; on-chip the first is the number of partitions, and a second is needed.
        address: on-chip, (first partition, first byte in the partition); None leaves the place open.

    Raises:
        ArgumentError, ShapeError, WrongBufferError, PartitionError, CapacityError.
    """
    core = machine.core(call)
    sizes = _sizes(call, shape)
    kind = as_dtype(dtype)
    rules.supported_dtype(call, "dtype", kind, core.hardware)
    try:
        region = MemoryRegion(buffer)
    except ValueError:
        raise WrongBufferError(
            f"{call}: buffer {buffer!r}; accepted: {', '.join(m.value for m in MemoryRegion)}"
        ) from None
    if region is SBUF or region is PSUM:
        partitions, row_bytes = sizes[0], prod(sizes[1:]) * kind.itemsize
        _check_on_chip(call, core, name, sizes, region, row_bytes, address)
    else:
        partitions, row_bytes = 1, prod(sizes) * kind.itemsize
        if address is not None:
            raise ArgumentError(
                f"{call}: address {address} for a tensor in {region.value}; accepted: SBUF and PSUM only"
            )
    storage = core.create(sizes, kind, region, name, address, partitions, row_bytes)
    return NkiTensor(sizes, kind, storage, region)


def _sizes(call: str, shape: Any) -> tuple[int, ...]:
    try:
        sizes = tuple(int(s) for s in shape)
    except TypeError:
        raise ArgumentError(f"{call}: shape {shape!r}; accepted: a tuple of positive integers") from None
    if not sizes or any(s < 1 for s in sizes):
        raise ShapeError(f"{call}: shape {sizes}; accepted: positive sizes")
    return sizes


def _check_on_chip(
    call: str,
    core: machine.Core,
    name: str,
    sizes: tuple[int, ...],
    region: MemoryRegion,
    row_bytes: int,
    address: tuple[int, int] | None,
) -> None:
    hardware = core.hardware
    if len(sizes) < 2:
        raise ShapeError(
            f"{call}: shape {sizes} in {region.value}; accepted: a partition and at least one free dimension"
        )
    if sizes[0] > hardware.partitions:
        raise ShapeError(f"{call}: {sizes[0]} partitions in shape {sizes}; accepted: at most {hardware.partitions}")
    limit = hardware.sbuf_usable_bytes_per_partition if region is SBUF else hardware.psum_bytes_per_partition
    first_byte = 0
    if address is not None:
        first_partition, first_byte = (int(a) for a in address)
        if first_partition not in hardware.start_partitions or first_partition + sizes[0] > hardware.partitions:
            raise PartitionError(
                f"{call}: address {address}: {sizes[0]} partitions from {first_partition}; accepted starts: "
                f"{', '.join(map(str, hardware.start_partitions))}, ending by {hardware.partitions}"
            )
        if first_byte < 0:
            raise CapacityError(f"{call}: address {address}: byte {first_byte}; accepted: 0 and up")
    if first_byte + row_bytes > limit:
        raise CapacityError(
            f"{call}: tensor {name or 'without a name'} {list(sizes)} takes {row_bytes} bytes per partition "
            f"from byte {first_byte} on, "
            f"up to {first_byte + row_bytes}; accepted: {region.value} has {limit} usable bytes per partition"
        )


def read(call: str, operand: str, tensor: NkiTensor) -> np.ndarray:
    """The tensor's elements, sharing memory where no index chooses them; every one must have been written.

    Raises:
        UninitializedReadError: names the tensor and the first element that nothing wrote.
        OutOfBoundsError: a dynamic index leaves the tensor.
    """
    if tensor.indirection is not None:
        return read_present(call, operand, tensor, skip=False)[0]
    if tensor.storage.unwritten is not None:
        _require_written(call, operand, tensor, None)
    if tensor.storage.sharing is not None:
        tensor.storage.sharing.read(tensor.region)
    return tensor.array()


def read_where(call: str, operand: str, tensor: NkiTensor, chosen: np.ndarray | None) -> np.ndarray:
    """Like `read`, but only the elements that `chosen` (of the tensor's shape; None: all) marks must be written."""
    if tensor.indirection is not None:
        return read(call, operand, tensor)
    if tensor.storage.unwritten is not None:
        _require_written(call, operand, tensor, chosen)
    if tensor.storage.sharing is not None:
        tensor.storage.sharing.read(tensor.region, ... if chosen is None else chosen)
    return tensor.array()


def _require_written(call: str, operand: str, tensor: NkiTensor, chosen: np.ndarray | None) -> None:
    missing = tensor.storage.first_unwritten(tensor.region, chosen)
    if missing is not None:
        raise UninitializedReadError(
            f"{call}: {operand}: element {list(missing)} of this view of {tensor.name} {list(tensor.shape)} "
            f"is read, and nothing has written it"
        )


def read_present(call: str, operand: str, tensor: NkiTensor, *, skip: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """The elements, and which of them an index in bounds chose, if `skip` and some was not.

    The second is None when all did; otherwise a boolean per element. What the others hold means nothing.
    """
    if tensor.indirection is None:
        return read(call, operand, tensor), None
    if tensor.indirection.kind == indirect.OFFSET:
        static = addressing.moved(call, operand, tensor, skip)
        if static is None:
            return np.zeros(tensor.shape, tensor.dtype.storage), np.zeros(tensor.shape, np.bool_)
        return read(call, operand, static), None
    chosen = addressing.select(call, operand, tensor, skip)
    values = addressing.gather(call, operand, tensor, chosen)
    if chosen.present is None:
        return values, None
    return values, np.broadcast_to(chosen.present.reshape(-1, *[1] * (values.ndim - 1)), values.shape)


def read_fp32(call: str, operand: str, tensor: NkiTensor) -> np.ndarray:
    """The elements as fp32, as the engines see every arithmetic input."""
    return cast.to_fp32(read(call, operand, tensor))


def write(tensor: NkiTensor, values: np.ndarray) -> None:
    """Stores values, cast to the tensor's type; they have its shape, or as many elements in row-major order."""
    _write(tensor, values)
    if tensor.buffer is PSUM and tensor.indirection is None:
        tensor.storage.mark_foreign(tensor.region)


def write_product(tensor: NkiTensor, values: np.ndarray) -> None:
    """`write` by the Tensor Engine."""
    _write(tensor, values)
    if tensor.indirection is None:
        tensor.storage.clear_foreign(tensor.region)


def _write(tensor: NkiTensor, values: np.ndarray) -> None:
    if tensor.indirection is not None:
        write_present(f"nisa.{machine.core('write').stream[-1].op}", "dst", tensor, values, None, skip=False)
        return
    target = destination(tensor)
    if values.shape != target.shape:
        values = values.reshape(target.shape)
    cast.store(target, values, tensor.dtype)
    tensor.storage.mark_written(tensor.region)


def write_present(
    call: str, operand: str, tensor: NkiTensor, values: np.ndarray, present: np.ndarray | None, *, skip: bool
) -> None:
    """Stores those of the values that `present` marks (None: all), and with `skip` only where the index is in bounds.

    Elements left out keep what they held.
    """
    values = values.reshape(tensor.shape)
    present = None if present is None else present.reshape(tensor.shape)
    static: NkiTensor | None = tensor
    if tensor.indirection is not None:
        if tensor.indirection.kind != indirect.OFFSET:
            addressing.scatter(tensor, values, addressing.select(call, operand, tensor, skip), present)
            return
        static = addressing.moved(call, operand, tensor, skip)
    if static is None:
        return
    if present is None:
        write(static, values)
        return
    target = destination(static)
    stored = np.empty(target.shape, target.dtype)
    cast.store(stored, values, static.dtype)
    np.copyto(target, stored, where=present)
    static.storage.mark_written_where(static.region, present)


def settled(call: str, operand: str, tensor: NkiTensor) -> NkiTensor:
    """The tensor with a dynamic offset, if it has one, worked out: what `destination` and `region` can be asked of.

    Raises:
        OutOfBoundsError: the offset leaves the tensor.
    """
    if tensor.indirection is None or tensor.indirection.kind != indirect.OFFSET:
        return tensor
    static = addressing.moved(call, operand, tensor)
    assert static is not None
    return static


def destination(tensor: NkiTensor) -> np.ndarray:
    """The elements to be overwritten; the caller marks them written. The tensor has no dynamic index."""
    tensor.storage.prepare_write(tensor.region)
    return tensor.array()
