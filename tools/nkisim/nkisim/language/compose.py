"""What the functions of `nki.language` share: new tiles, result types, broadcasting.

Each function stands for a few instructions of `nki.isa` and issues exactly those, so that capacity, hazards and
device time see what the chip would run. Results are new tiles in SBUF.
"""

from __future__ import annotations

from math import prod
from typing import Any

from nkisim import dtypes, memory
from nkisim.dtypes import DType, as_dtype, float32
from nkisim.enums import MemoryRegion
from nkisim.errors import ArgumentError, ShapeError, WrongBufferError
from nkisim.isa import copying, elementwise, rules, shuffle
from nkisim.numerics.alu import OPERATORS
from nkisim.tensor import NkiTensor

_QUADRANT = 32


def tile(call: str, operand: str, value: Any) -> NkiTensor:
    """The operand, which must be a tile on-chip."""
    if not isinstance(value, NkiTensor):
        raise ArgumentError(f"{call}: {operand} is {value!r}; accepted: a tile")
    if not value.on_chip:
        raise WrongBufferError(
            f"{call}: {operand} {value.name} lies in {value.buffer!r}; accepted: a tile in sbuf or psum (see nl.load)"
        )
    return value


def new(shape: tuple[int, ...], dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf) -> NkiTensor:
    """An unwritten tile for a result."""
    return memory.create("nki.language", shape, dtype, buffer)


def result_dtype(dtype: Any, *tiles: NkiTensor) -> DType:
    """The type asked for, or the one of the inputs that holds most: floats before integers, then the wider one.

    fp16 and bf16 together give fp32, since neither holds the other.
    """
    if dtype is not None:
        return as_dtype(dtype)
    kinds = {t.dtype for t in tiles}
    if kinds == {dtypes.float16, dtypes.bfloat16}:
        return float32
    return max(kinds, key=lambda kind: (kind.is_float, kind.itemsize))


def cast(source: NkiTensor, dtype: DType) -> NkiTensor:
    """The tile itself where it has the type, otherwise a copy that does."""
    if source.dtype is dtype:
        return source
    copied = new(source.shape, dtype)
    copying.tensor_copy(copied, source)
    return copied


def broadcast_shape(call: str, x: NkiTensor, y: NkiTensor) -> tuple[int, ...]:
    """Common shape of two tiles of the same rank, sizes of 1 stretching.

    Raises:
        ShapeError: the ranks differ, or sizes that are neither equal nor 1.
    """
    fits = len(x.shape) == len(y.shape) and all(a == b or 1 in (a, b) for a, b in zip(x.shape, y.shape, strict=True))
    if not fits:
        raise ShapeError(
            f"{call}: x {list(x.shape)} and y {list(y.shape)}; accepted: the same number of dimensions, "
            f"each of equal size or 1"
        )
    return tuple(max(sizes) for sizes in zip(x.shape, y.shape, strict=True))


def stretched(source: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    """The tile in a larger shape of the same rank.

    Free dimensions are stretched by a view. Partitions are physically copied, by one shuffle per 32 of them.
    """
    if source.shape[0] != shape[0]:
        source = _over_partitions(source, shape[0])
    for dim, size in enumerate(shape):
        if source.shape[dim] != size:
            source = source.broadcast(dim, size)
    return source


def _over_partitions(source: NkiTensor, partitions: int) -> NkiTensor:
    copied = new((partitions, *source.shape[1:]), source.dtype)
    for start in range(0, partitions, _QUADRANT):
        part = copied[start : min(start + _QUADRANT, partitions)]
        shuffle.nc_stream_shuffle(part, source, [0] * _QUADRANT)
    return copied


def binary(op: Any, x: Any, y: Any, dtype: Any) -> NkiTensor:
    """`x <op> y` as one instruction, after copies over partitions where those are stretched.

    A number, or an fp32 tile with one element per partition, is the scalar operand of `nisa.tensor_scalar`; two
    tiles are operands of `nisa.tensor_tensor`.
    """
    call = f"nl.{op.__name__}"
    if not isinstance(x, NkiTensor) or not isinstance(y, NkiTensor):
        return _with_number(call, op, x, y, dtype)
    x, y = tile(call, "x", x), tile(call, "y", y)
    shape = broadcast_shape(call, x, y)
    result = new(shape, result_dtype(dtype, x, y))
    if _is_scalar_operand(op, y, x, shape):
        elementwise.tensor_scalar(result, x, op, y)
    elif _is_scalar_operand(op, x, y, shape):
        elementwise.tensor_scalar(result, y, op, x, reverse0=True)
    else:
        elementwise.tensor_tensor(result, stretched(x, shape), stretched(y, shape), op)
    return result


def _with_number(call: str, op: Any, x: Any, y: Any, dtype: Any) -> NkiTensor:
    data, number, reverse = (x, y, False) if isinstance(x, NkiTensor) else (y, x, True)
    if not isinstance(data, NkiTensor) or not rules.is_number(number):
        raise ArgumentError(f"{call}: x is {x!r}, y is {y!r}; accepted: two tiles, or a tile and a number")
    data = tile(call, "y" if reverse else "x", data)
    result = new(data.shape, result_dtype(dtype, data))
    elementwise.tensor_scalar(result, data, op, number, reverse0=reverse)
    return result


def _is_scalar_operand(op: Any, value: NkiTensor, data: NkiTensor, shape: tuple[int, ...]) -> bool:
    one_per_partition = value.dtype is float32 and prod(value.shape[1:]) == 1 and value.shape[0] == shape[0]
    return one_per_partition and data.shape == shape and not OPERATORS[op.__name__].kind.startswith("bitvec")
