"""What DMAs do: copies, gathers, scatters, transposes, sums."""

from __future__ import annotations

import numpy as np

from fuzz import formats
from fuzz.operators import BY_NAME, UNINITIALIZED, Array, missing
from fuzz.oracle import Effect, Fault, Operand, Result, copied, exact, moved
from fuzz.session import Session, apart
from fuzz.view_model import ViewCall
from nkisim.dtypes import DType


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


def _index(session: Session, count: int, dtype: str = "int32") -> Operand:
    """Row numbers below 8 in a tile (count, 1)."""
    index = session.tile((count, 1), BY_NAME[dtype], "sbuf")
    numbers = session.part_of("x_rows", session.integer(0, 100), count)
    session.call("dma_copy", lambda: copied(index, numbers, through_fp32=False), dst=index, src=numbers)
    return index


def _rows_of(table: Operand, index: Operand, skip: bool) -> tuple[Array, Array] | Fault:
    """Row numbers of a table, and which of them exist; all have to, unless others are left out."""
    rows = index.integers()[:, 0]
    present = rows < table.shape[0]
    if not skip and not present.all():
        return Fault("OutOfBoundsError")
    return rows, present


def gather(session: Session) -> None:
    """Rows of a table in HBM, chosen by an index tile; those that do not exist may be left out."""
    count, width, rows = session.sample((1, 3, 8, 32)), session.integer(1, 12), session.sample((8, 8, 5))
    table = _table(session, rows, width)
    index, skip = _index(session, count), session.chance(2)
    dst = session.result(count, width, (table.dtype,), ("sbuf",))

    def effect() -> Effect:
        found = _rows_of(table, index, skip)
        if isinstance(found, Fault):
            return found
        numbers, present = found
        chosen = np.array(table.model.array)[np.where(present, numbers, 0)]
        kept = np.broadcast_to(~present[:, None], chosen.shape)
        return [Result(dst, bits=chosen, kept=kept.reshape(dst.shape))]

    session.call(
        "dma_copy", effect, dst=dst, src=f"{table.source}.vector_select(0, {index.source})", oob_mode=_mode(skip)
    )


def _table(session: Session, rows: int, width: int, dtypes: tuple[DType, ...] | None = None) -> Operand:
    """Part of an argument as (rows, width)."""
    flat = session.part_of(f"x_{session.sample(dtypes or session.dtypes)}", session.integer(0, 100), rows * width)
    calls = (*flat.calls, ViewCall("reshape", ((rows, width),)))
    model = flat.tensor.model(calls)
    assert model is not None
    return Operand(flat.tensor, calls, model)


def _mode(skip: bool) -> str:
    return f"nisa.oob_mode.{'skip' if skip else 'error'}"


def scatter(session: Session) -> None:
    """Rows of a table in HBM, written by an index tile; of equal ones the last stays."""
    count, width, rows = session.sample((1, 3, 8, 32)), session.integer(1, 12), session.sample((8, 8, 5))
    src = session.loaded(count, width, session.sample(session.dtypes))
    table = session.tile((rows, width), src.dtype, "private_hbm")
    index, skip = _index(session, count), session.chance(2)

    def effect() -> Effect:
        found = _rows_of(table, index, skip)
        if isinstance(found, Fault):
            return found
        bits, kept = np.array(table.model.array), np.ones(table.shape, np.bool_)
        values = np.array(src.model.array).reshape(count, width)
        for row, there, elements in zip(*found, values, strict=True):
            if there:
                bits[row], kept[row] = elements, False
        return [Result(table, bits=bits, kept=kept)]

    session.call(
        "dma_copy", effect, dst=f"{table.source}.vector_select(0, {index.source})", src=src, oob_mode=_mode(skip)
    )


def dma_transpose(session: Session) -> None:
    """Dimensions in reverse order, of four the inner two not."""
    if session.chance(2):
        src = session.source_operand(session.dtypes, ("sbuf",))
    else:
        hbm = [t for t in session.tensors.values() if t.buffer in ("shared_hbm", "private_hbm") and t.written.any()]
        src = session.views_of(session.sample(hbm), 4)
    order = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}.get(len(src.shape))
    if order is None or src.shape[-1] > 128:
        return
    dst = session.result(src.shape[-1], src.model.array.size // src.shape[-1], (src.dtype,), ("sbuf",))
    if not apart(dst, src) or not _on_boundaries(dst, dst.elements):
        return

    def effect() -> Effect:
        turned = np.array(src.model.array.transpose(order)).reshape(dst.shape)
        return moved(dst, src, turned, src.unwritten().transpose(order).reshape(dst.shape))

    session.call("dma_transpose", effect, dst=dst, src=src, axes=repr(session.sample((None, order))))


def _on_boundaries(dst: Operand, row_elements: int) -> bool:
    """Whether rows of 2-byte elements begin at multiples of 32 bytes, as transposes want."""
    array, row_bytes = dst.model.array, dst.model.row_bytes
    places = np.zeros(1, np.int64) + dst.model.offset_bytes % row_bytes
    for count, stride in zip(array.shape[1:], array.strides[1:], strict=True):
        places = (places[:, None] + np.arange(count) * stride).reshape(-1)
    return array.itemsize != 2 or not (places[::row_elements] % 32).any()


def gathered_transpose(session: Session) -> None:
    """Rows of a table in HBM, gathered and transposed."""
    count, width, rows = session.sample((16, 32, 48, 128)), session.integer(1, 12), session.sample((8, 8, 8, 5))
    table = _table(session, rows, width, tuple(d for d in session.dtypes if d.itemsize == 2))
    index, skip = _index(session, count, "uint32"), session.chance(2)
    dst = session.result(width, count, (table.dtype,), ("sbuf",))
    if not _on_boundaries(dst, count):
        return

    def effect() -> Effect:
        found = _rows_of(table, index, skip)
        if isinstance(found, Fault):
            return found
        numbers, present = found
        chosen = np.array(table.model.array)[np.where(present, numbers, 0)].T
        kept = np.broadcast_to(~present, chosen.shape)
        return [Result(dst, bits=chosen.reshape(dst.shape), kept=kept.reshape(dst.shape))]

    session.call(
        "dma_transpose", effect, dst=dst, src=f"{table.source}.vector_select(0, {index.source})", oob_mode=_mode(skip)
    )


def dma_compute(session: Session) -> None:
    """Sums in fp32, in the order of the list."""
    first = session.source_operand(session.dtypes, ("sbuf",))
    sources = [first, *[session.like(first, session.dtypes) for _ in range(session.integer(0, 3))]]
    if session.chance(2):
        kind, buffer = session.sample(session.dtypes), session.sample(("shared_hbm", "private_hbm"))
        dst = session.tile((first.model.array.size,), kind, buffer)
    else:
        dst = session.result(first.shape[0], first.elements, session.dtypes, ("sbuf",))
    if not all(apart(dst, source) for source in sources):
        return

    def effect() -> Effect:
        if missing(*sources):
            return UNINITIALIZED
        total = np.zeros(first.model.array.size)
        with np.errstate(all="ignore"):
            for source in sources:
                total = formats.fp32(total + source.values().reshape(-1))
        return [exact(dst, total, total == 0)]

    shown = f"[{', '.join(source.source for source in sources)}]"
    session.call("dma_compute", effect, dst=dst, srcs=shown, reduce_op="nl.add")


def added_rows(session: Session) -> None:
    """A tile added to rows of a table in HBM, or rows of it to a tile."""
    count, width, rows = session.sample((1, 3, 8, 32)), session.integer(1, 12), session.integer(8, 40)
    tile = session.loaded(count, width, session.sample(session.dtypes), dims=1)
    table = session.tile((rows, width), session.sample(session.dtypes), "private_hbm")
    numbers = session.part_of(f"x_{table.dtype}", session.integer(0, 100), rows * width)
    session.call("dma_copy", lambda: copied(table, numbers, through_fp32=False), dst=table, src=numbers)
    index, skip = session.tile((count, 1), BY_NAME["int32"], "sbuf"), session.chance(2)
    offset, step = session.integer(0, 9), session.integer(0, 2)
    places = (offset + step * np.arange(count)).astype(np.int32)[:, None]
    session.call(
        "iota", lambda: [Result(index, bits=places)],
        dst=index, pattern="[[1, 1]]", offset=repr(offset), channel_multiplier=repr(step),
    )  # fmt: skip
    into_table = session.chance(2)

    def effect() -> Effect:
        found = _rows_of(table, index, skip)
        if isinstance(found, Fault):
            return found
        at, present = found
        if into_table and np.unique(at[present]).size < present.sum():
            return Fault("ArgumentError")
        with np.errstate(all="ignore"):
            chosen = formats.fp32(table.rows()[np.where(present, at, 0)] + tile.rows())
        if not into_table:
            kept = np.broadcast_to(~present[:, None], chosen.shape)
            return [exact(tile, chosen, chosen == 0)._replace(kept=kept)]
        sums, kept = np.zeros(table.shape), np.ones(table.shape, np.bool_)
        sums[at[present]], kept[at[present]] = chosen[present], False
        return [exact(table, sums, sums == 0)._replace(kept=kept)]

    chosen_rows = f"{table.source}.vector_select(0, {index.source})"
    dst = chosen_rows if into_table else tile.source
    session.call(
        "dma_compute", effect, dst=dst, srcs=f"[{chosen_rows}, {tile.source}]", reduce_op="nl.add",
        oob_mode=_mode(skip),
    )  # fmt: skip
