"""Creates tensors, reads them and writes them, with the checks that every instruction shares."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from nkisim import machine
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
        _check_on_chip(call, core, sizes, region, row_bytes, address)
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
            f"{call}: tensor {list(sizes)} takes {row_bytes} bytes per partition from byte {first_byte} on, "
            f"up to {first_byte + row_bytes}; accepted: {region.value} has {limit} usable bytes per partition"
        )


def read(call: str, operand: str, tensor: NkiTensor) -> np.ndarray:
    """The tensor's elements, sharing memory; every one must have been written.

    Raises:
        UninitializedReadError: names the tensor and the first element that nothing wrote.
    """
    if tensor.storage.unwritten is not None:
        missing = tensor.storage.first_unwritten(tensor.region)
        if missing is not None:
            raise UninitializedReadError(
                f"{call}: {operand}: element {list(missing)} of this view of {tensor.name} {list(tensor.shape)} "
                f"is read, and nothing has written it"
            )
    return tensor.array()


def read_fp32(call: str, operand: str, tensor: NkiTensor) -> np.ndarray:
    """The elements as fp32, as the engines see every arithmetic input."""
    return cast.to_fp32(read(call, operand, tensor))


def write(tensor: NkiTensor, values: np.ndarray) -> None:
    """Stores values, cast to the tensor's type; they have its shape, or as many elements in row-major order."""
    target = destination(tensor)
    if values.shape != target.shape:
        values = values.reshape(target.shape)
    cast.store(target, values, tensor.dtype)
    tensor.storage.mark_written(tensor.region)


def destination(tensor: NkiTensor) -> np.ndarray:
    """The elements to be overwritten. The caller marks them written."""
    storage = tensor.storage
    if not storage.is_private:
        storage.own()
    if storage.decoded:
        storage.drop_decoded(tensor.region)
    return tensor.array()
