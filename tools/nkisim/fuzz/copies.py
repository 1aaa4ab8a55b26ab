"""Copies and fills by the compute engines."""

from __future__ import annotations

import numpy as np

from fuzz import formats
from fuzz.operators import BY_NAME, UNINITIALIZED, floats_beside, missing
from fuzz.oracle import Effect, Result, copied, exact, moved
from fuzz.session import Session, apart, writable


def tensor_copy(session: Session) -> None:
    """On any engine."""
    src = session.source_operand(session.dtypes)
    dst = session.result(src.shape[0], src.elements, floats_beside(session))
    if not apart(dst, src):
        return
    engines = ["vector", "scalar", "unknown"]
    if "psum" not in (dst.tensor.buffer, src.tensor.buffer):
        engines.append("gpsimd")
    session.call(
        "tensor_copy",
        lambda: copied(dst, src, through_fp32=True),
        dst=dst,
        src=src,
        engine=f"nisa.engine.{session.sample(engines)}",
    )


def memset(session: Session) -> None:
    """A constant that the type holds."""
    dst = session.result(
        session.sample((1, 3, 32, 128)), session.integer(1, 16), (*floats_beside(session), BY_NAME["bool"])
    )
    if dst.dtype in formats.INTEGERS:
        value: float = session.integer(*formats.limits(dst.dtype))
    else:
        value = session.sample((0, 1, -1, 0.1, -2.5, 1000.7, 3e5, 448.0, 1e-7))

    def effect() -> Effect:
        if dst.dtype in formats.INTEGERS:
            return [Result(dst, bits=np.full(dst.shape, value, dst.dtype.storage))]
        return [exact(dst, formats.fp32(np.full(dst.shape, float(value))))]

    session.call("memset", effect, dst=dst, value=repr(value))


def tensor_copy_predicated(session: Session) -> None:
    """A copy where a predicate holds."""
    dst = session.source_operand(session.dtypes)
    if not writable(dst):
        return
    predicate = session.like(dst, tuple(BY_NAME[n] for n in ("uint8", "uint16", "uint32")))
    src = session.like(dst, (dst.dtype,))
    if not (apart(dst, src) and apart(dst, predicate)):
        return
    reverse = session.chance(2)

    def effect() -> Effect:
        if missing(predicate):
            return UNINITIALIZED
        chosen = (np.array(predicate.model.array).reshape(dst.shape) != 0) != reverse
        if (src.unwritten().reshape(dst.shape) & chosen).any():
            return UNINITIALIZED
        bits = np.array(src.model.array).reshape(dst.shape)
        return [Result(dst, bits=bits, kept=~chosen)]

    session.call("tensor_copy_predicated", effect, dst=dst, src=src, predicate=predicate, reverse_pred=repr(reverse))


def at_register(session: Session) -> None:
    """A copy from a place that a register holds."""
    src = session.source_operand(session.dtypes)
    dims = [d for d, n in enumerate(src.shape) if d and src.model.array.strides[d]]
    if not dims:
        return
    dim = session.sample(dims)
    position = session.integer(0, src.shape[dim] - 1)
    chosen = src.model.array.take(position, axis=dim)
    dst = session.result(src.shape[0], chosen.size // src.shape[0], (src.dtype,))
    if not apart(dst, src):
        return

    def effect() -> Effect:
        unwritten = src.unwritten().take(position, axis=dim)
        return moved(
            dst,
            src,
            np.array(src.model.array.take(position, axis=dim)).reshape(dst.shape),
            unwritten.reshape(dst.shape),
        )

    session.call("tensor_copy", effect, dst=dst, src=f"{src.source}.select({dim}, nisa.register_alloc({position}))")
