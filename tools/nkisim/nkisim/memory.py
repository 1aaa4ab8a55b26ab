"""Creates tensors, reads them and writes them, with the checks that every instruction shares.

Who computes with an element that nothing has written is told so. A pure move (a copy, cast, transpose, shuffle or
exchange, in which each result comes from one element alone) takes such elements along instead: what they are moved to
is unwritten from then on. So a tile that is filled in part may be moved as a whole, as kernels do with the ragged end
of a tensor, and the error comes where the missing elements are used, or returned. A view of which nothing at all was
written is not moved.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

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
    name: str | None = "",
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
    if name is None:
        name = ""
    if name is not None and not isinstance(name, str):
        raise ArgumentError(f"{call}: name {name!r}; accepted: a string or None")
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
        if row_bytes > core.hardware.hbm_bytes_per_chip:
            raise CapacityError(
                f"{call}: tensor {name or 'without a name'} {list(sizes)} takes {row_bytes} bytes; accepted: "
                f"the chip's HBM has {core.hardware.hbm_bytes_per_chip}"
            )
    storage = core.create(sizes, kind, region, name, address, partitions, row_bytes)
    return NkiTensor(sizes, kind, storage, region)


def _sizes(call: str, shape: Any) -> tuple[int, ...]:
    try:
        sizes = tuple(int(operator.index(s)) for s in shape)
    except TypeError:
        raise ArgumentError(f"{call}: shape {shape!r}; accepted: a tuple of positive integers") from None
    if not sizes or any(s < 1 for s in sizes):
        raise ShapeError(f"{call}: shape {sizes}; accepted: positive sizes")
    return sizes


def _address(call: str, address: Any) -> tuple[int, int]:
    try:
        partition, byte = (operator.index(a) for a in address)
    except (TypeError, ValueError):
        raise ArgumentError(f"{call}: address {address!r}; accepted: (first partition, first byte)") from None
    return int(partition), int(byte)


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
        first_partition, first_byte = _address(call, address)
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


class Bits(NamedTuple):
    """Elements on their way from one tensor to another.

    Attributes:
        values: the elements, in fp32 where `nkisim.precision` has them so; those that are not present, or unwritten,
            mean nothing.
        present: which of them an index in bounds chose; None: all.
        unwritten: which of the present ones nothing has written; None: none.
    """

    values: np.ndarray
    present: np.ndarray | None = None
    unwritten: np.ndarray | None = None

    def arranged(self, arrange: Callable[[np.ndarray], np.ndarray]) -> Bits:
        """In another order: `arrange` permutes, reshapes or picks."""
        present, unwritten = self.present, self.unwritten
        return Bits(
            arrange(self.values),
            None if present is None else arrange(present),
            None if unwritten is None else arrange(unwritten),
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
        unwritten = tensor.storage.missing(tensor.region)
        if unwritten is not None:
            raise _uninitialized(call, operand, tensor, unwritten)
    if tensor.storage.sharing is not None:
        tensor.storage.sharing.read(tensor.region)
    return tensor.storage.values(tensor.dtype, tensor.offset, tensor.shape, tensor.strides)


def read_where(call: str, operand: str, tensor: NkiTensor, chosen: np.ndarray | None) -> np.ndarray:
    """Like `read`, but only the elements that `chosen` (of the tensor's shape; None: all) marks must be written."""
    if tensor.indirection is not None or chosen is None:
        return read(call, operand, tensor)
    return _complete(call, operand, tensor, read_bits(call, operand, tensor, chosen=chosen)).values


def read_present(call: str, operand: str, tensor: NkiTensor, *, skip: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """The elements, and which of them an index in bounds chose, if `skip` and some was not.

    The second is None when all did; otherwise a boolean per element. What the others hold means nothing.
    """
    if tensor.indirection is None:
        return read(call, operand, tensor), None
    return _complete(call, operand, tensor, read_bits(call, operand, tensor, skip=skip))[:2]


def read_bits(
    call: str, operand: str, tensor: NkiTensor, *, skip: bool = False, chosen: np.ndarray | None = None
) -> Bits:
    """The elements for a pure move, sharing memory where no index chooses them; some must have been written.

    Args:
        skip: leaves elements out whose index is out of bounds.
        chosen: of a tensor without a dynamic index, the elements that count, of its shape; None: all.

    Raises:
        UninitializedReadError: nothing has written any of them.
        OutOfBoundsError: a dynamic index leaves the tensor.
    """
    static = tensor
    if tensor.indirection is not None:
        if tensor.indirection.kind != indirect.OFFSET:
            return _read_selected(call, operand, tensor, skip)
        moved = addressing.moved(call, operand, tensor, skip)
        if moved is None:
            return Bits(np.zeros(tensor.shape, tensor.dtype.storage), np.zeros(tensor.shape, np.bool_))
        static = moved
    storage, unwritten = static.storage, None
    if storage.unwritten is not None:
        unwritten = storage.missing(static.region, chosen)
        _require_some(call, operand, static, unwritten, chosen)
    if storage.sharing is not None:
        storage.sharing.read(static.region, ... if chosen is None else chosen)
    return Bits(storage.values(static.dtype, static.offset, static.shape, static.strides), None, unwritten)


def _read_selected(call: str, operand: str, tensor: NkiTensor, skip: bool) -> Bits:
    chosen = addressing.select(call, operand, tensor, skip)
    unwritten, present = addressing.unwritten(tensor, chosen), None
    values = addressing.gather(tensor, chosen)
    if chosen.present is not None:
        present = np.broadcast_to(chosen.present.reshape(-1, *[1] * (values.ndim - 1)), values.shape)
    _require_some(call, operand, tensor, unwritten, present)
    return Bits(values, present, unwritten)


def _require_some(
    call: str, operand: str, tensor: NkiTensor, unwritten: np.ndarray | None, counted: np.ndarray | None
) -> None:
    """Something has written one of the elements that count (None: all of them)."""
    if unwritten is None:
        return
    if np.count_nonzero(unwritten) == (unwritten.size if counted is None else np.count_nonzero(counted)):
        raise _uninitialized(call, operand, tensor, unwritten)


def _complete(call: str, operand: str, tensor: NkiTensor, bits: Bits) -> Bits:
    if bits.unwritten is not None:
        raise _uninitialized(call, operand, tensor, bits.unwritten)
    return bits


def _uninitialized(call: str, operand: str, tensor: NkiTensor, unwritten: np.ndarray) -> UninitializedReadError:
    first = [int(i) for i in np.unravel_index(int(unwritten.argmax()), unwritten.shape)]
    return UninitializedReadError(
        f"{call}: {operand}: element {first} of this view of {tensor.name} {list(tensor.shape)} "
        f"is read, and nothing has written it"
    )


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
    storage = tensor.storage
    if storage.keeps_fp32:
        storage.keep(tensor.dtype, tensor.offset, tensor.shape, tensor.strides, values)
    storage.mark_written(tensor.region)


def write_present(
    call: str, operand: str, tensor: NkiTensor, values: np.ndarray, present: np.ndarray | None, *, skip: bool
) -> None:
    """Stores those of the values that `present` marks (None: all), and with `skip` only where the index is in bounds.

    Elements left out keep what they held.
    """
    write_bits(call, operand, tensor, Bits(values, present), skip=skip)


def write_bits(
    call: str,
    operand: str,
    tensor: NkiTensor,
    bits: Bits,
    *,
    skip: bool = False,
    store: Callable[[NkiTensor, np.ndarray], None] = write,
) -> None:
    """Stores those of the elements that are present; the unwritten ones leave unwritten what they are moved to.

    Args:
        bits: of the tensor's shape, or as many in row-major order.
        skip: stores only where the index is in bounds.
        store: what stores them all, where no index chooses places.
    """
    if tensor.indirection is None and bits.present is None and bits.unwritten is None:
        store(tensor, bits.values)
        return
    values, present, unwritten = (None if part is None else part.reshape(tensor.shape) for part in bits)
    assert values is not None
    static: NkiTensor | None = tensor
    if tensor.indirection is not None:
        if tensor.indirection.kind != indirect.OFFSET:
            chosen = addressing.select(call, operand, tensor, skip)
            addressing.scatter(tensor, values, chosen, present, unwritten)
            return
        static = addressing.moved(call, operand, tensor, skip)
    if static is None:
        return
    if present is None:
        store(static, values)
    else:
        _write_where(static, values, present)
    if unwritten is not None:
        places: Any = ... if present is None else present
        static.storage.mark_unwritten(static.region, unwritten[places], places)


def _write_where(tensor: NkiTensor, values: np.ndarray, present: np.ndarray) -> None:
    target = destination(tensor)
    stored = np.empty(target.shape, target.dtype)
    cast.store(stored, values, tensor.dtype)
    np.copyto(target, stored, where=present)
    storage = tensor.storage
    if storage.keeps_fp32:
        storage.keep(tensor.dtype, tensor.offset, tensor.shape, tensor.strides, values[present], present)
    storage.mark_written_where(tensor.region, present)


def move(
    call: str,
    to: str,
    dst: NkiTensor,
    operand: str,
    src: NkiTensor,
    *,
    arrange: Callable[[np.ndarray], np.ndarray] | None = None,
    skip: bool = False,
    store: Callable[[NkiTensor, np.ndarray], None] = write,
) -> None:
    """`dst` takes the elements of `src`, cast and arranged anew, and with them whether they were ever written.

    Args:
        skip, store: as in `read_bits` and `write_bits`.
    """
    bits = read_bits(call, operand, src, skip=skip)
    write_bits(call, to, dst, bits if arrange is None else bits.arranged(arrange), skip=skip, store=store)


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
