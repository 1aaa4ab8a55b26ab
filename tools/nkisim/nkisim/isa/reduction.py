"""Reductions along the free dimensions, and across partitions."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from nkisim import machine, memory
from nkisim.enums import engine as Engine
from nkisim.errors import ArgumentError, ShapeError
from nkisim.instruction import NkiInstruction
from nkisim.isa import indirection, operands, rules
from nkisim.numerics import alu
from nkisim.numerics.alu import OPERATORS
from nkisim.tensor import NkiTensor

_REDUCTIONS = tuple(o.name for o in OPERATORS.values() if o.reduces)
_ACROSS_PARTITIONS = ("add", "average", "maximum", "bitwise_or", "bitwise_and")
_AVERAGE = "average"


def tensor_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    axis: Any,
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """Reduces the last free dimensions of a tile on the Vector Engine, in fp32, or bit by bit with bit operators.

    Args:
        dst: tile with as many partitions as data, and an element for each one that is left.
        op: a reducing operator; subtract takes all others from the first.
        data: tile in SBUF or PSUM.
        axis: a dimension or several: the last ones without a gap, never 0; negative ones count from the back.
        negate: multiply the results by -1; with arithmetic operators.
        keepdims: changes nothing here, since dst brings its own shape.
    """
    call = "nisa.tensor_reduce"
    core = machine.core(call)
    operator = operands.operator_among(call, "op", op, _REDUCTIONS)
    if negate is not False:
        rules.flags(call, negate=negate)
    try:
        first = axis if type(axis) is int and axis == len(data.shape) - 1 > 0 else _first_axis(call, axis, data)
        key = (call, operator.name, dst.signature, data.signature, first, bool(negate))
    except (AttributeError, TypeError):
        rules.require_tensors(call, dst=dst, data=data)
        raise
    if key not in core.checked:
        rules.numeric(call, "data", data, core.hardware, rules.ON_CHIP)
        rules.numeric(call, "dst", dst, core.hardware, rules.ON_CHIP)
        rules.writable(call, "dst", dst)
        indirection.check(call, Engine.vector, dst, "data", data)
        rules.same_partitions(call, "dst", dst, "data", data)
        left = prod(data.shape[1:first])
        if prod(dst.shape[1:]) != left:
            raise ShapeError(
                f"{call}: dst {list(dst.shape)} has {prod(dst.shape[1:])} elements per partition; accepted: {left}, "
                f"what axis {axis} leaves of data {list(data.shape)}"
            )
        operands.check_bits(call, operator, dst=dst, data=data)
        if negate and operator.is_bitvec:
            raise ArgumentError(f"{call}: negate with nl.{operator.name}; accepted: with arithmetic operators")
        core.checked.add(key)
    issued = core.emit("tensor_reduce", Engine.vector, (dst.region,), (data.region,), name, operator.name)
    if core.numerics:
        rows = (data.shape[0], prod(data.shape[1:first]), prod(data.shape[first:]))
        if operator.is_bitvec:
            operands.write_bits(dst, alu.reduce_rows(operator, operands.bits(call, "data", data, rows)))
        else:
            results = alu.reduce_rows(operator, operands.shaped(call, "data", data, rows))
            memory.write(dst, -results if negate else results)
    return issued


def _first_axis(call: str, axis: Any, data: NkiTensor) -> int:
    """The first of the axes, which are the last dimensions of the tile."""
    rank = len(data.shape)
    given = tuple(axis) if isinstance(axis, (list, tuple)) else (axis,)
    if given and all(rules.is_integer(a) and -rank <= a < rank for a in given):
        axes = sorted(int(a) % rank for a in given)
        if axes[0] > 0 and axes == list(range(axes[0], rank)):
            return axes[0]
    accepted = ", ".join(str(tuple(range(start, rank))) for start in range(rank - 1, 0, -1))
    raise ArgumentError(f"{call}: axis {axis!r} of data {list(data.shape)}; accepted: {accepted}")


def tensor_partition_reduce(dst: NkiTensor, op: Any, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Reduces a tile across its partitions on GpSimd, in fp32, or bit by bit with bit operators.

    Args:
        dst: tile in SBUF with one partition and data's elements per partition.
        op: add, average, max, bitwise_or or bitwise_and.
        data: tile in SBUF.
    """
    call = "nisa.tensor_partition_reduce"
    core = machine.core(call)
    rules.require_tensors(call, dst=dst, data=data)
    given = getattr(op, "__name__", None)
    averages = given == _AVERAGE and operands.language_name(call, "op", op) == _AVERAGE
    operator = OPERATORS["add"] if averages else operands.operator_among(call, "op", op, _ACROSS_PARTITIONS)
    key = (call, operator.name, dst.signature, data.signature)
    if key not in core.checked:
        rules.numeric(call, "data", data, core.hardware, (rules.SBUF,))
        rules.numeric(call, "dst", dst, core.hardware, (rules.SBUF,))
        rules.writable(call, "dst", dst)
        if dst.shape[0] != 1 or prod(dst.shape[1:]) != prod(data.shape[1:]):
            raise ShapeError(
                f"{call}: dst {list(dst.shape)}; accepted: 1 partition with the {prod(data.shape[1:])} elements of data"
            )
        operands.check_bits(call, operator, dst=dst, data=data)
        core.checked.add(key)
    issued = core.emit("tensor_partition_reduce", Engine.gpsimd, (dst.region,), (data.region,), name, given)
    if core.numerics:
        columns = (data.shape[0], prod(data.shape[1:]))
        if operator.is_bitvec:
            operands.write_bits(dst, alu.reduce_rows(operator, operands.bits(call, "data", data, columns).T))
        else:
            results = alu.reduce_rows(operator, operands.shaped(call, "data", data, columns).T)
            memory.write(dst, results / np.float32(data.shape[0]) if averages else results)
    return issued
