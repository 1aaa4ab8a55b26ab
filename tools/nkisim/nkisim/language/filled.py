"""Tensors filled with a number, and tensors like others."""

from __future__ import annotations

import math
from typing import Any

from nkisim import memory
from nkisim.dtypes import DType
from nkisim.enums import MemoryRegion
from nkisim.errors import ArgumentError
from nkisim.isa import copying, operands, rules, transfer
from nkisim.language import compose
from nkisim.tensor import NkiTensor

_SOURCE_ELEMENTS = 4096


def full(
    shape: Any, fill_value: Any, dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = ""
) -> NkiTensor:
    """A new tensor of one number, by a memset; in HBM, by a DMA from a short tile that holds it.

    Args:
        shape, dtype, buffer, name: as for `nl.ndarray`.
        fill_value: a number that the type can be given: whole for integers, 0 for packed types.
    """
    return _filled("nl.full", shape, fill_value, dtype, buffer, name)


def zeros(shape: Any, dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """A new tensor of zeros; see `full`."""
    return _filled("nl.zeros", shape, 0, dtype, buffer, name)


def ones(shape: Any, dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """A new tensor of ones; see `full`."""
    return _filled("nl.ones", shape, 1, dtype, buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: MemoryRegion | None = None, name: str = "") -> NkiTensor:
    """Zeros of the shape and type of `x`, in SBUF unless `buffer` says otherwise."""
    call = "nl.zeros_like"
    rules.require_tensors(call, x=x)
    return _filled(
        call, x.shape, 0, x.dtype if dtype is None else dtype, MemoryRegion.sbuf if buffer is None else buffer, name
    )


def empty_like(x: NkiTensor, dtype: Any = None, buffer: MemoryRegion | None = None, name: str = "") -> NkiTensor:
    """An unwritten tensor of the shape and type of `x`, in its memory unless `buffer` says otherwise."""
    call = "nl.empty_like"
    rules.require_tensors(call, x=x)
    return memory.create(
        call, x.shape, x.dtype if dtype is None else dtype, x.buffer if buffer is None else buffer, name
    )


def _filled(call: str, shape: Any, value: Any, dtype: Any, buffer: MemoryRegion, name: str) -> NkiTensor:
    result = memory.create(call, shape, dtype, buffer, name)
    number = _number(call, value, result.dtype)
    if result.on_chip:
        copying.memset(result, number)
        return result
    width = math.gcd(result.size, _SOURCE_ELEMENTS)
    row = compose.new((1, width), result.dtype)
    copying.memset(row, number)
    transfer.dma_copy(result, row.expand_dim(1).broadcast(1, result.size // width))
    return result


def _number(call: str, value: Any, dtype: DType) -> float:
    if not rules.is_number(value):
        raise ArgumentError(f"{call}: fill_value {value!r}; accepted: a number")
    if dtype.is_float:
        return float(operands.constant(value))
    if not rules.is_integer(value) and (not math.isfinite(value) or value != int(value)):
        raise ArgumentError(f"{call}: fill_value {value!r} for {dtype}; accepted: a whole number")
    return int(value)
