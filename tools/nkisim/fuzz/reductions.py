"""Reductions, scans and the largest elements."""

from __future__ import annotations

import numpy as np

from fuzz import formats
from fuzz.operators import BITS, FP32_ERROR, UNINITIALIZED, Array, applied, floats_beside, missing, scalar_operand
from fuzz.oracle import Effect, Operand, Result, exact, within
from fuzz.session import Session, apart


def tensor_reduce(session: Session) -> None:
    """The last free dimensions."""
    op = session.sample(
        ("add", "maximum", "minimum", "multiply", "subtract", "bitwise_and", "bitwise_or", "logical_or")
    )
    bitwise = op in BITS
    kinds = tuple(d for d in session.dtypes if d in formats.INTEGERS) if bitwise else session.dtypes
    data = session.source_operand(kinds)
    rank = len(data.shape)
    first = session.integer(1, rank - 1)
    left = int(np.prod(data.shape[1:first]))
    outputs = tuple(d for d in kinds if d.itemsize == data.dtype.itemsize) if bitwise else floats_beside(session)
    dst = session.result(data.shape[0], left, outputs)
    if not apart(dst, data):
        return
    negate = not bitwise and session.chance(3)
    axis = tuple(range(first, rank)) if session.chance(2) else tuple(range(first - rank, 0))

    def effect() -> Effect:
        if missing(data):
            return UNINITIALIZED
        groups = (data.shape[0], left, -1)
        if bitwise:
            bits = np.array(data.model.array).reshape(groups).view(f"u{data.dtype.itemsize}")
            reduced = np.bitwise_and.reduce(bits, axis=2) if op == "bitwise_and" else np.bitwise_or.reduce(bits, axis=2)
            return [Result(dst, bits=reduced.view(dst.dtype.storage))]
        return [_reduced(dst, op, data.values().reshape(groups), -1.0 if negate else 1.0)]

    session.call("tensor_reduce", effect, dst=dst, op=f"nl.{op}", data=data, axis=repr(axis), negate=repr(negate))


def _reduced(dst: Operand, op: str, values: Array, sign: float) -> Result:
    count = values.shape[2]
    free = ~np.isfinite(values).all(2)
    with np.errstate(all="ignore"):
        if op in ("maximum", "minimum"):
            found = values.max(2) if op == "maximum" else values.min(2)
            return exact(dst, sign * found, free | (found == 0))
        if op == "logical_or":
            return exact(dst, sign * (values != 0).any(2), free)
        if op == "multiply":
            found = values.prod(2)
            sizes = np.cumprod(np.abs(values), axis=2)
            free |= (sizes.max(2) > 1e37) | ((sizes > 0).all(2) & (sizes.min(2) < 1e-35))
            return within(dst, sign * found, np.abs(found) * count * FP32_ERROR, free)
        found = values.sum(2) if op == "add" else 2 * values[:, :, 0] - values.sum(2)
        sizes = np.abs(values).sum(2)
        return within(dst, sign * found, sizes * count * FP32_ERROR, free | (sizes > 1e37))


def max8(session: Session) -> None:
    """The eight largest of each partition."""
    partitions, elements = session.sample((1, 4, 33, 128)), session.integer(8, 24)
    src = session.loaded(partitions, elements, session.sample(session.dtypes), dims=1)
    dst = session.tile((partitions, 8), session.sample(session.dtypes), "sbuf")

    def effect() -> Effect:
        rows = src.rows()
        found = -np.sort(-rows, axis=1)[:, :8]
        free = np.isnan(rows).any(1)[:, None] | (found == 0)
        return [exact(dst, found, free)]

    session.call("max8", effect, dst=dst, src=src)


def tensor_partition_reduce(session: Session) -> None:
    """Across partitions, on GpSimd."""
    op = session.sample(("add", "maximum"))
    data = session.source_operand(session.dtypes, ("sbuf",))
    dst = session.result(1, data.elements, floats_beside(session), ("sbuf",))
    if not apart(dst, data):
        return

    def effect() -> Effect:
        if missing(data):
            return UNINITIALIZED
        return [_reduced(dst, op, data.rows().T[None], 1.0)]

    session.call("tensor_partition_reduce", effect, dst=dst, op=f"nl.{op}", data=data)


def _scan(op: str, values: Array, register: Array, swapped: bool) -> tuple[Array, Array]:
    return applied(op, values, register) if swapped else applied(op, register, values)


def tensor_tensor_scan(session: Session) -> None:
    """r = (data0 op0 r) op1 data1."""
    data0 = session.source_operand(session.dtypes)
    data1 = session.like(data0, session.dtypes)
    dst = session.result(data0.shape[0], data0.elements, floats_beside(session))
    shown, initial, tiles = scalar_operand(session, data0.shape[0])
    if not all(apart(dst, o) for o in (data0, data1, *tiles)):
        return
    op0, op1 = (session.sample(("add", "subtract", "multiply", "maximum", "minimum")) for _ in range(2))

    def effect() -> Effect:
        if missing(data0, data1, *tiles):
            return UNINITIALIZED
        x, y = data0.rows(), data1.rows()
        register = np.broadcast_to(initial(), (x.shape[0], 1))[:, 0]
        free = np.zeros(x.shape[0], np.bool_)
        columns, unknown = [], []
        for column in range(x.shape[1]):
            inner, first = applied(op0, x[:, column], register)
            register, second = applied(op1, inner, y[:, column])
            free = free | first | second
            columns.append(register)
            unknown.append(free)
        return [exact(dst, np.stack(columns, 1), np.stack(unknown, 1))]

    session.call(
        "tensor_tensor_scan", effect, dst=dst, data0=data0, data1=data1, initial=shown, op0=f"nl.{op0}", op1=f"nl.{op1}"
    )
