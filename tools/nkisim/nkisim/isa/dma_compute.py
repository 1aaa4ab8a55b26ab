"""Sums by DMA, with gathered or scattered rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim import machine, memory
from nkisim.enums import engine as Engine
from nkisim.enums import oob_mode as OobMode
from nkisim.errors import ArgumentError, ShapeError, WrongBufferError
from nkisim.indirect import ROWS
from nkisim.instruction import NkiInstruction
from nkisim.isa import operands, rules, transfer
from nkisim.tensor import NkiTensor

_MAX_SOURCES = 16


def dma_compute(
    dst: NkiTensor,
    srcs: list[NkiTensor],
    reduce_op: Any,
    scales: list[float] | None = None,
    unique_indices: bool = True,
    oob_mode: OobMode = OobMode.error,
    name: str | None = None,
) -> NkiInstruction:
    """`dst` = sum of `srcs`, element by element in fp32, in the order of the list.

    With an index per row it reads, adds and writes back: rows of an HBM `dst` that the index chooses (a source being
    the same view, the other an SBUF tile), or an SBUF `dst` (a source being the same tile) plus rows of an HBM source.

    Args:
        dst: tensor in HBM or SBUF.
        srcs: 1 to 16 tensors with as many elements; exactly 2 with an index per row.
        reduce_op: nl.add.
        scales: None, or 1.0 for each source.
        unique_indices: True where dst has an index per row; its rows in bounds then differ.
        oob_mode: with an index out of bounds, raise, or leave that row of dst as it was.

    Raises:
        ArgumentError, ShapeError, WrongBufferError, OutOfBoundsError, UninitializedReadError.
    """
    call = "nisa.dma_compute"
    core = machine.core(call)
    try:
        sources = tuple([s.signature for s in srcs]) if isinstance(srcs, (list, tuple)) else None
        key: Any = (call, dst.signature, sources, oob_mode, reduce_op)
        passed = key in core.checked
    except (AttributeError, TypeError):
        key, passed = (), False
    if not passed:
        _check(call, core, dst, srcs, oob_mode, reduce_op)
        core.checked.add(key)
    if scales is not None:
        _check_scales(call, srcs, scales)
    if dst.indirection is not None or any(s.indirection is not None for s in srcs):
        _check_rows(call, dst, srcs, unique_indices)
    reads = tuple([s.region for s in srcs])
    issued = core.emit("dma_compute", Engine.dma, (dst.region,), reads, name, "add")
    if core.numerics:
        _add(call, dst, srcs, skip=oob_mode is OobMode.skip)
    return issued


def _check(call: str, core: machine.Core, dst: NkiTensor, srcs: list[NkiTensor], oob_mode: Any, reduce_op: Any) -> None:
    _check_sources(call, dst, srcs)
    transfer.check_queue(call, core, None, oob_mode)
    if operands.language_name(call, "reduce_op", reduce_op) != "add":
        raise ArgumentError(f"{call}: reduce_op is nl.{reduce_op.__name__}; accepted: nl.add")
    for operand, tensor in (("dst", dst), *((f"srcs[{i}]", s) for i, s in enumerate(srcs))):
        rules.buffer(call, operand, tensor, transfer.REACH)
        if tensor.size != dst.size:
            raise ShapeError(
                f"{call}: {operand} {list(tensor.shape)}, dst {list(dst.shape)}; accepted: the same number"
            )
        if tensor.dtype.kind == "packed":
            rules.dtype(call, operand, tensor, ())
        if tensor.indirection is not None and tensor.indirection.kind != ROWS:
            raise ArgumentError(f"{call}: {operand} has a dynamic offset; accepted: static views or vector_offset")
    rules.writable(call, "dst", dst)


def _check_sources(call: str, dst: Any, srcs: Any) -> None:
    rules.require_tensors(call, dst=dst)
    if not isinstance(srcs, (list, tuple)) or not 1 <= len(srcs) <= _MAX_SOURCES:
        given = len(srcs) if isinstance(srcs, (list, tuple)) else type(srcs).__name__
        raise ArgumentError(f"{call}: srcs {given}; accepted: a list of 1 to {_MAX_SOURCES} tensors")
    for i, source in enumerate(srcs):
        rules.require_tensors(call, **{f"srcs[{i}]": source})


def _check_scales(call: str, srcs: list[NkiTensor], scales: Any) -> None:
    if not isinstance(scales, (list, tuple)) or len(scales) != len(srcs) or any(s != 1.0 for s in scales):
        raise ArgumentError(f"{call}: scales {scales}; accepted: None or 1.0 for each of {len(srcs)} sources")


def _check_rows(call: str, dst: NkiTensor, srcs: list[NkiTensor], unique_indices: Any) -> None:
    if len(srcs) != 2:
        raise ArgumentError(f"{call}: {len(srcs)} sources with an index per row; accepted: 2")
    if unique_indices is not True:
        raise ArgumentError(f"{call}: unique_indices {unique_indices!r} with an index per row; accepted: True")
    same = [s for s in srcs if _same_view(s, dst)]
    if not same:
        raise ArgumentError(f"{call}: no source is the view that dst is; accepted: dst itself as one of the two")
    other = srcs[1] if srcs[0] is same[0] else srcs[0]
    if dst.indirection is not None:
        rules.buffer(call, "the source that is added", other, (rules.SBUF,))
    elif other.indirection is None or dst.buffer is not rules.SBUF:
        raise WrongBufferError(
            f"{call}: dst {dst.name} in {dst.buffer.value}; accepted: sbuf, with rows of an HBM source added to it"
        )


def _same_view(a: NkiTensor, b: NkiTensor) -> bool:
    if a.storage is not b.storage or a[...].region != b[...].region:
        return False
    if a.indirection is None or b.indirection is None:
        return a.indirection is b.indirection
    return a.indirection.by.region == b.indirection.by.region


def _add(call: str, dst: NkiTensor, srcs: list[NkiTensor], skip: bool) -> None:
    present: np.ndarray | None = None
    total = np.zeros(dst.shape, np.float32)
    for i, source in enumerate(srcs):
        values, there = memory.read_present(call, f"srcs[{i}]", source, skip=skip)
        with np.errstate(all="ignore"):
            total += values.astype(np.float32).reshape(dst.shape)
        if there is not None:
            present = there.reshape(dst.shape)
    if dst.indirection is None:
        memory.write_present(call, "dst", dst, total, present, skip=False)
        return
    _check_unique(call, dst)
    memory.write_present(call, "dst", dst, total, None, skip=skip)


def _check_unique(call: str, dst: NkiTensor) -> None:
    found = dst.indirection
    rows = memory.addressing.column_major(memory.read(call, "the index of dst", found.by), dst.shape[0])
    rows = rows[(rows >= 0) & (rows < found.limit)]
    values, counts = np.unique(rows, return_counts=True)
    if (counts > 1).any():
        raise ArgumentError(
            f"{call}: index {int(values[counts.argmax()])} occurs {int(counts.max())} times in {found.by.name}; "
            f"accepted: unique indices"
        )
