"""Instructions that work by position."""

from __future__ import annotations

import numpy as np

from fuzz import formats
from fuzz.operators import BINARY, BY_NAME, UNINITIALIZED, Array
from fuzz.oracle import Effect, exact
from fuzz.session import Session, apart


def iota(session: Session) -> None:
    """An affine pattern."""
    sizes = [session.integer(1, 4) for _ in range(session.integer(1, 4))]
    pattern = [[session.integer(-3, 5), size] for size in sizes]
    partitions = session.sample((1, 4, 32, 128))
    kinds = tuple(BY_NAME[n] for n in ("int32", "float32", "bfloat16"))
    dst = session.result(partitions, int(np.prod(sizes)), kinds, ("sbuf",))
    offset, multiplier = session.integer(-20, 20), session.integer(-3, 9)

    def effect() -> Effect:
        return [exact(dst, _affine(pattern, offset, multiplier, partitions).astype(np.float64))]

    session.call(
        "iota", effect, dst=dst, pattern=repr(pattern), offset=repr(offset), channel_multiplier=repr(multiplier)
    )


def _affine(pattern: list[list[int]], offset: int, multiplier: int, partitions: int) -> Array:
    values = np.arange(partitions)[:, None] * multiplier + offset
    for step, size in pattern:
        values = (values[:, :, None] + np.arange(size) * step).reshape(partitions, -1)
    return values


def affine_select(session: Session) -> None:
    """Elements chosen by position."""
    data = session.source_operand(session.dtypes, ("sbuf",))
    dst = session.result(data.shape[0], data.elements, (*session.dtypes,), ("sbuf",))
    if not apart(dst, data):
        return
    op = session.sample(("equal", "not_equal", "greater", "greater_equal", "less", "less_equal"))
    pattern, offset, multiplier = (
        [[session.integer(-2, 3), data.elements]],
        session.integer(-9, 9),
        session.integer(-2, 2),
    )
    fill = session.sample((0, 1, 2.5, -1))

    def effect() -> Effect:
        places = _affine(pattern, offset, multiplier, data.shape[0]).astype(np.float64)
        chosen = BINARY[op](places, np.zeros_like(places))[0] != 0
        if (data.unwritten().reshape(chosen.shape) & chosen).any():
            return UNINITIALIZED
        other = formats.fp32(np.full(chosen.shape, float(fill)))
        values = np.where(chosen, data.rows(), other)
        if dst.dtype is not data.dtype:
            return [exact(dst, values)]
        wide = dst.dtype in ("int32", "uint32")
        return [exact(dst, values, chosen if wide else None)]

    session.call(
        "affine_select", effect, dst=dst, pattern=repr(pattern), channel_multiplier=repr(multiplier),
        on_true_tile=data, on_false_value=repr(fill), cmp_op=f"nl.{op}", offset=repr(offset),
    )  # fmt: skip
