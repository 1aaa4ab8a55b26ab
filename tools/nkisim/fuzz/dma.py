"""What DMAs do: copies, gathers, scatters, transposes, sums."""

from __future__ import annotations

import numpy as np

from fuzz.operators import BY_NAME
from fuzz.oracle import Effect, Result, copied
from fuzz.session import Session, apart


def dma_copy(session: Session) -> None:
    """HBM to and from SBUF, in any shapes."""
    if session.chance(2):
        src = session.source_operand(session.dtypes, ("sbuf",))
    else:
        src = session.views_of(session.sample(t for t in session.tensors.values() if t.buffer == "shared_hbm"), 3)
    size = src.model.array.size
    if session.chance(2):
        shape = tuple(int(n) for n in src.shape) if session.chance(2) else (size,)
        dst = session.tile(shape, session.sample(session.dtypes), session.sample(("shared_hbm", "private_hbm")))
    else:
        partitions = session.sample([p for p in (1, 2, 4, 32, 128) if size % p == 0])
        dst = session.result(partitions, size // partitions, session.dtypes, ("sbuf",))
    if apart(dst, src):
        session.call("dma_copy", lambda: copied(dst, src, through_fp32=False), dst=dst, src=src)


def gather(session: Session) -> None:
    """Rows of a table in HBM, chosen by an index tile."""
    count, width = session.sample((1, 3, 8, 32)), session.integer(1, 12)
    table = session.part_of(f"x_{session.sample(session.dtypes)}", session.integer(0, 100), 8 * width)
    index = session.tile((count, 1), BY_NAME["int32"], "sbuf")
    numbers = session.part_of("x_rows", session.integer(0, 100), count)
    session.call("dma_copy", lambda: copied(index, numbers, through_fp32=False), dst=index, src=numbers)
    dst = session.result(count, width, (table.dtype,), ("sbuf",))

    def effect() -> Effect:
        rows = np.array(table.model.array).reshape(8, width)
        chosen = rows[index.integers()[:, 0]]
        return [Result(dst, bits=chosen.reshape(dst.shape))]

    session.call(
        "dma_copy", effect, dst=dst, src=f"{table.source}.reshape((8, {width})).vector_select(0, {index.source})"
    )


def scatter(session: Session) -> None:
    """Rows of a table in HBM, written by an index tile; of equal ones the last stays."""
    count, width = session.sample((1, 3, 8, 32)), session.integer(1, 12)
    src = session.loaded(count, width, session.sample(session.dtypes))
    table = session.tile((8, width), src.dtype, "private_hbm")
    index = session.tile((count, 1), BY_NAME["int32"], "sbuf")
    numbers = session.part_of("x_rows", session.integer(0, 100), count)
    session.call("dma_copy", lambda: copied(index, numbers, through_fp32=False), dst=index, src=numbers)

    def effect() -> Effect:
        bits, kept = np.array(table.model.array), np.ones(table.shape, np.bool_)
        for row, values in zip(index.integers()[:, 0], np.array(src.model.array).reshape(count, width), strict=True):
            bits[row], kept[row] = values, False
        return [Result(table, bits=bits, kept=kept)]

    session.call("dma_copy", effect, dst=f"{table.source}.vector_select(0, {index.source})", src=src)
