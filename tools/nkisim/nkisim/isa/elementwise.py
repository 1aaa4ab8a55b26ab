"""Elementwise arithmetic of the Vector, Scalar and GpSimd Engines."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim import machine, memory
from nkisim.dtypes import float32, int32, uint32
from nkisim.enums import engine as Engine
from nkisim.errors import ArgumentError, EngineError
from nkisim.instruction import NkiInstruction
from nkisim.isa import operands, rules
from nkisim.numerics.alu import Operator
from nkisim.tensor import NkiTensor

_ARITHMETIC, _ANY_BINARY = ("arithmetic",), ("arithmetic", "bitvec")
_ALL_KINDS = ("arithmetic", "bitvec", "unary")
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

    Arithmetic happens in fp32, except that 32-bit integers on GpSimd (the default for them) are exact. Bit operators
    work on the bits of integers.

    Args:
        dst, data1, data2: tiles with as many partitions and elements per partition; the inputs not both in PSUM.
        op: a binary operator; `nl.power` runs on GpSimd, which cannot reach PSUM.
        engine: vector or gpsimd.
    """
    call = "nisa.tensor_tensor"
    core = machine.core(call)
    rules.require_tensors(call, dst=dst, data1=data1, data2=data2)
    operator = operands.operator(call, "op", op, _ANY_BINARY)
    key = (call, operator.name, dst.signature, data1.signature, data2.signature, engine)
    chosen = _tensor_tensor_engine(call, operator, engine, dst, data1, data2)
    if key not in core.checked:
        for operand, tensor in (("dst", dst), ("data1", data1), ("data2", data2)):
            rules.tile(call, operand, tensor, core.hardware, rules.ON_CHIP)
        rules.writable(call, "dst", dst)
        rules.same_elements(call, "data1", data1, "dst", dst)
        rules.same_elements(call, "data2", data2, "dst", dst)
        rules.not_both_in_psum(call, "data1", data1, "data2", data2)
        rules.gpsimd_reach(call, chosen, dst=dst, data1=data1, data2=data2)
        operands.check_integers(call, operator, dst=dst, data1=data1, data2=data2)
        core.checked.add(key)
    issued = core.emit("tensor_tensor", chosen, (dst.region,), (data1.region, data2.region), name, operator.name)
    if core.numerics:
        exact = operator.kind == "bitvec" or (chosen is Engine.gpsimd and _integers(dst, data1, data2))
        if exact:
            x, y = (memory.read(call, n, t).reshape(dst.shape) for n, t in (("data1", data1), ("data2", data2)))
        else:
            x, y = (
                operands.shaped(call, "data1", data1, dst.shape),
                operands.shaped(call, "data2", data2, dst.shape),
            )
        memory.write(dst, apply(operator, x, y))
    return issued


def _integers(*tensors: NkiTensor) -> bool:
    return all(t.dtype in (int32, uint32) for t in tensors)


def _tensor_tensor_engine(call: str, op: Operator, asked: Engine, *tensors: NkiTensor) -> Engine:
    if op.name == "power":
        return rules.choose_engine(call, asked, (Engine.gpsimd,))
    chosen = rules.choose_engine(call, asked, (Engine.vector, Engine.gpsimd))
    in_psum = any(t.buffer is rules.PSUM for t in tensors)
    if asked is Engine.unknown and op.kind == "arithmetic" and _integers(*tensors) and not in_psum:
        return Engine.gpsimd
    return chosen


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
        operand0, operand1: numbers, or fp32 tiles (partitions, 1); operand0 is None or 0 with a unary op0.
        op1: optional; of the same kind (bits or arithmetic) as op0.
        reverse0, reverse1: swap the sides of an operator.
        engine: vector, scalar (on trn2 only multiply-add, multiply or add) or gpsimd (rsqrt only).
    """
    call = "nisa.tensor_scalar"
    core = machine.core(call)
    rules.require_tensors(call, dst=dst, data=data)
    first = operands.operator(call, "op0", op0, _ALL_KINDS)
    second = operands.operator(call, "op1", op1, _ALL_KINDS) if op1 is not None else None
    chosen = _tensor_scalar_engine(call, core, engine, first, second)
    names = (first.name, second.name if second else None)
    key = (call, names, dst.signature, data.signature, *operands.signatures(operand0, operand1), chosen)
    if key not in core.checked:
        _check_tensor_scalar(call, core, dst, data, first, operand0, second, operand1, chosen)
        core.checked.add(key)
    reads = (data.region, *operands.regions(operand0, operand1))
    issued = core.emit("tensor_scalar", chosen, (dst.region,), reads, name, names)
    if core.numerics:
        memory.write(dst, _scalar_chain(call, dst, data, first, operand0, reverse0, second, operand1, reverse1))
    return issued


def _tensor_scalar_engine(
    call: str, core: machine.Core, asked: Engine, first: Operator, second: Operator | None
) -> Engine:
    if first.kind == "bitvec":
        return rules.choose_engine(call, asked, (Engine.vector,))
    if asked is Engine.gpsimd and first.name != "rsqrt":
        raise EngineError(f"{call}: engine gpsimd with nl.{first.name}; accepted there: nl.rsqrt")
    pair = (first.name, second.name if second else None)
    if asked is Engine.scalar and core.hardware.name == "trn2" and pair not in _SCALAR_ENGINE_PAIRS_TRN2:
        raise EngineError(
            f"{call}: engine scalar on trn2 with op0 nl.{pair[0]}, op1 {pair[1] and 'nl.' + pair[1]}; "
            f"accepted: multiply then add, multiply alone, add alone"
        )
    return rules.choose_engine(call, asked, (Engine.vector, Engine.scalar, Engine.gpsimd))


def _check_tensor_scalar(
    call: str,
    core: machine.Core,
    dst: NkiTensor,
    data: NkiTensor,
    first: Operator,
    operand0: Any,
    second: Operator | None,
    operand1: Any,
    chosen: Engine,
) -> None:
    rules.tile(call, "data", data, core.hardware, rules.ON_CHIP)
    rules.tile(call, "dst", dst, core.hardware, rules.ON_CHIP)
    rules.writable(call, "dst", dst)
    rules.same_elements(call, "dst", dst, "data", data)
    rules.gpsimd_reach(call, chosen, dst=dst, data=data, operand0=operand0, operand1=operand1)
    operands.check_integers(call, first, dst=dst, data=data)
    bits = first.kind == "bitvec"
    if second is not None and (second.kind == "bitvec") is not bits:
        raise ArgumentError(
            f"{call}: op0 nl.{first.name} and op1 nl.{second.name}; accepted: both bits or both arithmetic"
        )
    for operand, op, value in (("operand0", first, operand0), ("operand1", second, operand1)):
        if op is None or op.kind == "unary":
            if value is not None and not (not isinstance(value, NkiTensor) and value == 0):
                raise ArgumentError(f"{call}: {operand} is {value!r} without a binary operator; accepted: None or 0")
        else:
            operands.check_scalar(call, operand, value, data, None if bits else (float32,))


def _scalar_chain(
    call: str,
    dst: NkiTensor,
    data: NkiTensor,
    first: Operator,
    operand0: Any,
    reverse0: bool,
    second: Operator | None,
    operand1: Any,
    reverse1: bool,
) -> np.ndarray:
    bits = first.kind == "bitvec"
    values = (
        memory.read(call, "data", data).reshape(dst.shape) if bits else operands.shaped(call, "data", data, dst.shape)
    )
    for operand, op, value, swapped in (
        ("operand0", first, operand0, reverse0),
        ("operand1", second, operand1, reverse1),
    ):
        if op is None:
            continue
        if op.kind == "unary":
            values = op.apply(values)
            continue
        other = (
            _bits_scalar(call, operand, value, values) if bits else operands.scalar(call, operand, value, values.ndim)
        )
        values = apply(op, other, values) if swapped else apply(op, values, other)
    return values


def _bits_scalar(call: str, operand: str, value: Any, like: np.ndarray) -> Any:
    if isinstance(value, NkiTensor):
        return memory.read(call, operand, value).astype(like.dtype).reshape(-1, *[1] * (like.ndim - 1))
    return np.asarray(value).astype(like.dtype)


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
) -> NkiInstruction:
    """`dst = (data <op0> operand0) <op1> operand1` on the Vector Engine, in fp32, rounded once.

    Args:
        dst, data, operand1: tiles with as many partitions and elements per partition; data and operand1 not both
            in PSUM.
        operand0: a number or a tile (partitions, 1).
        op0, op1: arithmetic operators.
        reverse0, reverse1: swap the sides of an operator.
    """
    call = "nisa.scalar_tensor_tensor"
    core = machine.core(call)
    rules.require_tensors(call, dst=dst, data=data, operand1=operand1)
    first = operands.operator(call, "op0", op0, _ARITHMETIC)
    second = operands.operator(call, "op1", op1, _ARITHMETIC)
    key = (call, dst.signature, data.signature, operand1.signature, *operands.signatures(operand0))
    if key not in core.checked:
        for operand, tensor in (("dst", dst), ("data", data), ("operand1", operand1)):
            rules.tile(call, operand, tensor, core.hardware, rules.ON_CHIP)
        rules.writable(call, "dst", dst)
        rules.same_elements(call, "dst", dst, "data", data)
        rules.same_elements(call, "operand1", operand1, "data", data)
        rules.not_both_in_psum(call, "data", data, "operand1", operand1)
        operands.check_scalar(call, "operand0", operand0, data, None)
        core.checked.add(key)
    reads = (data.region, *operands.regions(operand0), operand1.region)
    issued = core.emit("scalar_tensor_tensor", Engine.vector, (dst.region,), reads, name, (first.name, second.name))
    if core.numerics:
        values = operands.shaped(call, "data", data, dst.shape)
        other = operands.scalar(call, "operand0", operand0, values.ndim)
        values = apply(first, other, values) if reverse0 else apply(first, values, other)
        other = operands.shaped(call, "operand1", operand1, dst.shape)
        memory.write(dst, apply(second, other, values) if reverse1 else apply(second, values, other))
    return issued


def apply(op: Operator, x: Any, y: Any) -> np.ndarray:
    """`x <op> y` without numpy's warnings: overflow and invalid values are the hardware's inf and NaN."""
    with np.errstate(all="ignore"):
        result: np.ndarray = op.apply(x, y)
    return result
