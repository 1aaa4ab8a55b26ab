"""Copies and fills by the compute engines."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim import machine, memory
from nkisim.deprecated import warn, without_dtype
from nkisim.enums import engine as Engine
from nkisim.errors import ArgumentError
from nkisim.instruction import NkiInstruction
from nkisim.isa import indirection, operands, rules
from nkisim.numerics import cast
from nkisim.tensor import NkiTensor


@without_dtype
def tensor_copy(
    dst: NkiTensor, src: NkiTensor, engine: Engine = Engine.unknown, name: str | None = None, dtype: Any = None
) -> NkiInstruction:
    """Copies a tile within the core, casting through fp32 where the types differ; bit by bit where they do not.

    Elements that nothing has written stay unwritten, cast or not.

    Args:
        dst, src: tiles in SBUF or PSUM with as many partitions and elements per partition; packed types as they are.
        engine: vector, scalar or gpsimd (which cannot reach PSUM).
        dtype: deprecated, and without effect.

    Raises:
        WrongBufferError, DtypeError, ShapeError, PartitionError, EngineError, UninitializedReadError.
    """
    call = "nisa.tensor_copy"
    core = machine.core(call)
    if dtype is not None:
        warn(f"{call}: dtype, which does nothing,", "dst of that type")
    try:
        key = (call, dst.signature, src.signature, engine)
    except AttributeError:
        rules.require_tensors(call, dst=dst, src=src)
        raise
    chosen = rules.choose_engine(call, engine, (Engine.vector, Engine.scalar, Engine.gpsimd))
    if key not in core.checked:
        rules.tile(call, "src", src, core.hardware, rules.ON_CHIP)
        rules.tile(call, "dst", dst, core.hardware, rules.ON_CHIP)
        rules.writable(call, "dst", dst)
        indirection.check(call, chosen, dst, "src", src)
        rules.same_elements(call, "dst", dst, "src", src)
        if "packed" in (dst.dtype.kind, src.dtype.kind):
            rules.same_dtype(call, "dst", dst, "src", src)
        rules.gpsimd_reach(call, chosen, dst=dst, src=src)
        core.checked.add(key)
    issued = core.emit("tensor_copy", chosen, (dst.region,), (src.region,), name)
    if core.numerics:
        bits = memory.read_bits(call, "src", src)
        if dst.dtype is not src.dtype:
            bits = bits._replace(values=cast.to_fp32(bits.values))
        memory.write_bits(call, "dst", dst, bits)
    return issued


def memset(dst: NkiTensor, value: float, engine: Engine = Engine.unknown, name: str | None = None) -> NkiInstruction:
    """Fills a tile with a constant.

    Args:
        dst: tile in SBUF or PSUM.
        value: the constant; packed types take 0 only, integer types what they hold.
        engine: vector or gpsimd (which cannot reach PSUM).

    Raises:
        ArgumentError, WrongBufferError, PartitionError, EngineError.
    """
    call = "nisa.memset"
    core = machine.core(call)
    rules.require_tensors(call, dst=dst)
    if not rules.is_number(value):
        raise ArgumentError(f"{call}: value {value!r}; accepted: a number known when the kernel is traced")
    if dst.dtype.kind == "packed" and value != 0:
        raise ArgumentError(f"{call}: value {value!r} for {dst.dtype}; accepted: 0")
    if dst.dtype.kind == "integer":
        limits = np.iinfo(dst.dtype.storage)
        if not limits.min <= value <= limits.max:
            raise ArgumentError(f"{call}: value {value!r} for {dst.dtype}; accepted: {limits.min} to {limits.max}")
    chosen = rules.choose_engine(call, engine, (Engine.vector, Engine.gpsimd))
    key = (call, dst.signature, chosen)
    if key not in core.checked:
        rules.tile(call, "dst", dst, core.hardware, rules.ON_CHIP)
        rules.writable(call, "dst", dst)
        rules.gpsimd_reach(call, chosen, dst=dst)
        core.checked.add(key)
    issued = core.emit("memset", chosen, (dst.region,), (), name, value)
    if core.numerics:
        exact = rules.is_integer(value) and dst.dtype.kind == "integer"
        filled = np.asarray(value, np.int64) if exact else np.asarray(operands.constant(value))
        memory.write(dst, np.broadcast_to(filled, dst.shape))
    return issued
