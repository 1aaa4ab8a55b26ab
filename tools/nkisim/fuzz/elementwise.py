"""Elementwise arithmetic of the Vector, Scalar and GpSimd Engines."""

from __future__ import annotations

import numpy as np

from fuzz import formats
from fuzz.operators import (
    BINARY,
    BITS,
    FUNCTIONS,
    UNINITIALIZED,
    Array,
    applied,
    drawn_stage,
    floats_beside,
    missing,
    operators_of,
    scalar_operand,
)
from fuzz.oracle import Effect, Result, exact
from fuzz.session import Session, apart
from nkisim.dtypes import DType

_RELATIVE = 2.0**-19


_TINY = 2.0**-126


def tensor_tensor(session: Session) -> None:
    """Arithmetic in fp32, or exactly for 32-bit integers on GpSimd."""
    data1 = session.source_operand(session.dtypes)
    data2 = session.like(data1, session.dtypes)
    dst = session.result(data1.shape[0], data1.elements, floats_beside(session))
    if not (apart(dst, data1) and apart(dst, data2)):
        return
    op = session.sample(operators_of(session))
    wide = all(o.dtype in ("int32", "uint32") for o in (dst, data1, data2))
    in_psum = "psum" in (dst.tensor.buffer, data1.tensor.buffer, data2.tensor.buffer)
    asked = session.sample(("unknown", "vector") if in_psum else ("unknown", "vector", "gpsimd"))
    wraps = wide and (asked == "gpsimd" or (asked == "unknown" and not in_psum))

    def effect() -> Effect:
        if missing(data1, data2):
            return UNINITIALIZED
        if wraps:
            return [Result(dst, bits=_wrapped(op, data1.integers(), data2.integers(), dst.dtype))]
        values, free = applied(op, data1.rows(), data2.rows())
        return [exact(dst, values, free)]

    session.call(
        "tensor_tensor", effect, dst=dst, data1=data1, data2=data2, op=f"nl.{op}", engine=f"nisa.engine.{asked}"
    )


def _wrapped(op: str, x: Array, y: Array, dtype: DType) -> Array:
    """32-bit integers, modulo 2^32."""
    with np.errstate(all="ignore"):
        if op == "multiply":
            values = (x.astype(np.uint64) * y.astype(np.uint64)).astype(np.int64)
        elif op in ("add", "subtract"):
            values = x + y if op == "add" else x - y
        elif op in ("maximum", "minimum"):
            values = np.maximum(x, y) if op == "maximum" else np.minimum(x, y)
        elif op in ("abs_max", "abs_min"):
            values = np.where(np.abs(x) > np.abs(y) if op == "abs_max" else np.abs(x) < np.abs(y), x, y)
        else:
            values = BINARY[op](x.astype(np.float64), y.astype(np.float64))[0].astype(np.int64)
    return (values & 0xFFFFFFFF).astype(np.uint32).view(dtype.storage)


def tensor_tensor_bits(session: Session) -> None:
    """Bit operators on integers of one width."""
    width = session.sample((1, 2, 4))
    kinds = tuple(d for d in session.dtypes if d in formats.INTEGERS and d.itemsize == width)
    data1 = session.source_operand(kinds)
    data2 = session.like(data1, kinds)
    dst = session.result(data1.shape[0], data1.elements, kinds)
    if not (apart(dst, data1) and apart(dst, data2)):
        return
    op = session.sample(BITS)

    def effect() -> Effect:
        if missing(data1, data2):
            return UNINITIALIZED
        x, y = (np.array(o.model.array).reshape(dst.shape).view(f"u{width}") for o in (data1, data2))
        free = y >= 8 * width if "shift" in op else None
        with np.errstate(all="ignore"):
            return [Result(dst, bits=BITS[op](x, y).view(dst.dtype.storage), free=free)]

    session.call("tensor_tensor", effect, dst=dst, data1=data1, data2=data2, op=f"nl.{op}")


def tensor_scalar(session: Session) -> None:
    """One or two stages."""
    data = session.source_operand(session.dtypes)
    parameters, first, tiles = drawn_stage(session, 0, data.shape[0])
    stages = [first]
    if session.chance(2):
        more, second, others = drawn_stage(session, 1, data.shape[0])
        parameters |= more
        stages.append(second)
        tiles += others
    dst = session.result(data.shape[0], data.elements, floats_beside(session))
    if not all(apart(dst, o) for o in (data, *tiles)):
        return

    def effect() -> Effect:
        if missing(data, *tiles):
            return UNINITIALIZED
        values, free = data.rows(), np.zeros((data.shape[0], data.elements), np.bool_)
        for stage in stages:
            values, undocumented = stage(values)
            free = free | undocumented
        return [exact(dst, values, free)]

    session.call("tensor_scalar", effect, dst=dst, data=data, **parameters)


def tensor_scalar_bits(session: Session) -> None:
    """A bit operator with an integer."""
    kinds = tuple(d for d in session.dtypes if d in formats.INTEGERS)
    data = session.source_operand(kinds)
    bits = 8 * data.dtype.itemsize
    dst = session.result(data.shape[0], data.elements, tuple(d for d in kinds if d.itemsize == data.dtype.itemsize))
    if not apart(dst, data):
        return
    op, number = session.sample(BITS), session.integer(0, bits - 1)

    def effect() -> Effect:
        if missing(data):
            return UNINITIALIZED
        x = np.array(data.model.array).reshape(dst.shape).view(f"u{data.dtype.itemsize}")
        return [Result(dst, bits=BITS[op](x, x.dtype.type(number)).view(dst.dtype.storage))]

    session.call("tensor_scalar", effect, dst=dst, data=data, op0=f"nl.{op}", operand0=repr(number))


def scalar_tensor_tensor(session: Session) -> None:
    """(data op0 operand0) op1 operand1."""
    data = session.source_operand(session.dtypes)
    other = session.like(data, session.dtypes)
    dst = session.result(data.shape[0], data.elements, floats_beside(session))
    shown, values, tiles = scalar_operand(session, data.shape[0])
    if not all(apart(dst, o) for o in (data, other, *tiles)):
        return
    op0, op1 = session.sample(operators_of(session)), session.sample(operators_of(session))
    swap0, swap1 = session.chance(3), session.chance(3)

    def effect() -> Effect:
        if missing(data, other, *tiles):
            return UNINITIALIZED
        x, y, z = data.rows(), values(), other.rows()
        inner, free = applied(op0, y, x) if swap0 else applied(op0, x, y)
        outer, more = applied(op1, z, inner) if swap1 else applied(op1, inner, z)
        return [exact(dst, outer, free | more)]

    session.call(
        "scalar_tensor_tensor", effect, dst=dst, data=data, op0=f"nl.{op0}", operand0=shown, op1=f"nl.{op1}",
        operand1=other, reverse0=repr(swap0), reverse1=repr(swap1),
    )  # fmt: skip


def reciprocal(session: Session) -> None:
    """1 / data."""
    data = session.source_operand(session.dtypes)
    dst = session.result(data.shape[0], data.elements, floats_beside(session))
    if not apart(dst, data):
        return

    def effect() -> Effect:
        if missing(data):
            return UNINITIALIZED
        with np.errstate(all="ignore"):
            return [exact(dst, formats.fp32(1.0 / data.rows()))]

    session.call("reciprocal", effect, dst=dst, data=data)


def activation(session: Session) -> None:
    """A function of data * scale + bias."""
    data = session.source_operand(session.dtypes)
    dst = session.result(data.shape[0], data.elements, floats_beside(session))
    scale, scales, tiles = scalar_operand(session, data.shape[0])
    bias, biases, others = scalar_operand(session, data.shape[0])
    if not all(apart(dst, o) for o in (data, *tiles, *others)):
        return
    op = session.sample(FUNCTIONS)

    def effect() -> Effect:
        if missing(data, *tiles, *others):
            return UNINITIALIZED
        with np.errstate(all="ignore"):
            inputs = formats.fp32(formats.fp32(data.rows() * scales()) + biases())
            free = ~np.isfinite(inputs)
            safe = np.where(free, 0.0, inputs)
            values = np.array([FUNCTIONS[op](float(x)) for x in safe.reshape(-1)]).reshape(safe.shape)
            width = (
                np.zeros_like(values) if op in ("copy", "relu", "abs", "sign") else np.abs(values) * _RELATIVE + _TINY
            )
            low, high = values - width, values + width
        return [Result(dst, np.where(np.isnan(low), values, low), np.where(np.isnan(high), values, high), free=free)]

    session.call("activation", effect, dst=dst, op=f"nl.{op}", data=data, bias=bias, scale=scale)
