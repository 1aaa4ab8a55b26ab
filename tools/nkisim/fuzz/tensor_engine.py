"""Products and transposes."""

from __future__ import annotations

import numpy as np

from fuzz import formats
from fuzz.operators import BY_NAME, FP32_ERROR, Array
from fuzz.oracle import Effect, Fault, Operand, moved, within
from fuzz.session import Session, apart

_TINY = 2.0**-126
"""Products below may be taken for zero."""


def nc_matmul(session: Session) -> None:
    """Products, also accumulating."""
    if not session.psum_left():
        return
    contraction, rows = session.sample((1, 3, 32, 64, 100, 128)), session.integer(1, 24)
    columns = session.integer(1, 24)
    narrow = [d for d in session.dtypes if d in formats.FLOATS and d != "float32"]
    kinds = [(a, b) for a in narrow for b in narrow if {a, b} != {"float8_e4m3", "float8_e4m3fn"}]
    left_kind, right_kind = session.sample([*kinds, (BY_NAME["float32"], BY_NAME["float32"])])
    stationary = session.loaded(contraction, rows, left_kind)
    moving = session.loaded(contraction, columns, right_kind)
    accepted = ["float32"] if session.target == "trn2" else ["float32", "bfloat16"]
    dst = session.result(rows, columns, tuple(BY_NAME[n] for n in accepted), ("psum",))
    accumulate = session.sample((None, None, False, True))
    foreign = session.target == "trn2" and dst.tensor.written.any() and accumulate is not False
    if foreign:
        return
    session.call(
        "nc_matmul", lambda: product(dst, stationary.rows(), moving.rows(), accumulate),
        dst=dst, stationary=stationary, moving=moving, accumulate=repr(accumulate),
    )  # fmt: skip


def product(dst: Operand, x: Array, y: Array, accumulate: bool | None) -> Effect:
    """`x.T @ y` into PSUM, or added to what is there, with sums in fp32 in any order."""
    unwritten = dst.unwritten()
    if accumulate is not False and unwritten.any() and (accumulate or not unwritten.all()):
        return Fault("AccumulationError")
    with np.errstate(all="ignore"):
        total, sizes = x.T @ y, np.abs(x).T @ np.abs(y)
        if accumulate is not False and not unwritten.any():
            total, sizes = total + dst.rows(), sizes + np.abs(dst.rows())
        error = sizes * (len(x) + 2) * FP32_ERROR + len(x) * _TINY
    return [within(dst, total, error, ~np.isfinite(sizes) | (sizes > 1e37))]


def nc_transpose(session: Session) -> None:
    """Bit by bit, on either engine."""
    data = session.source_operand(session.dtypes, ("sbuf",))
    rows, columns = data.shape[0], data.elements
    on_tensor = session.chance(2) and session.psum_left() and data.dtype.itemsize > 1 and columns <= 128
    if not on_tensor and (rows > 32 or columns > 32):
        return
    dst = session.result(columns, rows, (data.dtype,), ("psum",) if on_tensor else ("sbuf",))
    if not apart(dst, data):
        return

    def effect() -> Effect:
        flat = np.array(data.model.array).reshape(rows, columns)
        return moved(dst, data, flat.T.copy(), data.unwritten().reshape(rows, columns).T)

    engine = "tensor" if on_tensor else "vector"
    session.call("nc_transpose", effect, dst=dst, data=data, engine=f"nisa.engine.{engine}")
