"""Copies by DMA."""

from __future__ import annotations

from math import prod
from typing import Any

from nkisim import machine, memory
from nkisim.enums import dge_mode as DgeMode
from nkisim.enums import engine as Engine
from nkisim.enums import oob_mode as OobMode
from nkisim.errors import ArgumentError, EngineError, ShapeError
from nkisim.instruction import NkiInstruction
from nkisim.isa import rules
from nkisim.tensor import NkiTensor

_REACH = (*rules.HBM, rules.SBUF)
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

    Where the types differ the DMA casts through fp32.

    Args:
        dst, src: tensors in HBM or SBUF with equally many elements.
        priority: 0 (first) to 3; trn3.
        dge_mode: who generates the descriptors.
        engine: sync or scalar, only with `dge_mode.hwdge`.

    Raises:
        WrongBufferError, ShapeError, PartitionError, TargetError, EngineError, UninitializedReadError.
    """
    call = "nisa.dma_copy"
    core = machine.core(call)
    try:
        key = (call, dst.signature, src.signature, priority, dge_mode, engine)
    except AttributeError:
        rules.require_tensors(call, dst=dst, src=src)
        raise
    if key not in core.checked:
        _check_copy(call, core, dst, src)
        _check_queue(call, core, priority, dge_mode, engine)
        core.checked.add(key)
    issued = core.emit("dma_copy", Engine.dma, (dst.region,), (src.region,), name, dge_mode)
    if core.numerics:
        memory.write(dst, memory.read(call, "src", src))
    return issued


def _check_copy(call: str, core: machine.Core, dst: NkiTensor, src: NkiTensor) -> None:
    for operand, tensor in (("dst", dst), ("src", src)):
        rules.buffer(call, operand, tensor, _REACH)
        rules.supported_dtype(call, operand, tensor.dtype, core.hardware)
    rules.writable(call, "dst", dst)
    if prod(dst.shape) != prod(src.shape):
        raise ShapeError(
            f"{call}: dst {list(dst.shape)} has {prod(dst.shape)} elements, "
            f"src {list(src.shape)} has {prod(src.shape)}; accepted: as many"
        )
    if dst.dtype is not src.dtype and "packed" in (dst.dtype.kind, src.dtype.kind):
        rules.same_dtype(call, "dst", dst, "src", src)


def _check_queue(call: str, core: machine.Core, priority: Any, mode: DgeMode, engine: Engine) -> None:
    if priority is not None:
        rules.generation(f"{call}: priority", core.hardware, core.hardware.supports_mx, "trn3")
        if priority not in _PRIORITIES:
            raise ArgumentError(f"{call}: priority {priority!r}; accepted: 0 to 3")
    if not isinstance(mode, DgeMode):
        raise ArgumentError(f"{call}: dge_mode {mode!r}; accepted: {', '.join(m.name for m in DgeMode)}")
    if engine is not Engine.unknown and (mode is not DgeMode.hwdge or engine not in (Engine.sync, Engine.scalar)):
        raise EngineError(f"{call}: engine {engine!r} with {mode!r}; accepted: sync or scalar, with dge_mode.hwdge")
