"""`nc_matmul`: products of plain matrices on the Tensor Engine."""

from __future__ import annotations

import functools
from math import prod
from typing import Any

import numpy as np

from nkisim import dtypes, machine, memory
from nkisim.enums import engine as Engine
from nkisim.enums import matmul_perf_mode as PerfMode
from nkisim.errors import ArgumentError, DtypeError, NotSimulatedError, ShapeError
from nkisim.instruction import NkiInstruction
from nkisim.isa import products, rules, transpose
from nkisim.numerics import product
from nkisim.tensor import NkiTensor

_TENSOR = Engine.tensor
_FP8 = (dtypes.float8_e4m3, dtypes.float8_e5m2, dtypes.float8_e4m3fn)
_WIDE = (dtypes.float32, dtypes.tfloat32)
_INDIRECT = (*_FP8, dtypes.bfloat16, dtypes.float16)
_DTYPES = (*_FP8, dtypes.bfloat16, dtypes.float16, *_WIDE)
_PERF_MODES = {mode.value: mode for mode in PerfMode} | {mode: mode for mode in PerfMode}


def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (),
    perf_mode: PerfMode = PerfMode.none,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = stationary.T @ moving`, contracting partitions; products and sums are fp32.

    A bf16 dst (trn3) is read as fp32, added to and rounded once, to nearest even.

    Args:
        dst: fp32 (trn3: also bf16) tile in PSUM, (stationary columns, moving columns); within one bank on trn2.
        stationary: tile in SBUF, (K up to 128, M up to 128).
        moving: tile in SBUF, (K, N): N up to 512 on trn2; on trn3 up to 4096, or 8192 with a bf16 dst. Both operands
            are fp8, bf16 or fp16, or both fp32 or tf32; the two e4m3 formats do not mix.
        is_stationary_onezero, is_moving_onezero: promises that an fp32 operand holds ones and zeros only, which
            lets the hardware go faster; a promise that does not hold is an error here.
        is_transpose: dst takes the bits of stationary, transposed, in its type; moving is an identity matrix. An
            8-bit element fills the lower half of 16 bits, so that dst has steps of 2.
        accumulate: add to dst (True), overwrite (False), or add where dst was written before (None).
        tile_position, tile_size: (start row, start column) and (rows, columns) of a tile of the array, of 32, 64 or
            128 each. The text allows column tiles, and public kernels use them; the parameter's description, which
            wants start column 0 and 128 columns, does not hold here.
        perf_mode: `double_row` (or its name) contracts the first free dimension, of size 2, of two fp8 operands too.

    Raises:
        WrongBufferError, DtypeError, ShapeError, PartitionError, TargetError, ArgumentError: operands do not suit.
        AccumulationError, UninitializedReadError: what they hold does not.
        NotSimulatedError: is_transpose with another matrix than the identity, or accumulating.
    """
    call = "nisa.nc_matmul"
    core = machine.core(call)
    try:
        key: tuple[Any, ...] = (
            call, dst.signature, stationary.signature, moving.signature, is_transpose, accumulate, type(accumulate),
            tile_position and repr(tile_position), tile_size and repr(tile_size), perf_mode,
            products.place(dst, core.hardware),
        )  # fmt: skip
        passed = key in core.checked
    except (AttributeError, TypeError, ValueError):
        rules.require_tensors(call, dst=dst, stationary=stationary, moving=moving)
        key, passed = (), False
    mode = PerfMode.none if perf_mode is PerfMode.none else _mode(call, perf_mode)
    if is_stationary_onezero is not False or is_moving_onezero is not False:
        rules.flags(call, is_stationary_onezero=is_stationary_onezero, is_moving_onezero=is_moving_onezero)
    if not passed:
        rules.flags(call, is_transpose=is_transpose)
        check = _check_transpose if is_transpose else _check_product
        check(call, core, dst, stationary, moving, mode, tile_position, tile_size)
        products.check_accumulate(call, accumulate)
        core.checked.add(key)
    detail = "transpose" if is_transpose else mode.value
    issued = core.emit(
        "nc_matmul", _TENSOR, (dst.region,), (stationary.region, moving.region), name, (detail, accumulate)
    )
    if core.numerics:
        if is_transpose:
            _transpose(call, dst, stationary, moving, accumulate)
        else:
            halves = 2 if mode is PerfMode.double_row else 1
            left = products.matrix(call, core, "stationary", stationary, halves)
            right = products.matrix(call, core, "moving", moving, halves)
            if is_stationary_onezero:
                _check_onezero(call, "stationary", stationary, left)
            if is_moving_onezero:
                _check_onezero(call, "moving", moving, right)
            products.store(call, core, dst, functools.partial(product.accumulate, left, right), accumulate)
    return issued


def _mode(call: str, given: Any) -> PerfMode:
    try:
        return _PERF_MODES[given]
    except (KeyError, TypeError):
        names = ", ".join(f"matmul_perf_mode.{mode.name}" for mode in PerfMode)
        raise ArgumentError(f"{call}: perf_mode {given!r}; accepted: {names}") from None


def _check_product(
    call: str,
    core: machine.Core,
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    mode: PerfMode,
    position: Any,
    size: Any,
) -> None:
    hardware = core.hardware
    accepted = (dtypes.float32, dtypes.bfloat16) if hardware.supports_mx else (dtypes.float32,)
    rules.tile(call, "dst", dst, hardware, (rules.PSUM,))
    _check_operands(call, core, stationary, moving)
    double = mode is PerfMode.double_row
    if double:
        _check_double_row(call, stationary, moving, size)
    first = 2 if double else 1
    rows, columns = prod(stationary.shape[first:]), prod(moving.shape[first:])
    if rows > hardware.matmul_stationary_free_max:
        limit = hardware.matmul_stationary_free_max
        raise ShapeError(f"{call}: stationary has {rows} columns; accepted: up to {limit}")
    products.check_destination(call, dst, rows, columns, accepted, hardware)
    products.check_tiling(call, position, size, stationary, rows, dst, column_tiles=True)
    products.check_indirect(call, dst, stationary, moving, position, _INDIRECT)


def _check_operands(call: str, core: machine.Core, stationary: NkiTensor, moving: NkiTensor) -> None:
    for operand, tensor in (("stationary", stationary), ("moving", moving)):
        rules.tile(call, operand, tensor, core.hardware, (rules.SBUF,))
        rules.supported_dtype(call, operand, tensor.dtype, core.hardware)
        rules.dtype(call, operand, tensor, _DTYPES)
    products.check_fed_together(call, stationary, moving)
    given = (stationary.dtype, moving.dtype)
    if (given[0] in _WIDE) != (given[1] in _WIDE):
        raise DtypeError(
            f"{call}: stationary is {given[0]}, moving {given[1]}; accepted: float32 and tfloat32 only with each other"
        )
    if dtypes.float8_e4m3 in given and dtypes.float8_e4m3fn in given:
        raise DtypeError(
            f"{call}: stationary is {given[0]}, moving {given[1]}; accepted: only one of float8_e4m3, float8_e4m3fn"
        )


def _check_double_row(call: str, stationary: NkiTensor, moving: NkiTensor, size: Any) -> None:
    for operand, tensor in (("stationary", stationary), ("moving", moving)):
        if tensor.dtype not in _FP8:
            raise DtypeError(f"{call}: {operand} is {tensor.dtype} with double_row; accepted: {', '.join(_FP8)}")
        if len(tensor.shape) < 3 or tensor.shape[1] != 2:
            raise ShapeError(
                f"{call}: {operand} {list(tensor.shape)} with double_row; accepted: (partitions, 2, columns)"
            )
    if isinstance(size, (tuple, list)) and len(size) > 1 and size[1] != 128:
        raise ArgumentError(f"{call}: tile_size {size} with double_row; accepted: 128 columns, no column tiling")


def _check_transpose(
    call: str,
    core: machine.Core,
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    mode: PerfMode,
    position: Any,
    size: Any,
) -> None:
    if mode is PerfMode.double_row:
        raise ArgumentError(f"{call}: is_transpose with perf_mode double_row; accepted: one of them")
    rules.tile(call, "dst", dst, core.hardware, (rules.PSUM,))
    _check_operands(call, core, stationary, moving)
    partitions, rows = stationary.shape[0], prod(stationary.shape[1:])
    if prod(moving.shape[1:]) != partitions:
        raise ShapeError(
            f"{call}: moving {list(moving.shape)} with is_transpose; accepted: an identity ({partitions}, {partitions})"
        )
    if moving.indirection is not None:
        raise ArgumentError(f"{call}: moving is indirect with is_transpose; accepted: stationary and dst only")
    products.check_indirect(call, dst, stationary, moving, position, _INDIRECT)
    transpose.check_on_tensor_engine(call, core.hardware, dst, "stationary", stationary)
    products.check_tiling(call, position, size, stationary, rows, dst, column_tiles=True)


def _transpose(call: str, dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, accumulate: bool | None) -> None:
    if accumulate:
        raise NotSimulatedError(f"{call}: accumulate=True with is_transpose is not documented")
    identity = memory.read_fp32(call, "moving", moving).reshape(moving.shape[0], -1)
    if not np.array_equal(identity, np.eye(len(identity), dtype=np.float32)):
        raise NotSimulatedError(f"{call}: is_transpose with moving {moving.name} that is not an identity matrix")
    memory.move(
        call, "dst", dst, "stationary", stationary, arrange=transpose.swapped, store=transpose.write_by_tensor_engine
    )


def _check_onezero(call: str, operand: str, tensor: NkiTensor, values: np.ndarray) -> None:
    """The hint changes the arithmetic of fp32 operands only."""
    if tensor.dtype in _WIDE and not ((values == 0) | (values == 1)).all():
        raise ArgumentError(
            f"{call}: is_{operand}_onezero=True, and {tensor.name} holds other values; accepted: ones and zeros"
        )
