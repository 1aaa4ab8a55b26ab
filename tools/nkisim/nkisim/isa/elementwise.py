"""Elementwise arithmetic of the Vector, Scalar and GpSimd Engines."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim import machine, memory
from nkisim.deprecated import warn, without_dtype
from nkisim.dtypes import float32, int32, uint32
from nkisim.enums import engine as Engine
from nkisim.errors import ArgumentError, EngineError
from nkisim.instruction import NkiInstruction
from nkisim.isa import indirection, operands, rules
from nkisim.numerics.alu import Operator, apply
from nkisim.tensor import NkiTensor

_ARITHMETIC, _ANY_BINARY = ("arithmetic",), ("arithmetic", "bitvec")
_ALL_KINDS = ("arithmetic", "unary", "bitvec", "bitvec_unary")
_SCALAR_ENGINE_PAIRS_TRN2 = (("multiply", "add"), ("multiply", None), ("add", None))


def tensor_tensor(
    dst: NkiTensor,
    data1: NkiTensor,
    data2: NkiTensor,
    op: Any,
    engine: Engine = Engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = data1 <op> data2`, element by element.

    Arithmetic happens in fp32, except that 32-bit integers on GpSimd (the default for them) are exact and wrap, but
    for `nl.power`, whose integer results are not documented. Bit operators work on the bits of integers of one width;
    shifts are logical, also of signed types.

    Args:
        dst, data1, data2: tiles with as many partitions and elements per partition; the inputs not both in PSUM.
        op: a binary operator; `nl.power` runs on GpSimd, which cannot reach PSUM.
        engine: vector or gpsimd.
    """
    call = "nisa.tensor_tensor"
    core = machine.core(call)
    try:
        key = (call, op, dst.signature, data1.signature, data2.signature, engine)
        plan = core.plans.get(key)
    except (AttributeError, TypeError):
        key, plan = None, None
    if plan is None:
        plan = _plan_tensor_tensor(call, core, dst, data1, data2, op, engine)
        core.plans[key] = plan
    operator, chosen = plan
    issued = core.emit("tensor_tensor", chosen, (dst.region,), (data1.region, data2.region), name, operator.name)
    if core.numerics:
        _combine(call, dst, data1, data2, operator, exact=chosen is Engine.gpsimd and _integers(dst, data1, data2))
    return issued


def _plan_tensor_tensor(
    call: str, core: machine.Core, dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Any, asked: Any
) -> tuple[Operator, Engine]:
    """Checks the operands; the operator and the engine."""
    operator = operands.operator(call, "op", op, _ANY_BINARY)
    rules.require_tensors(call, dst=dst, data1=data1, data2=data2)
    chosen = _tensor_tensor_engine(call, operator, asked, dst, data1, data2)
    for operand, tensor in (("dst", dst), ("data1", data1), ("data2", data2)):
        rules.numeric(call, operand, tensor, core.hardware, rules.ON_CHIP)
    rules.writable(call, "dst", dst)
    indirection.check(call, chosen, dst, "data1", data1)
    rules.same_elements(call, "data1", data1, "dst", dst)
    rules.same_elements(call, "data2", data2, "dst", dst)
    rules.not_both_in_psum(call, "data1", data1, "data2", data2)
    rules.gpsimd_reach(call, chosen, dst=dst, data1=data1, data2=data2)
    operands.check_bits(call, operator, dst=dst, data1=data1, data2=data2)
    return operator, chosen


def _combine(call: str, dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, operator: Operator, *, exact: bool) -> None:
    if operator.is_bitvec:
        x, y = (operands.bits(call, n, t, dst.shape) for n, t in (("data1", data1), ("data2", data2)))
        operands.write_bits(dst, apply(operator, x, y))
        return
    if exact and operator.name != "power":
        x, y = (memory.read(call, n, t).reshape(dst.shape) for n, t in (("data1", data1), ("data2", data2)))
        results = apply(operator, x, y)
        if results.dtype.kind in "iu":
            operands.write_bits(dst, results.astype(np.uint32))
            return
    else:
        x, y = (operands.shaped(call, n, t, dst.shape) for n, t in (("data1", data1), ("data2", data2)))
        results = apply(operator, x, y)
    memory.write(dst, results)


def _integers(*tensors: NkiTensor) -> bool:
    """Whether all are 32-bit integers."""
    for tensor in tensors:
        kind = tensor.dtype
        if kind is not int32 and kind is not uint32:
            return False
    return True


def _tensor_tensor_engine(call: str, op: Operator, asked: Engine, *tensors: NkiTensor) -> Engine:
    if op.name == "power":
        return rules.choose_engine(call, asked, (Engine.gpsimd,))
    if asked is not Engine.unknown:
        return rules.choose_engine(call, asked, (Engine.vector, Engine.gpsimd))
    if op.is_bitvec or not _integers(*tensors) or any(t.buffer is rules.PSUM for t in tensors):
        return Engine.vector
    return Engine.gpsimd


def tensor_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: Engine = Engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = (data <op0> operand0) <op1> operand1`, the operands broadcast over the free dimensions.

    Args:
        dst, data: tiles with as many partitions and elements per partition.
        operand0, operand1: numbers, or tiles (partitions, 1) of fp32; with bit operators integers, or tiles of
            data's width; None or 0 with a unary operator, None without one.
        op1: optional; of the same kind (bits or arithmetic) as op0.
        reverse0, reverse1: swap the sides of an operator.
        engine: vector, scalar (on trn2 only multiply-add, multiply or add) or gpsimd (rsqrt only, its default
            where it reaches the tiles); vector with bit operators.
    """
    call = "nisa.tensor_scalar"
    core = machine.core(call)
    if reverse0 is not False or reverse1 is not False:
        rules.flags(call, reverse0=reverse0, reverse1=reverse1)
    try:
        columns = operands.signature(operand0), operands.signature(operand1)
        key = (call, op0, op1, dst.signature, data.signature, columns, engine)
        plan = core.plans.get(key)
    except (AttributeError, TypeError):
        key, plan = None, None
    if plan is None:
        plan = _plan_tensor_scalar(call, core, dst, data, op0, op1, operand0, operand1, engine)
        core.plans[key] = plan
    first, second, chosen, names = plan
    if first.is_unary or second is None or second.is_unary or first.is_bitvec:
        check_constant(call, "operand0", first, operand0, data)
        check_constant(call, "operand1", second, operand1, data)
    reads = (data.region, *operands.regions(operand0, operand1))
    issued = core.emit("tensor_scalar", chosen, (dst.region,), reads, name, names)
    if core.numerics:
        values = _input(call, "data", data, dst.shape, first)
        values = stage(call, first, "operand0", operand0, values, swapped=reverse0)
        if second is not None:
            values = stage(call, second, "operand1", operand1, values, swapped=reverse1)
        if first.is_bitvec:
            operands.write_bits(dst, values)
        else:
            memory.write(dst, values)
    return issued


def _tensor_scalar_engine(
    call: str, core: machine.Core, asked: Engine, first: Operator, second: Operator | None, *tensors: Any
) -> Engine:
    only_rsqrt = first.name == "rsqrt" and second is None
    if asked is Engine.unknown:
        in_psum = only_rsqrt and any(isinstance(t, NkiTensor) and t.buffer is rules.PSUM for t in tensors)
        return Engine.gpsimd if only_rsqrt and not in_psum else Engine.vector
    if first.is_bitvec:
        return rules.choose_engine(call, asked, (Engine.vector,))
    if asked is Engine.gpsimd and not only_rsqrt:
        raise EngineError(f"{call}: engine gpsimd with nl.{first.name}; accepted there: nl.rsqrt alone")
    pair = (first.name, second.name if second else None)
    if asked is Engine.scalar and core.hardware.name == "trn2" and pair not in _SCALAR_ENGINE_PAIRS_TRN2:
        raise EngineError(
            f"{call}: engine scalar on trn2 with op0 nl.{pair[0]}, op1 {pair[1] and 'nl.' + pair[1]}; "
            f"accepted: multiply then add, multiply alone, add alone"
        )
    return rules.choose_engine(call, asked, (Engine.vector, Engine.scalar, Engine.gpsimd))


def _plan_tensor_scalar(
    call: str,
    core: machine.Core,
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    op1: Any,
    operand0: Any,
    operand1: Any,
    asked: Any,
) -> tuple[Operator, Operator | None, Engine, tuple[str, str | None]]:
    """Checks the operands; the operators, the engine and the operators' names."""
    first = operands.operator(call, "op0", op0, _ALL_KINDS)
    second = operands.operator(call, "op1", op1, _ALL_KINDS) if op1 is not None else None
    rules.require_tensors(call, dst=dst, data=data)
    chosen = _tensor_scalar_engine(call, core, asked, first, second, dst, data, operand0)
    rules.numeric(call, "data", data, core.hardware, rules.ON_CHIP)
    rules.numeric(call, "dst", dst, core.hardware, rules.ON_CHIP)
    rules.writable(call, "dst", dst)
    rules.same_elements(call, "dst", dst, "data", data)
    operands.check_bits(call, first, dst=dst, data=data)
    if second is not None and second.is_bitvec is not first.is_bitvec:
        raise ArgumentError(
            f"{call}: op0 nl.{first.name} and op1 nl.{second.name}; accepted: both bits or both arithmetic"
        )
    for operand, op, value in (("operand0", first, operand0), ("operand1", second, operand1)):
        check_operand(call, operand, op, value, data)
    rules.gpsimd_reach(call, chosen, dst=dst, data=data, operand0=operand0, operand1=operand1)
    indirection.check(call, chosen, dst, "data", data)
    if not first.is_bitvec:
        indirection.check_no_addresses(call, dst, data)
    return first, second, chosen, (first.name, second.name if second is not None else None)


def check_operand(call: str, operand: str, op: Operator | None, value: Any, data: NkiTensor) -> None:
    """The scalar operand of a stage: a number or a tile that suits the operator."""
    if op is None or op.is_unary:
        return
    operands.check_scalar(call, operand, value, data, None if op.is_bitvec else (float32,))
    if isinstance(value, NkiTensor):
        operands.check_bits(call, op, data=data, **{operand: value})


def check_constant(call: str, operand: str, op: Operator | None, value: Any, data: NkiTensor) -> None:
    """What of a scalar operand depends on its value: none without a binary operator, integers with bit operators."""
    if op is None:
        if value is not None:
            raise ArgumentError(f"{call}: {operand} is {value!r} without an operator; accepted: None")
    elif op.is_unary:
        if value is not None and not (rules.is_number(value) and value == 0):
            raise ArgumentError(f"{call}: {operand} is {value!r} with nl.{op.name}; accepted: None or 0")
    elif op.is_bitvec and not isinstance(value, NkiTensor):
        bits = 8 * data.dtype.itemsize
        if not rules.is_integer(value) or not -(1 << (bits - 1)) <= value < 1 << bits:
            raise ArgumentError(
                f"{call}: {operand} is {value!r} with nl.{op.name}; accepted: an integer of {bits} bits"
            )


def _input(call: str, operand: str, tensor: NkiTensor, shape: tuple[int, ...], op: Operator) -> np.ndarray:
    return (operands.bits if op.is_bitvec else operands.shaped)(call, operand, tensor, shape)


def stage(call: str, op: Operator, operand: str, value: Any, values: np.ndarray, *, swapped: bool) -> np.ndarray:
    """One operator with its scalar operand, applied to all values."""
    if op.is_unary:
        return apply(op, values)
    if not op.is_bitvec:
        other = operands.scalar(call, operand, value, values.ndim)
    elif isinstance(value, NkiTensor):
        other = operands.bits(call, operand, value, (value.shape[0], *[1] * (values.ndim - 1)))
    else:
        other = values.dtype.type(int(value) % (1 << (8 * values.itemsize)))
    return apply(op, other, values) if swapped else apply(op, values, other)


@without_dtype
def scalar_tensor_tensor(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
    dtype: Any = None,
) -> NkiInstruction:
    """`dst = (data <op0> operand0) <op1> operand1` on the Vector Engine, in fp32, rounded once.

    Args:
        dst, data, operand1: tiles with as many partitions and elements per partition; data and operand1 not both
            in PSUM.
        operand0: a number or a tile (partitions, 1).
        op0, op1: arithmetic operators.
        reverse0, reverse1: swap the sides of an operator.
        dtype: deprecated, and without effect.
    """
    call = "nisa.scalar_tensor_tensor"
    core = machine.core(call)
    if dtype is not None:
        warn(f"{call}: dtype, which does nothing,", "dst of that type")
    if reverse0 is not False or reverse1 is not False:
        rules.flags(call, reverse0=reverse0, reverse1=reverse1)
    try:
        key = (call, op0, op1, dst.signature, data.signature, operand1.signature, operands.signature(operand0))
        plan = core.plans.get(key)
    except (AttributeError, TypeError):
        key, plan = None, None
    if plan is None:
        plan = _plan_scalar_tensor_tensor(call, core, dst, data, op0, operand0, op1, operand1)
        core.plans[key] = plan
    first, second, names = plan
    reads = (data.region, *operands.regions(operand0), operand1.region)
    issued = core.emit("scalar_tensor_tensor", Engine.vector, (dst.region,), reads, name, names)
    if core.numerics:
        values = operands.shaped(call, "data", data, dst.shape)
        values = stage(call, first, "operand0", operand0, values, swapped=reverse0)
        other = operands.shaped(call, "operand1", operand1, dst.shape)
        memory.write(dst, apply(second, other, values) if reverse1 else apply(second, values, other))
    return issued


def _plan_scalar_tensor_tensor(
    call: str, core: machine.Core, dst: NkiTensor, data: NkiTensor, op0: Any, operand0: Any, op1: Any, operand1: Any
) -> tuple[Operator, Operator, tuple[str, str]]:
    """Checks the operands; the operators and their names."""
    first = operands.operator(call, "op0", op0, _ARITHMETIC)
    second = operands.operator(call, "op1", op1, _ARITHMETIC)
    rules.require_tensors(call, dst=dst, data=data, operand1=operand1)
    for operand, tensor in (("dst", dst), ("data", data), ("operand1", operand1)):
        rules.numeric(call, operand, tensor, core.hardware, rules.ON_CHIP)
    rules.writable(call, "dst", dst)
    rules.same_elements(call, "dst", dst, "data", data)
    rules.same_elements(call, "operand1", operand1, "data", data)
    rules.not_both_in_psum(call, "data", data, "operand1", operand1)
    operands.check_scalar(call, "operand0", operand0, data, None)
    return first, second, (first.name, second.name)


def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """`dst = 1 / data` in fp32 on the Vector Engine.

    Args:
        dst, data: tiles with as many partitions and elements per partition.
    """
    call = "nisa.reciprocal"
    core = machine.core(call)
    rules.require_tensors(call, dst=dst, data=data)
    key = (call, dst.signature, data.signature)
    if key not in core.checked:
        rules.numeric(call, "data", data, core.hardware, rules.ON_CHIP)
        rules.numeric(call, "dst", dst, core.hardware, rules.ON_CHIP)
        rules.writable(call, "dst", dst)
        rules.same_elements(call, "dst", dst, "data", data)
        core.checked.add(key)
    issued = core.emit("reciprocal", Engine.vector, (dst.region,), (data.region,), name)
    if core.numerics:
        with np.errstate(all="ignore"):
            memory.write(dst, np.float32(1) / operands.shaped(call, "data", data, dst.shape))
    return issued
