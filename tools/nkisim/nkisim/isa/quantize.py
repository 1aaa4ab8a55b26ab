"""`quantize_mx`: block-scaled fp8 from fp16 and bf16, on the Vector Engine of trn3."""

from __future__ import annotations

from math import prod

import numpy as np

from nkisim import dtypes, machine, memory
from nkisim.enums import engine as Engine
from nkisim.errors import ShapeError
from nkisim.instruction import NkiInstruction
from nkisim.isa import matmul_mx, rules
from nkisim.numerics import decode, mx
from nkisim.tensor import NkiTensor

_SOURCES = (dtypes.float16, dtypes.bfloat16)
_RESULTS = (dtypes.float8_e5m2_x4, dtypes.float8_e4m3fn_x4)


def quantize_mx(dst: NkiTensor, src: NkiTensor, dst_scale: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Quantises `src` to fp8 in blocks of 8 partitions x 4 elements, which share one e8m0 scale.

    The scale is the power of two that brings the block's largest magnitude into the top binade of the fp8 type,
    2 ** (floor(log2(amax)) - Emax), so that what exceeds the largest number there saturates. Sources disagree: field
    report n1, `quantize_mx_golden` of the SDK's deep-dives/mxfp-matmul and the sample algorithm of the OCP standard
    have this scale; the SDK's page of this call has one twice as large, with Emax - 1 in place of Emax. Nobody ran it
    on a chip for this project. Zeros get the smallest scale, 2 ** -127; a block with a NaN the scale NaN. See
    `numerics.mx.quantize`.

    Args:
        dst: float8_e5m2_x4 or float8_e4m3fn_x4 tile in SBUF, (P, F / 4).
        src: fp16 or bf16 tile in SBUF, (P, F): P a multiple of 32 up to 128, F of 4.
        dst_scale: e8m0 (or uint8) tile in SBUF with F / 4 columns. The scales of a quadrant of 32 partitions go to 4
            partitions of the same quadrant, 0, 4, 8 or 12 into it; the tile spans all quadrants of src. Its other
            partitions keep what they hold; where nothing was written that is zero afterwards, as the public library
            describes the layout, whose kernels move such tiles as a whole.

    Raises:
        TargetError, WrongBufferError, DtypeError, ShapeError, PartitionError, UninitializedReadError.
    """
    call = "nisa.quantize_mx"
    core = machine.core(call)
    try:
        key = (call, dst.signature, src.signature, dst_scale.signature)
    except AttributeError:
        _check_target(call, core)
        rules.require_tensors(call, dst=dst, src=src, dst_scale=dst_scale)
        raise
    if key not in core.checked:
        _check(call, core, dst, src, dst_scale)
        core.checked.add(key)
    writes = (dst.region, *matmul_mx.scale_regions(dst_scale, src.shape[0]))
    issued = core.emit("quantize_mx", Engine.vector, writes, (src.region,), name)
    if core.numerics:
        rows = matmul_mx.scale_rows(dst_scale, src.shape[0])
        values = memory.read_fp32(call, "src", src)
        words, scales = mx.quantize(values.reshape(len(values), -1), dst.dtype)
        memory.write(dst, words)
        _pad(dst_scale)
        for row, of_quadrant in zip(rows, np.split(scales, len(rows)), strict=True):
            memory.write(row, of_quadrant.view(row.dtype.storage))
    return issued


def _pad(dst_scale: NkiTensor) -> None:
    target, unwritten = memory.destination(dst_scale), dst_scale.storage.flags(dst_scale.region)
    if unwritten is not None:
        target.view(np.uint8)[unwritten] = 0
        dst_scale.storage.mark_written(dst_scale.region)


def _check_target(call: str, core: machine.Core) -> None:
    rules.generation(call, core.hardware, core.hardware.supports_mx, "trn3")


def _check(call: str, core: machine.Core, dst: NkiTensor, src: NkiTensor, dst_scale: NkiTensor) -> None:
    _check_target(call, core)
    for operand, tensor, accepted in (("src", src, _SOURCES), ("dst", dst, _RESULTS)):
        rules.tile(call, operand, tensor, core.hardware, (rules.SBUF,))
        rules.dtype(call, operand, tensor, accepted)
    rules.writable(call, "dst", dst)
    rules.writable(call, "dst_scale", dst_scale)
    rules.same_partitions(call, "dst", dst, "src", src)
    columns = prod(src.shape[1:])
    if src.shape[0] % decode.QUADRANT or columns % mx.LANES:
        raise ShapeError(
            f"{call}: src {list(src.shape)} has {src.shape[0]} partitions and {columns} elements in each; "
            f"accepted: a multiple of 32 up to 128, and a multiple of 4"
        )
    if prod(dst.shape[1:]) != columns // mx.LANES:
        raise ShapeError(
            f"{call}: dst {list(dst.shape)} has {prod(dst.shape[1:])} columns; accepted: {columns // mx.LANES}, "
            f"a quarter of src's {columns}"
        )
    matmul_mx.check_scale(call, "dst_scale", dst_scale, "src", src, columns // mx.LANES)
