"""What instructions have to do, on bytes of its own: the memory of a kernel, and the effects of its instructions.

After each instruction the simulator's results are held against bounds (equal ones where the result is exact); then
they are taken over, so that differences that are allowed do not add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fuzz import formats
from fuzz.view_model import Model, ViewCall, view, whole
from nkisim.dtypes import DType


@dataclass
class Tensor:
    """A tensor of the kernel: its bytes, and for each whether an instruction has written it."""

    name: str
    buffer: str
    shape: tuple[int, ...]
    dtype: DType
    memory: np.ndarray
    written: np.ndarray

    @property
    def on_chip(self) -> bool:
        """Whether dimension 0 is the partition dimension."""
        return self.buffer in ("sbuf", "psum")

    def model(self, calls: Sequence[ViewCall] = ()) -> Model | None:
        """A view of it; None where NKI has none."""
        found: Model | None = whole(self.memory, self.shape, self.dtype, self.on_chip)
        for call in calls:
            found = view(found, call) if found is not None else None
        return found


class Operand(NamedTuple):
    """A view of a tensor, as calls and as elements."""

    tensor: Tensor
    calls: tuple[ViewCall, ...]
    model: Model

    @property
    def source(self) -> str:
        """As a kernel writes it."""
        return self.tensor.name + "".join(call.source() for call in self.calls)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the view."""
        return self.model.array.shape

    @property
    def dtype(self) -> DType:
        """Of the view."""
        return self.model.dtype

    @property
    def elements(self) -> int:
        """Per partition."""
        return self.model.array.size // self.shape[0]

    def values(self) -> np.ndarray:
        """Its elements as the engines see them: fp32 numbers, as fp64."""
        return formats.fp32(formats.decoded(self.model.array))

    def rows(self) -> np.ndarray:
        """`values` as (partitions, elements per partition)."""
        return self.values().reshape(self.shape[0], -1)

    def integers(self) -> np.ndarray:
        """Integer elements, exactly, as (partitions, elements per partition)."""
        return self.model.array.reshape(self.shape[0], -1).astype(np.int64)

    def unwritten(self) -> np.ndarray:
        """Which of its elements hold a byte that nothing has written."""
        return np.asarray(~self.model.same_view_of(self.tensor.written).array.all(-1))


class Result(NamedTuple):
    """What an instruction has to leave in an operand.

    Attributes:
        low, high: bounds on the fp32 result, as fp64, in row-major order; NaN where it has to be NaN.
        bits: exact elements instead, of the operand's stored type.
        free: elements that may hold anything, since no document says what.
        kept: elements that stay as they are.
        unwritten: elements that are unwritten afterwards.
    """

    operand: Operand
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    bits: np.ndarray | None = None
    free: np.ndarray | None = None
    kept: np.ndarray | None = None
    unwritten: np.ndarray | None = None


class Fault(NamedTuple):
    """The instruction has to be refused with this class of error."""

    error: str


Effect = list[Result] | Fault


def exact(operand: Operand, values: np.ndarray, free: np.ndarray | None = None) -> Result:
    """An fp32 result without a bound's width."""
    return Result(operand, values, values, free=free)


def within(operand: Operand, values: np.ndarray, error: np.ndarray, free: np.ndarray | None = None) -> Result:
    """An fp64 result that may be off by an absolute error."""
    return Result(operand, values - error, values + error, free=free)


def accept(result: Result, stored: np.ndarray) -> str | None:
    """Takes the simulator's elements over; returns what is wrong with them.

    Args:
        stored: the bytes of the whole tensor as the simulator has them.
    """
    operand = result.operand
    got_bytes = operand.model.same_view_of(stored)
    got = np.ndarray(operand.shape, operand.dtype.storage, stored, got_bytes.offset_bytes, operand.model.array.strides)
    wrong = _wrong(result, got)
    if result.kept is not None:
        wrong &= ~result.kept.reshape(operand.shape)
    if result.free is not None:
        wrong &= ~result.free.reshape(operand.shape)
    if result.unwritten is not None:
        wrong &= ~result.unwritten.reshape(operand.shape)
    if wrong.any():
        return _told(result, got, wrong)
    writes = np.ones(operand.shape, np.bool_) if result.kept is None else ~result.kept.reshape(operand.shape)
    target = operand.model.same_view_of(operand.tensor.memory).array
    target[writes] = got_bytes.array[writes]
    flags = operand.model.same_view_of(operand.tensor.written).array
    unwritten = np.zeros(operand.shape, np.bool_) if result.unwritten is None else result.unwritten
    flags[writes] = ~unwritten.reshape(operand.shape)[writes][..., None]
    return None


def _bounds(result: Result) -> tuple[np.ndarray, np.ndarray]:
    operand = result.operand
    assert result.low is not None
    assert result.high is not None
    low, high = (
        formats.converted(formats.fp32(np.asarray(v, np.float64)), operand.dtype).reshape(operand.shape)
        for v in (result.low, result.high)
    )
    return low, high


def _wrong(result: Result, got: np.ndarray) -> np.ndarray:
    if result.bits is not None:
        expected = np.ascontiguousarray(result.bits.reshape(got.shape))
        unsigned = f"u{got.itemsize}"
        same: np.ndarray = np.ascontiguousarray(got).view(unsigned) == expected.view(unsigned)
        return ~same
    low, high = _bounds(result)
    values = formats.decoded(got)
    inside = (values >= low) & (values <= high)
    inside |= np.isnan(values) & (np.isnan(low) | np.isnan(high))
    if result.low is result.high:
        inside &= (np.signbit(values) == np.signbit(low)) | (values != 0) | (result.operand.dtype not in formats.FLOATS)
    return ~inside


def _told(result: Result, got: np.ndarray, wrong: np.ndarray) -> str:
    place = tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
    if result.bits is not None:
        expected = repr(result.bits.reshape(got.shape)[place])
    else:
        low, high = _bounds(result)
        expected = f"{low[place]!r} to {high[place]!r}"
    return f"{result.operand.source}: element {list(place)} is {got[place]!r}; expected {expected}"


def moved(dst: Operand, src: Operand, elements: np.ndarray, unwritten: np.ndarray) -> Effect:
    """Bits as they are, in an order that the caller has chosen; unwritten elements stay so."""
    if unwritten.all():
        return Fault("UninitializedReadError")
    assert dst.dtype is src.dtype
    return [Result(dst, bits=elements, unwritten=unwritten)]


def copied(dst: Operand, src: Operand, *, through_fp32: bool) -> Effect:
    """A copy that casts where the types differ."""
    unwritten = src.unwritten()
    if dst.dtype is src.dtype:
        return moved(dst, src, np.array(src.model.array).reshape(dst.shape), unwritten.reshape(dst.shape))
    if unwritten.all():
        return Fault("UninitializedReadError")
    values = src.values()
    free = None
    if not through_fp32 and dst.dtype in formats.INTEGERS and src.dtype in formats.INTEGERS:
        free = np.abs(values) > 1 << 24
    return [exact(dst, values, free)._replace(unwritten=unwritten)]
