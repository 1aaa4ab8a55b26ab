"""Loops that the device runs, and registers."""

from __future__ import annotations

import numpy as np

from fuzz import formats
from fuzz.operators import BY_NAME, UNINITIALIZED, applied, floats_beside, missing
from fuzz.oracle import Effect, Fault, Operand, Result, copied, exact
from fuzz.session import Session


def _flat(session: Session) -> tuple[Operand, Operand]:
    """Two tiles of one type and shape (partitions, columns), the second new and with numbers in it."""
    partitions, columns = session.sample((1, 4, 32, 128)), session.integer(2, 16)
    src = session.loaded(partitions, columns, session.sample(session.dtypes), dims=1)
    fitting = [
        t
        for t in session.tensors.values()
        if (t.buffer, t.shape, t.dtype) == ("sbuf", src.shape, src.dtype) and t is not src.tensor
    ]
    if fitting and session.chance(2):
        tensor = session.sample(fitting)
        model = tensor.model()
        assert model is not None
        return Operand(tensor, (), model), src
    return session.tile(src.shape, src.dtype, "sbuf"), src


def copy_columns(session: Session) -> None:
    """A loop that copies a few columns each time."""
    dst, src = _flat(session)
    columns = src.shape[1]
    width = session.integer(1, min(3, columns))
    step, lower = session.integer(1, 4), session.integer(0, columns)
    last = columns - width
    upper = session.integer(lower, last + 1) if lower <= last else lower + 1
    visited = range(lower, upper, step)

    def effect() -> Effect:
        if lower > last:
            return Fault("OutOfBoundsError")
        kept = np.ones(dst.shape, np.bool_)
        for i in visited:
            kept[:, i : i + width] = False
        return [Result(dst, bits=np.array(src.model.array), kept=kept)]

    bounds = [f"nisa.register_alloc({n})" if session.chance(3) else repr(n) for n in (lower, upper)]
    copy = f"nisa.tensor_copy({dst.source}[:, nl.ds(i, {width})], {src.source}[:, nl.ds(i, {width})])"
    if session.chance(2):
        statement = f"for i in nl.dynamic_range({bounds[0]}, {bounds[1]}, {step}): {copy}"
    else:
        statement = f"nl.fori_loop({bounds[0]}, {bounds[1]}, lambda i: {copy} and None, step={step})"
    session.perform(statement, effect)


def repeat(session: Session) -> None:
    """A loop that does the same to a tile each time, until a register holds 0."""
    data = session.source_operand(session.dtypes)
    if len(data.calls) or data.dtype not in floats_beside(session):
        return
    times, op = session.integer(0, 4), session.sample(("add", "multiply", "subtract", "maximum"))
    number = session.sample((0.5, -2.0, 3.0))

    def effect() -> Effect:
        if not times:
            return []
        if missing(data):
            return UNINITIALIZED
        values, free = data.rows(), np.zeros((data.shape[0], data.elements), np.bool_)
        for _ in range(times):
            results, unknown = applied(op, values, np.array([[number]]))
            values, free = formats.converted(results, data.dtype), free | unknown
        return [exact(data, values, free)]

    left = [*range(times - 1, -1, -1)]
    body = f"nisa.tensor_scalar({data.source}, {data.source}, nl.{op}, {number}), nisa.register_alloc(left.pop(0))"
    session.perform(f"nl.while_loop(nisa.register_alloc({times}), lambda r, left={left}: ({body})[1])", effect)


def through_register(session: Session) -> None:
    """An index that a register takes from one tile, and an integer that it puts into another."""
    dst, src = _flat(session)
    index = session.tile((1, 1), BY_NAME["int32"], "sbuf")
    number = session.part_of("x_rows", session.integer(0, 4000), 1)
    session.call("dma_copy", lambda: copied(index, number, through_fp32=False), dst=index, src=number)
    columns = dst.shape[1]

    def effect() -> Effect:
        column = int(index.integers()[0, 0])
        if column >= columns:
            return Fault("OutOfBoundsError")
        kept = np.ones(dst.shape, np.bool_)
        kept[:, column] = False
        return [Result(dst, bits=np.array(src.model.array), kept=kept)]

    at = f".select(1, nisa.register_alloc({index.source}))"
    session.call("tensor_copy", effect, dst=dst.source + at, src=src.source + at)
    stored = session.integer(-(1 << 31), (1 << 31) - 1)
    session.call(
        "register_store", lambda: [Result(index, bits=np.full((1, 1), stored, np.int32))],
        dst=index, src=f"nisa.register_alloc({stored})",
    )  # fmt: skip
