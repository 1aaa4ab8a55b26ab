"""Transposes by DMA, direct and of gathered rows."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from nkisim import machine, memory, views
from nkisim.dtypes import uint32
from nkisim.enums import dge_mode as DgeMode
from nkisim.enums import engine as Engine
from nkisim.enums import oob_mode as OobMode
from nkisim.errors import ArgumentError, DtypeError, ShapeError
from nkisim.indirect import ROWS
from nkisim.instruction import NkiInstruction
from nkisim.isa import rules, transfer
from nkisim.tensor import NkiTensor

_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
_TWO_BYTES = 2
_BLOCK_ROWS = 16
_BOUNDARY_BYTES = 32


def dma_transpose(
    dst: NkiTensor,
    src: NkiTensor,
    axes: tuple[int, ...] | None = None,
    priority: int | None = None,
    dge_mode: DgeMode = DgeMode.unknown,
    oob_mode: OobMode = OobMode.error,
    name: str | None = None,
) -> NkiInstruction:
    """Transposes `src` into an SBUF tile: axes (1, 0), (2, 1, 0) or (3, 1, 2, 0) for 2, 3 or 4 dimensions.

    A `src` with an index per row gathers first: `dst = src[indices.T.flatten()[: src.shape[0]]].T`.
    Where the documentation contradicts itself: on `dge_mode.none` without an index (its table of modes accepts it,
    this call's text does not) and on the last dimension under hwdge (a multiple of 128, or up to 128), this takes
    this call's text. That 2-byte types are written from 32-byte boundaries on is what public kernels say; what the
    text asks of sizes under hwdge and with an index makes rows of one or two dimensions of multiples of that.

    Args:
        dst: tile in SBUF of `src`'s type, with as many partitions as `src`'s last dimension. With 2-byte types it
            begins at a multiple of 32 bytes in its partition; under hwdge and with an index so does each run of as
            many elements as `src`'s first dimension has, times the one before the last in 3 or 4 dimensions.
        src: 2 to 4 dimensions in HBM or SBUF. With hwdge: 2-byte type, up to 128 columns, 16 rows in 2 dimensions;
            in 3 or 4, 1, 2, 4, 8 or 16 rows that make a multiple of 16 with the dimension before the last.
            With an index per row: in HBM, 2-byte type, up to 128 columns, a multiple of 16 rows, in 4 dimensions
            one of the inner two of size 1; index uint32, 2-D, 16 to 128 partitions (128 with several columns).
        axes: None or the permutation above.
        priority: 0 (first) to 3; trn3.
        dge_mode: unknown, hwdge without an index per row, swdge with one.
        oob_mode: skip leaves the columns of dst as they were whose index is out of bounds; only with an index.

    Raises:
        ArgumentError, ShapeError, DtypeError, WrongBufferError, PartitionError, TargetError, OutOfBoundsError,
        UninitializedReadError.
    """
    call = "nisa.dma_transpose"
    core = machine.core(call)
    rules.require_tensors(call, dst=dst, src=src)
    if type(dge_mode) is not DgeMode:
        dge_mode = transfer.mode_of(call, dge_mode)
    transfer.check_queue(call, core, priority, oob_mode)
    axes = None if axes is None else views.integers(axes, f"{call}: axes")
    key = (call, dst.signature, _first_byte(dst), src.signature, axes, priority, dge_mode, oob_mode)
    if key not in core.checked:
        _check(call, core, dst, src, axes)
        transfer.check_descriptors(call, dge_mode, dst=dst, src=src)
        _check_mode(call, src, dge_mode, oob_mode)
        _check_boundaries(call, dst, src, dge_mode)
        core.checked.add(key)
    issued = core.emit("dma_transpose", Engine.dma, (dst.region,), (src.region,), name, dge_mode)
    if core.numerics:
        turn = functools.partial(np.transpose, axes=_AXES[src.ndim])
        bits = memory.read_bits(call, "src", src, skip=oob_mode is OobMode.skip)
        memory.write_bits(call, "dst", dst, bits.arranged(turn))
    return issued


def _check(call: str, core: machine.Core, dst: NkiTensor, src: NkiTensor, axes: Any) -> None:
    rules.buffer(call, "src", src, transfer.REACH)
    rules.tile(call, "dst", dst, core.hardware, (rules.SBUF,))
    rules.writable(call, "dst", dst)
    rules.same_dtype(call, "dst", dst, "src", src)
    order = _AXES.get(src.ndim)
    if order is None:
        raise ShapeError(f"{call}: src {list(src.shape)} has {src.ndim} dimensions; accepted: 2, 3 or 4")
    if axes is not None and tuple(axes) != order:
        raise ArgumentError(f"{call}: axes {tuple(axes)} for {src.ndim} dimensions; accepted: {order}")
    if src.shape[-1] > core.hardware.partitions:
        raise ShapeError(
            f"{call}: src {list(src.shape)} has {src.shape[-1]} columns; accepted: up to {core.hardware.partitions}, "
            f"the partitions of dst"
        )
    turned = tuple(src.shape[a] for a in order)
    if dst.shape[0] != turned[0] or dst.size != src.size:
        raise ShapeError(f"{call}: dst {list(dst.shape)}; accepted: {list(turned)}, src transposed")


def _first_byte(dst: NkiTensor) -> int:
    """Where a tile begins in its partition; a tensor without an address begins at a boundary."""
    allocation = dst.storage.allocation
    placed = allocation.address[1] if allocation.address else 0
    return placed + dst.offset * dst.dtype.itemsize % allocation.row_bytes


def _check_boundaries(call: str, dst: NkiTensor, src: NkiTensor, mode: DgeMode) -> None:
    if dst.dtype.itemsize != _TWO_BYTES:
        return
    row_elements = dst.size
    if mode is not DgeMode.unknown or src.indirection is not None:
        row_elements = src.shape[0] * (src.shape[-2] if src.ndim > 2 else 1)
    places = np.zeros(1, np.int64)
    for count, stride in zip(dst.shape[1:], dst.strides[1:], strict=True):
        places = (places[:, None] + np.arange(count) * stride).reshape(-1)
    starts = _first_byte(dst) + places[::row_elements] * _TWO_BYTES
    for row in np.flatnonzero(starts % _BOUNDARY_BYTES):
        raise ShapeError(
            f"{call}: row {row} of dst {dst.name} {list(dst.shape)} begins at byte {starts[row]} of its partition; "
            f"accepted: a multiple of {_BOUNDARY_BYTES}"
        )


def _check_mode(call: str, src: NkiTensor, mode: DgeMode, oob_mode: OobMode) -> None:
    gathers = src.indirection is not None and src.indirection.kind == ROWS
    accepted = (DgeMode.unknown, DgeMode.swdge if gathers else DgeMode.hwdge)
    if mode not in accepted:
        kind = "an index per row" if gathers else "no index per row"
        raise ArgumentError(
            f"{call}: dge_mode.{mode.name} for a src with {kind}; accepted: {', '.join(m.name for m in accepted)}"
        )
    if oob_mode is OobMode.skip and src.indirection is None:
        raise ArgumentError(f"{call}: oob_mode.skip for a src without a dynamic index; accepted: error")
    if (gathers or mode is DgeMode.hwdge) and src.dtype.itemsize != _TWO_BYTES:
        raise DtypeError(f"{call}: src {src.name} is {src.dtype}; accepted: 2-byte types")
    if gathers:
        _check_gather(call, src)
    elif mode is DgeMode.hwdge:
        _check_blocks(call, src)


def _check_blocks(call: str, src: NkiTensor) -> None:
    rows = src.shape[0]
    if src.ndim == 2 and rows != _BLOCK_ROWS:
        raise ShapeError(f"{call}: src {list(src.shape)} has {rows} rows with hwdge; accepted: 16")
    if src.ndim > 2 and (rows not in (1, 2, 4, 8, 16) or rows * src.shape[-2] % _BLOCK_ROWS):
        raise ShapeError(
            f"{call}: src {list(src.shape)} with hwdge; accepted: 1, 2, 4, 8 or 16 rows, whose number times the "
            f"dimension before the last is a multiple of 16"
        )


def _check_gather(call: str, src: NkiTensor) -> None:
    index = src.indirection.by
    what = f"{call}: index {index.name} {list(index.shape)}"
    if index.dtype is not uint32:
        raise DtypeError(f"{what} is {index.dtype}; accepted: uint32")
    if index.ndim != 2:
        raise ShapeError(f"{what}; accepted: two dimensions")
    partitions, columns = index.shape
    if partitions % _BLOCK_ROWS or not _BLOCK_ROWS <= partitions <= 128:
        raise ShapeError(f"{what}; accepted: 16 to 128 partitions, a multiple of 16")
    if columns > 1 and partitions != 128:
        raise ShapeError(f"{what}; accepted: 128 partitions where it has several columns")
    if src.shape[0] % _BLOCK_ROWS:
        raise ShapeError(f"{call}: src {list(src.shape)} has {src.shape[0]} rows; accepted: a multiple of 16")
    if src.ndim == 4 and 1 not in src.shape[1:3]:
        raise ShapeError(f"{call}: src {list(src.shape)}; accepted: dimension 1 or 2 of size 1")
