"""Copies, gathers and scatters by DMA."""

from __future__ import annotations

from math import prod
from typing import Any

from nkisim import machine, memory
from nkisim.enums import dge_mode as DgeMode
from nkisim.enums import engine as Engine
from nkisim.enums import oob_mode as OobMode
from nkisim.errors import ArgumentError, DtypeError, EngineError, ShapeError
from nkisim.indirect import COLUMNS, ROWS
from nkisim.instruction import NkiInstruction
from nkisim.isa import rules
from nkisim.tensor import NkiTensor

REACH = (*rules.HBM, rules.SBUF)
_PRIORITIES = range(4)


def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: OobMode = OobMode.error,
    dge_mode: DgeMode = DgeMode.unknown,
    engine: Engine = Engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """Copies `src` to `dst` between HBM and SBUF, in any shapes with as many elements, in row-major order.

    Where the types differ the DMA casts through fp32, but not with hwdge, whose descriptors move bytes (the migration
    page, "dge_mode type matching", names `view`, swdge and none instead). One of the two may be a view with a dynamic
    index: `src` gathers, `dst` scatters; of equal indices in a scatter the last row stays. A batched index tile is
    read as `addressing.column_major` says. The documentation has `dge_mode.none` both with and without a dynamic scalar
    offset; this refuses it, since the addresses of its descriptors are fixed before the run.

    Args:
        dst, src: tensors in HBM or SBUF with equally many elements.
        priority: 0 (first) to 3; trn3.
        oob_mode: with an index out of bounds, raise, or leave the destination's elements as they were.
        dge_mode: who generates the descriptors; an index per row needs swdge (or unknown), hwdge equal types.
        engine: sync or scalar, only with `dge_mode.hwdge`.

    Raises:
        WrongBufferError, ShapeError, DtypeError, PartitionError, TargetError, EngineError, UninitializedReadError.
        OutOfBoundsError: names the index, its position and the table's size.
    """
    call = "nisa.dma_copy"
    core = machine.core(call)
    if type(dge_mode) is not DgeMode:
        dge_mode = mode_of(call, dge_mode)
    check_queue(call, core, priority, oob_mode)
    if type(engine) is not Engine:
        raise EngineError(f"{call}: engine {engine!r}; accepted: sync, scalar or unknown")
    try:
        key = (call, dst.signature, src.signature, priority, oob_mode, dge_mode, engine)
    except AttributeError:
        rules.require_tensors(call, dst=dst, src=src)
        raise
    if key not in core.checked:
        _check_copy(call, core, dst, src)
        check_descriptors(call, dge_mode, dst=dst, src=src)
        _check_cast(call, dge_mode, dst, src)
        _check_engine(call, dge_mode, engine)
        core.checked.add(key)
    issued = core.emit("dma_copy", Engine.dma, (dst.region,), (src.region,), name, dge_mode)
    if core.numerics:
        memory.move(call, "dst", dst, "src", src, skip=oob_mode is OobMode.skip)
    return issued


def _check_copy(call: str, core: machine.Core, dst: NkiTensor, src: NkiTensor) -> None:
    for operand, tensor in (("dst", dst), ("src", src)):
        rules.buffer(call, operand, tensor, REACH)
        rules.supported_dtype(call, operand, tensor.dtype, core.hardware)
    rules.writable(call, "dst", dst)
    if prod(dst.shape) != prod(src.shape):
        raise ShapeError(
            f"{call}: dst {list(dst.shape)} has {prod(dst.shape)} elements, "
            f"src {list(src.shape)} has {prod(src.shape)}; accepted: the same number"
        )
    if dst.dtype is not src.dtype and "packed" in (dst.dtype.kind, src.dtype.kind):
        rules.same_dtype(call, "dst", dst, "src", src)


def check_queue(call: str, core: machine.Core, priority: Any, oob_mode: Any) -> None:
    """The priority exists on the target, and `oob_mode` is one."""
    if priority is not None:
        rules.generation(f"{call}: priority", core.hardware, core.hardware.supports_mx, "trn3")
        if type(priority) is not int or priority not in _PRIORITIES:
            raise ArgumentError(f"{call}: priority {priority!r}; accepted: 0 to 3")
    if type(oob_mode) is not OobMode:
        raise ArgumentError(f"{call}: oob_mode {oob_mode!r}; accepted: {', '.join(m.name for m in OobMode)}")


def mode_of(call: str, value: Any) -> DgeMode:
    """The descriptor mode that a number stands for, as public kernels give it."""
    try:
        return DgeMode(value)
    except (ValueError, TypeError):
        raise ArgumentError(f"{call}: dge_mode {value!r}; accepted: {', '.join(m.name for m in DgeMode)}") from None


def check_descriptors(call: str, mode: DgeMode, **operands: NkiTensor) -> None:
    """The descriptor generator can do what the operands' dynamic indices ask of it."""
    indexed = [(operand, t, t.indirection.kind) for operand, t in operands.items() if t.indirection is not None]
    if len([kind for _, _, kind in indexed if kind == ROWS]) > 1:
        raise ArgumentError(f"{call}: {' and '.join(operands)} both have an index per row; accepted: one of them")
    for operand, tensor, kind in indexed:
        what = f"{call}: {operand} {tensor.name}"
        if kind == COLUMNS:
            raise ArgumentError(f"{what} is a view made by indirect(); accepted: operands of compute engines only")
        if kind == ROWS and mode not in (DgeMode.unknown, DgeMode.swdge):
            raise ArgumentError(f"{what} has an index per row with dge_mode.{mode.name}; accepted: swdge or unknown")
        if mode is DgeMode.none:
            raise ArgumentError(f"{what} has a dynamic offset with dge_mode.none; accepted: swdge, hwdge or unknown")


def _check_cast(call: str, mode: DgeMode, dst: NkiTensor, src: NkiTensor) -> None:
    if mode is DgeMode.hwdge and dst.dtype is not src.dtype:
        raise DtypeError(
            f"{call}: src {src.name} is {src.dtype}, dst {dst.name} is {dst.dtype} with dge_mode.hwdge, which moves "
            f"bytes and casts nothing; accepted: the same type (`view` shows the bytes as another), "
            f"or dge_mode.swdge, none or unknown to cast"
        )


def _check_engine(call: str, mode: DgeMode, engine: Engine) -> None:
    if engine is not Engine.unknown and (mode is not DgeMode.hwdge or engine not in (Engine.sync, Engine.scalar)):
        raise EngineError(f"{call}: engine {engine!r} with {mode!r}; accepted: sync or scalar, with dge_mode.hwdge")
