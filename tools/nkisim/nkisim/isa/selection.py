"""Selections of the Vector Engine by a predicate or by position.

An element that is not selected does not count: nothing need have been written there.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from nkisim import dtypes, machine, memory
from nkisim.dtypes import float32, int32, tfloat32, uint32
from nkisim.enums import engine as Engine
from nkisim.enums import reduce_cmd as ReduceCommand
from nkisim.errors import ArgumentError, DtypeError, OutOfBoundsError, ShapeError
from nkisim.instruction import NkiInstruction
from nkisim.isa import accumulation, indirection, operands, rules
from nkisim.numerics.alu import OPERATORS
from nkisim.tensor import NkiTensor

FP32_MIN = float(np.finfo(np.float32).min)
_PREDICATES = (dtypes.uint8, dtypes.uint16, dtypes.uint32)
_NARROW_INTEGERS = (dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16)
_RANGE_COMPARISONS = ("equal", "less", "less_equal", "greater", "greater_equal")
_EXACT_INDEX = 1 << 24
_MAXIMUM = OPERATORS["maximum"]
_RANGE_COMMANDS = (ReduceCommand.reset_reduce, ReduceCommand.reduce, ReduceCommand.reset, ReduceCommand.idle)
_SELECT_COMMANDS = (ReduceCommand.idle, ReduceCommand.reset_reduce, ReduceCommand.reduce)


def tensor_copy_predicated(
    dst: NkiTensor, src: Any, predicate: NkiTensor, reverse_pred: bool = False, name: str | None = None
) -> NkiInstruction:
    """Copies `src` to `dst` where `predicate` is not 0 (is 0, with `reverse_pred`); other elements of dst stay.

    Args:
        dst: tile in SBUF or PSUM.
        src: a number, or a tile of dst's type with as many partitions and elements per partition.
        predicate: uint8, uint16 or uint32 tile of dst's size; src and predicate not both in PSUM.
    """
    call = "nisa.tensor_copy_predicated"
    core = machine.core(call)
    if reverse_pred is not False:
        rules.flags(call, reverse_pred=reverse_pred)
    try:
        key = (call, dst.signature, predicate.signature, operands.signature(src))
    except AttributeError:
        rules.require_tensors(call, dst=dst, predicate=predicate)
        raise
    if key not in core.checked:
        _check_predicated(call, core, dst, src, predicate)
        core.checked.add(key)
    reads = (*operands.regions(src), predicate.region)
    issued = core.emit("tensor_copy_predicated", Engine.vector, (dst.region,), reads, name)
    if core.numerics:
        chosen = (memory.read(call, "predicate", predicate).reshape(dst.shape) != 0) != bool(reverse_pred)
        if isinstance(src, NkiTensor):
            values = memory.read_where(call, "src", src, chosen.reshape(src.shape)).reshape(dst.shape)
        else:
            values = np.full(dst.shape, operands.constant(src))
        memory.write_present(call, "dst", dst, values, chosen, skip=False)
    return issued


def _check_predicated(call: str, core: machine.Core, dst: NkiTensor, src: Any, predicate: NkiTensor) -> None:
    rules.tile(call, "dst", dst, core.hardware, rules.ON_CHIP)
    rules.tile(call, "predicate", predicate, core.hardware, rules.ON_CHIP)
    rules.writable(call, "dst", dst)
    indirection.check(call, Engine.vector, dst, "predicate", predicate)
    rules.dtype(call, "predicate", predicate, _PREDICATES)
    rules.same_elements(call, "predicate", predicate, "dst", dst)
    if isinstance(src, NkiTensor):
        rules.tile(call, "src", src, core.hardware, rules.ON_CHIP)
        rules.same_dtype(call, "src", src, "dst", dst)
        rules.same_elements(call, "src", src, "dst", dst)
        rules.not_both_in_psum(call, "src", src, "predicate", predicate)
    elif not rules.is_number(src):
        raise ArgumentError(f"{call}: src is {src!r}; accepted: a number or a tile of dst's type")
    elif dst.dtype.kind == "packed":
        raise DtypeError(f"{call}: src is a number for {dst.dtype}; accepted: a tile of that type")


def select_reduce(
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: Any,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: ReduceCommand = ReduceCommand.idle,
    reduce_op: Any = _MAXIMUM,
    reverse_pred: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = on_true where predicate is not 0 (is 0, with reverse_pred) else on_false`, and optionally its maximum.

    The maximum is kept per partition in the Vector Engine's reduce registers, in fp32. After `idle` they hold
    nothing defined.

    Args:
        dst, on_true: tiles of one shape; on_true of any type but tfloat32, int32 and uint32.
        predicate: int8, uint8, int16 or uint16 tile of that shape; on_true and predicate not both in PSUM.
        on_false: a number or a tile (partitions, 1).
        reduce_res: float tile (partitions, 1) that takes the registers; not with idle.
        reduce_cmd: idle, reset_reduce or reduce.
        reduce_op: `nl.maximum`.
    """
    call = "nisa.select_reduce"
    core = machine.core(call)
    if reverse_pred is not False:
        rules.flags(call, reverse_pred=reverse_pred)
    try:
        key: Any = (
            call, dst.signature, predicate.signature, on_true.signature, operands.signature(on_false),
            operands.signature(reduce_res), reduce_op, reduce_cmd,
        )  # fmt: skip
        passed = key in core.checked
    except (AttributeError, TypeError):
        key, passed = (), False
    if not passed:
        rules.require_tensors(call, dst=dst, predicate=predicate, on_true=on_true)
        operands.operator_among(call, "reduce_op", reduce_op, (_MAXIMUM.name,))
        accumulation.require_command(call, reduce_cmd)
        for operand, tensor in (("dst", dst), ("on_true", on_true), ("predicate", predicate)):
            rules.numeric(call, operand, tensor, core.hardware, rules.ON_CHIP)
        rules.writable(call, "dst", dst)
        _same_shape(call, "on_true", on_true, dst)
        _same_shape(call, "predicate", predicate, dst)
        rules.dtype(call, "predicate", predicate, _NARROW_INTEGERS)
        if on_true.dtype in (tfloat32, int32, uint32):
            raise DtypeError(f"{call}: on_true {on_true.name} is {on_true.dtype}; accepted: any other type")
        rules.not_both_in_psum(call, "on_true", on_true, "predicate", predicate)
        operands.check_scalar(call, "on_false", on_false, on_true, None)
        accumulation.check_vector(call, on_true, reduce_cmd, _SELECT_COMMANDS, reduce_res)
        core.checked.add(key)
    reads = (on_true.region, predicate.region, *operands.regions(on_false))
    writes = (dst.region,) if reduce_res is None else (dst.region, reduce_res.region)
    issued = core.emit("select_reduce", Engine.vector, writes, reads, name, reduce_cmd)
    if core.numerics:
        chosen = (memory.read(call, "predicate", predicate) != 0) != bool(reverse_pred)
        values = operands.shaped(call, "on_true", on_true, dst.shape, chosen)
        results = np.where(chosen, values, operands.scalar(call, "on_false", on_false, values.ndim))
        accumulation.finish_vector(call, core, dst, on_true, _MAXIMUM, reduce_cmd, results, reduce_res)
    return issued


def _same_shape(call: str, operand: str, tensor: NkiTensor, dst: NkiTensor) -> None:
    if tensor.shape != dst.shape:
        raise ShapeError(f"{call}: {operand} {list(tensor.shape)}; accepted: {list(dst.shape)}, the shape of dst")


def range_select(
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Any,
    comp_op1: Any,
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: ReduceCommand = ReduceCommand.reset_reduce,
    reduce_res: NkiTensor | None = None,
    reduce_op: Any = _MAXIMUM,
    range_start: int = 0,
    on_false_value: float = FP32_MIN,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = on_true_tile where both comparisons hold else the lowest fp32`, and the maximum of that.

    Compared are `range_start + position in the partition` with the partition's bounds, in fp32. The maximum is kept
    per partition in the Vector Engine's reduce registers, in fp32 before the cast to dst's type.

    Args:
        dst, on_true_tile: tiles with as many partitions and elements per partition; on_true_tile of a float type.
        comp_op0, comp_op1: equal, less, less_equal, greater or greater_equal.
        bound0, bound1: fp32 tiles (partitions, 1).
        reduce_cmd: reset_reduce, reduce, reset or idle, after which the registers hold nothing defined.
        reduce_res: float tile (partitions, 1) that takes the registers; not with idle.
        reduce_op: `nl.maximum`.
        range_start: an integer; it and all positions stay within 2^24.
        on_false_value: the lowest fp32, -3.4028235e+38.
    """
    call = "nisa.range_select"
    core = machine.core(call)
    try:
        key: Any = (
            call, dst.signature, on_true_tile.signature, bound0.signature, bound1.signature, comp_op0, comp_op1,
            reduce_cmd, operands.signature(reduce_res), reduce_op, range_start, type(range_start), on_false_value,
        )  # fmt: skip
        plan = core.plans.get(key)
    except (AttributeError, TypeError):
        key, plan = None, None
    if plan is None:
        rules.require_tensors(call, dst=dst, on_true_tile=on_true_tile, bound0=bound0, bound1=bound1)
        first = operands.operator_among(call, "comp_op0", comp_op0, _RANGE_COMPARISONS)
        second = operands.operator_among(call, "comp_op1", comp_op1, _RANGE_COMPARISONS)
        operands.operator_among(call, "reduce_op", reduce_op, (_MAXIMUM.name,))
        accumulation.require_command(call, reduce_cmd)
        _check_constants(call, range_start, on_false_value)
        rules.numeric(call, "on_true_tile", on_true_tile, core.hardware, rules.ON_CHIP)
        rules.numeric(call, "dst", dst, core.hardware, rules.ON_CHIP)
        rules.writable(call, "dst", dst)
        rules.same_elements(call, "on_true_tile", on_true_tile, "dst", dst)
        rules.dtype(call, "on_true_tile", on_true_tile, accumulation.FLOATS)
        for operand, bound in (("bound0", bound0), ("bound1", bound1)):
            operands.check_scalar(call, operand, bound, on_true_tile, (float32,))
        _check_range(call, dst, range_start)
        accumulation.check_vector(call, on_true_tile, reduce_cmd, _RANGE_COMMANDS, reduce_res)
        plan = core.plans[key] = first, second
    first, second = plan
    reads = (on_true_tile.region, bound0.region, bound1.region)
    writes = (dst.region,) if reduce_res is None else (dst.region, reduce_res.region)
    issued = core.emit("range_select", Engine.vector, writes, reads, name, (first.name, second.name))
    if core.numerics:
        rows = (dst.shape[0], prod(dst.shape[1:]))
        positions = np.arange(range_start, range_start + rows[1]).astype(np.float32)
        low, high = (operands.scalar(call, n, t, 2) for n, t in (("bound0", bound0), ("bound1", bound1)))
        chosen = (first.apply(positions, low) != 0) & (second.apply(positions, high) != 0)
        values = operands.shaped(call, "on_true_tile", on_true_tile, rows, chosen)
        results = np.where(chosen, values, np.float32(FP32_MIN))
        accumulation.finish_vector(call, core, dst, on_true_tile, _MAXIMUM, reduce_cmd, results, reduce_res)
    return issued


def _check_constants(call: str, range_start: Any, on_false_value: Any) -> None:
    if not rules.is_integer(range_start):
        raise ArgumentError(
            f"{call}: range_start is {range_start!r}; accepted: an integer known when the kernel is traced"
        )
    number = rules.is_number(on_false_value)
    if not number or operands.constant(on_false_value) != np.float32(FP32_MIN):
        raise ArgumentError(f"{call}: on_false_value is {on_false_value!r}; accepted: -3.4028235e+38, the lowest fp32")


def _check_range(call: str, dst: NkiTensor, start: int) -> None:
    last = start + prod(dst.shape[1:]) - 1
    if start < -_EXACT_INDEX or last > _EXACT_INDEX:
        raise OutOfBoundsError(f"{call}: positions {start} to {last}; accepted: within 2^24, where fp32 is exact")
