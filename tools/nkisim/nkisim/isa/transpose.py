"""`nc_transpose`, and how the Tensor Engine writes a transpose."""

from __future__ import annotations

from math import prod

import numpy as np

from common.hardware import Hardware
from nkisim import machine, memory
from nkisim.enums import engine as Engine
from nkisim.errors import ShapeError
from nkisim.instruction import NkiInstruction
from nkisim.isa import products, rules
from nkisim.tensor import NkiTensor

_VECTOR_MAX = 32


def nc_transpose(
    dst: NkiTensor, data: NkiTensor, engine: Engine = Engine.unknown, name: str | None = None
) -> NkiInstruction:
    """Swaps the partition axis with the free axes, flattened into one; bit by bit.

    Args:
        dst: (free elements, partitions) tile of data's type; in PSUM for the Tensor Engine, where 8-bit elements
            take the lower half of 16 bits each, so that dst has steps of 2.
        data: tile up to (128, 128) in SBUF for the Tensor Engine, up to (32, 32) anywhere on-chip for Vector.
        engine: tensor or vector; unknown takes vector where only it fits, else tensor.

    Raises:
        WrongBufferError, DtypeError, ShapeError, PartitionError, EngineError, UninitializedReadError.
    """
    call = "nisa.nc_transpose"
    core = machine.core(call)
    try:
        key = (call, dst.signature, data.signature, engine, products.place(dst, core.hardware))
    except AttributeError:
        rules.require_tensors(call, dst=dst, data=data)
        raise
    chosen = _engine(call, dst, data, engine)
    if key not in core.checked:
        if chosen is Engine.tensor:
            rules.tile(call, "data", data, core.hardware, (rules.SBUF,))
            rules.tile(call, "dst", dst, core.hardware, (rules.PSUM,))
            check_on_tensor_engine(call, core.hardware, dst, "data", data)
        else:
            _check_on_vector_engine(call, core.hardware, dst, data)
        core.checked.add(key)
    issued = core.emit("nc_transpose", chosen, (dst.region,), (data.region,), name)
    if core.numerics:
        store = write_by_tensor_engine if chosen is Engine.tensor else memory.write
        memory.move(call, "dst", dst, "data", data, arrange=swapped, store=store)
    return issued


def check_on_tensor_engine(call: str, hardware: Hardware, dst: NkiTensor, operand: str, data: NkiTensor) -> None:
    """The result of a transpose on the Tensor Engine: data's type in PSUM, 8-bit elements two bytes apart."""
    rules.same_dtype(call, "dst", dst, operand, data)
    rows, columns = data.shape[0], prod(data.shape[1:])
    limit = hardware.matmul_stationary_free_max
    if rows > limit or columns > limit:
        raise ShapeError(f"{call}: {operand} {list(data.shape)} on engine tensor; accepted: up to ({limit}, {limit})")
    _check_swapped(call, dst, operand, data)
    products.check_destination(call, dst, columns, rows, (data.dtype,), hardware)
    if not _steps_of_two(dst):
        raise ShapeError(
            f"{call}: dst {dst.name} {list(dst.shape)} of {dst.dtype} with strides {list(dst.strides)}; accepted: "
            f"steps of 2, as the Tensor Engine writes 8-bit elements as 16 bits"
        )


def swapped(values: np.ndarray) -> np.ndarray:
    """The partition axis swapped with the free axes, flattened into one.

    Rows of an SBUF tile lie so far apart that reading down a column misses the cache; a dense copy costs a fifth.
    """
    return np.ascontiguousarray(values.reshape(values.shape[0], -1)).T


def write_by_tensor_engine(dst: NkiTensor, values: np.ndarray) -> None:
    """Writes a transpose as the Tensor Engine does, with zeros above 8-bit elements."""
    memory.write_product(dst, values)
    if dst.dtype.itemsize == 1:
        upper = dst.region._replace(offset=dst.offset + 1)
        dst.storage.array(*upper[1:])[...] = np.zeros((), dst.dtype.storage)
        dst.storage.mark_written(upper)


def _steps_of_two(dst: NkiTensor) -> bool:
    if dst.dtype.itemsize > 1:
        return True
    free = zip(dst.shape[1:], dst.strides[1:], strict=True)
    starts_even = dst.offset % 2 == 0 and dst.storage.allocation.row_bytes % 2 == 0
    return starts_even and all(stride % 2 == 0 for size, stride in free if size > 1)


def _engine(call: str, dst: NkiTensor, data: NkiTensor, asked: Engine) -> Engine:
    if asked is not Engine.unknown:
        return rules.choose_engine(call, asked, (Engine.tensor, Engine.vector))
    reaches = data.buffer is rules.SBUF and dst.buffer is rules.PSUM
    small = data.shape[0] <= _VECTOR_MAX and prod(data.shape[1:]) <= _VECTOR_MAX
    return Engine.tensor if reaches and (_steps_of_two(dst) or not small) else Engine.vector


def _check_on_vector_engine(call: str, hardware: Hardware, dst: NkiTensor, data: NkiTensor) -> None:
    rules.tile(call, "data", data, hardware, rules.ON_CHIP)
    rules.tile(call, "dst", dst, hardware, rules.ON_CHIP)
    rules.writable(call, "dst", dst)
    rules.same_dtype(call, "dst", dst, "data", data)
    if data.shape[0] > _VECTOR_MAX or prod(data.shape[1:]) > _VECTOR_MAX:
        raise ShapeError(
            f"{call}: data {list(data.shape)} on engine vector; accepted: up to ({_VECTOR_MAX}, {_VECTOR_MAX})"
        )
    _check_swapped(call, dst, "data", data)


def _check_swapped(call: str, dst: NkiTensor, operand: str, data: NkiTensor) -> None:
    rows, columns = data.shape[0], prod(data.shape[1:])
    if dst.shape[0] != columns or prod(dst.shape[1:]) != rows:
        raise ShapeError(f"{call}: dst {list(dst.shape)}; accepted: ({columns}, {rows}), {operand} transposed")
