"""Patterns that GpSimd makes from affine expressions: `iota`, and the mask of `affine_select`."""

from __future__ import annotations

from math import prod
from operator import index
from typing import Any

import numpy as np

from nkisim import machine, memory
from nkisim.dtypes import float32
from nkisim.enums import engine as Engine
from nkisim.errors import ArgumentError, DtypeError, ShapeError
from nkisim.instruction import NkiInstruction
from nkisim.isa import operands, rules
from nkisim.numerics import alu, cast
from nkisim.numerics.alu import COMPARISONS, OPERATORS
from nkisim.tensor import NkiTensor

Steps = tuple[tuple[int, int], ...]
_MAX_DIMS = 4
_LOWEST, _HIGHEST = -(1 << 31), (1 << 31) - 1


def iota(
    dst: NkiTensor, pattern: Any, offset: int = 0, channel_multiplier: int = 0, name: str | None = None
) -> NkiInstruction:
    """Fills a tile on GpSimd with `offset + partition * channel_multiplier + sum(index[k] * step[k])`.

    The values are 32-bit integers, converted to dst's type. What happens to values that 32 bits, or an integer dst,
    do not hold is not documented; they are refused.

    Args:
        dst: tile in SBUF of any type but packed ones; partitions count from its first one.
        pattern: up to four [step, size], the last one running fastest; the sizes multiply to dst's elements.
        offset, channel_multiplier: 32-bit integers.

    Raises:
        ArgumentError, ShapeError, DtypeError, WrongBufferError, PartitionError.
    """
    call = "nisa.iota"
    core = machine.core(call)
    steps = _steps(call, pattern)
    _check_integers(call, offset, channel_multiplier)
    try:
        key = (call, dst.signature, steps, offset, channel_multiplier)
    except AttributeError:
        rules.require_tensors(call, dst=dst)
        raise
    if key not in core.checked:
        rules.numeric(call, "dst", dst, core.hardware, (rules.SBUF,))
        rules.writable(call, "dst", dst)
        _check_pattern(call, dst, steps, offset, channel_multiplier)
        _check_held(call, dst, steps, offset, channel_multiplier)
        core.checked.add(key)
    issued = core.emit("iota", Engine.gpsimd, (dst.region,), (), name)
    if core.numerics:
        memory.write(dst, _values(dst.shape[0], steps, offset, channel_multiplier))
    return issued


def affine_select(
    dst: NkiTensor,
    pattern: Any,
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: float,
    cmp_op: Any = OPERATORS["equal"],
    offset: int = 0,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = on_true_tile where cmp_op(iota value, 0) else on_false_value`, on GpSimd.

    Selected elements are copied bit by bit where the types agree, else cast through fp32; others need not be written.

    Args:
        dst, on_true_tile: tiles in SBUF with as many partitions and elements per partition.
        pattern, channel_multiplier, offset: the affine expression, as for `iota`.
        on_false_value: a number, taken as fp32.
        cmp_op: a comparison.
    """
    call = "nisa.affine_select"
    core = machine.core(call)
    operator = operands.operator_among(call, "cmp_op", cmp_op, COMPARISONS)
    if not rules.is_number(on_false_value):
        raise ArgumentError(f"{call}: on_false_value is {on_false_value!r}; accepted: a number")
    steps = _steps(call, pattern)
    _check_integers(call, offset, channel_multiplier)
    try:
        key = (call, dst.signature, on_true_tile.signature, steps, offset, channel_multiplier)
    except AttributeError:
        rules.require_tensors(call, dst=dst, on_true_tile=on_true_tile)
        raise
    if key not in core.checked:
        rules.numeric(call, "on_true_tile", on_true_tile, core.hardware, (rules.SBUF,))
        rules.numeric(call, "dst", dst, core.hardware, (rules.SBUF,))
        rules.writable(call, "dst", dst)
        rules.same_elements(call, "on_true_tile", on_true_tile, "dst", dst)
        _check_pattern(call, dst, steps, offset, channel_multiplier)
        core.checked.add(key)
    issued = core.emit("affine_select", Engine.gpsimd, (dst.region,), (on_true_tile.region,), name, operator.name)
    if core.numerics:
        chosen = alu.apply(operator, _values(dst.shape[0], steps, offset, channel_multiplier), 0) != 0
        same = on_true_tile.dtype is dst.dtype
        source = memory.read_where(call, "on_true_tile", on_true_tile, chosen.reshape(on_true_tile.shape))
        results = np.array(source if same else cast.to_fp32(source))
        fill = np.empty((), results.dtype)
        cast.store(fill, np.asarray(operands.constant(on_false_value)), dst.dtype if same else float32)
        results[~chosen.reshape(results.shape)] = fill
        memory.write(dst, results)
    return issued


def _steps(call: str, pattern: Any) -> Steps:
    try:
        return tuple([(index(step), index(size)) for step, size in pattern])
    except (TypeError, ValueError):
        raise _pattern_error(call, pattern) from None


def _pattern_error(call: str, pattern: Any) -> ArgumentError:
    return ArgumentError(f"{call}: pattern {pattern!r}; accepted: one to four [step, size] of integers, sizes from 1")


def _check_integers(call: str, offset: Any, channel_multiplier: Any) -> None:
    for parameter, value in (("offset", offset), ("channel_multiplier", channel_multiplier)):
        if not rules.is_integer(value) or not _LOWEST <= value <= _HIGHEST:
            raise ArgumentError(f"{call}: {parameter} is {value!r}; accepted: a 32-bit integer")


def _check_pattern(call: str, dst: NkiTensor, steps: Steps, offset: int, multiplier: int) -> None:
    if not 1 <= len(steps) <= _MAX_DIMS or any(size < 1 for _, size in steps):
        raise _pattern_error(call, [list(s) for s in steps])
    elements, covered = prod(dst.shape[1:]), prod(size for _, size in steps)
    if covered != elements:
        raise ShapeError(
            f"{call}: pattern {[list(s) for s in steps]} makes {covered} values per partition; "
            f"accepted: {elements}, the elements of dst {list(dst.shape)}"
        )
    low, high = _extremes(dst.shape[0], steps, offset, multiplier)
    if low < _LOWEST or high > _HIGHEST:
        raise ArgumentError(f"{call}: values from {low} to {high}; accepted: 32-bit integers")


def _check_held(call: str, dst: NkiTensor, steps: Steps, offset: int, multiplier: int) -> None:
    if dst.dtype.kind == "integer":
        limits = np.iinfo(dst.dtype.storage)
        low, high = _extremes(dst.shape[0], steps, offset, multiplier)
        if low < limits.min or high > limits.max:
            raise DtypeError(f"{call}: values from {low} to {high} in {dst.dtype}; accepted: a type that holds them")


def _extremes(partitions: int, steps: Steps, offset: int, multiplier: int) -> tuple[int, int]:
    ends = [(size - 1) * step for step, size in (*steps, (multiplier, partitions))]
    return offset + sum(min(e, 0) for e in ends), offset + sum(max(e, 0) for e in ends)


def _values(partitions: int, steps: Steps, offset: int, multiplier: int) -> np.ndarray:
    """The affine expression as int32 [partitions, elements]."""
    total = np.full((1,), offset, np.int32)
    for step, size in steps:
        total = (total[:, None] + np.arange(size, dtype=np.int32) * np.int32(step)).reshape(-1)
    lanes = np.arange(partitions, dtype=np.int32) * np.int32(multiplier)
    values: np.ndarray = lanes[:, None] + total
    return values
