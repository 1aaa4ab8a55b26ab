"""`nc_matmul_mx`: products of block-scaled fp8 and fp4 matrices on the Tensor Engine of trn3."""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from nkisim import dtypes, machine, memory
from nkisim.enums import engine as Engine
from nkisim.errors import ArgumentError, PartitionError, ShapeError
from nkisim.instruction import NkiInstruction
from nkisim.isa import products, rules
from nkisim.numerics import bf16_product, decode, product
from nkisim.tensor import NkiTensor

_TENSOR = Engine.tensor
_SCALE_OFFSETS = (0, 4, 8, 12)
_SCALE_ROWS = decode.QUADRANT // decode.GROUP_PARTITIONS


def nc_matmul_mx(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    stationary_scale: NkiTensor,
    moving_scale: NkiTensor,
    tile_position: tuple[int, int] | None = None,
    tile_size: tuple[int, int] | None = None,
    accumulate: bool | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = stationary.T @ moving` of block-scaled fp8 or fp4 operands, contracting partitions and lanes (trn3).

    A block of 8 partitions x 4 lanes shares one e8m0 scale. Scales of partition p lie in the quadrant of p, at row
    `(p % 32) // 8` from the scale tile's start, which is 0, 4, 8 or 12 partitions into the quadrant.

    Args:
        dst: fp32 or bf16 tile in PSUM, (stationary columns, moving columns).
        stationary: packed tile in SBUF, (K, M): K a multiple of 32 up to 128, M even up to 128.
        moving: packed tile in SBUF, (K, N): N up to 4096 with an fp32 dst, 8192 with bf16.
        stationary_scale, moving_scale: e8m0 (or uint8) tiles in SBUF with M and N columns.
        tile_position, tile_size: row tiling, (start_row, 0) and (row_size, 128).
        accumulate: add to dst (True), overwrite (False), or add where dst was written before (None).

    Raises:
        TargetError, WrongBufferError, DtypeError, ShapeError, PartitionError: the operands do not suit.
        AccumulationError, UninitializedReadError: what they hold does not.
    """
    call = "nisa.nc_matmul_mx"
    core = machine.core(call)
    if not core.hardware.supports_mx:
        rules.generation(call, core.hardware, False, "trn3")
    try:
        key: tuple[Any, ...] = (
            call, dst.signature, stationary.signature, moving.signature, stationary_scale.signature,
            moving_scale.signature, tile_position and tuple(tile_position), tile_size and tuple(tile_size), accumulate,
        )  # fmt: skip
        passed = key in core.checked
    except (AttributeError, TypeError):
        rules.require_tensors(
            call, dst=dst, stationary=stationary, moving=moving,
            stationary_scale=stationary_scale, moving_scale=moving_scale,
        )  # fmt: skip
        key, passed = (), False
    if stationary.indirection is not stationary_scale.indirection:
        _check_pair(call, "stationary", stationary, stationary_scale)
    if moving.indirection is not moving_scale.indirection:
        _check_pair(call, "moving", moving, moving_scale)
    if not passed:
        _check(call, core, dst, stationary, moving, stationary_scale, moving_scale, tile_position)
        products.check_tiling(
            call, tile_position, tile_size, stationary, prod(stationary.shape[1:]), dst, column_tiles=False
        )
        products.check_accumulate(call, accumulate)
        core.checked.add(key)
    reads = (stationary.region, moving.region, stationary_scale.region, moving_scale.region)
    issued = core.emit("nc_matmul_mx", _TENSOR, (dst.region,), reads, name, accumulate)
    if core.numerics:
        multiply = _multiplier(call, core, (stationary, stationary_scale), (moving, moving_scale))
        products.store(call, core, dst, multiply, accumulate)
    return issued


def _check(
    call: str,
    core: machine.Core,
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    stationary_scale: NkiTensor,
    moving_scale: NkiTensor,
    position: Any,
) -> None:
    hardware = core.hardware
    rules.tile(call, "dst", dst, hardware, (rules.PSUM,))
    for operand, tensor in (("stationary", stationary), ("moving", moving)):
        rules.tile(call, operand, tensor, hardware, (rules.SBUF,))
        rules.dtype(call, operand, tensor, dtypes.MX_DATA)
    products.check_fed_together(call, stationary, moving)
    contraction, columns = stationary.shape[0], prod(stationary.shape[1:])
    if contraction % decode.QUADRANT:
        raise ShapeError(
            f"{call}: {contraction} partitions of stationary and moving; accepted: a multiple of 32 up to 128"
        )
    if columns % 2 or columns > hardware.matmul_stationary_free_max:
        limit = hardware.matmul_stationary_free_max
        raise ShapeError(f"{call}: stationary has {columns} columns; accepted: an even number up to {limit}")
    accepted = (dtypes.float32, dtypes.bfloat16)
    products.check_destination(call, dst, columns, prod(moving.shape[1:]), accepted, hardware)
    products.check_indirect(call, dst, stationary, moving, position, dtypes.MX_DATA)
    check_scale(call, "stationary_scale", stationary_scale, "stationary", stationary, columns)
    check_scale(call, "moving_scale", moving_scale, "moving", moving, prod(moving.shape[1:]))


def _check_pair(call: str, operand: str, data: NkiTensor, scale: NkiTensor) -> None:
    """Data and scales are one logical tensor: one index chooses the columns of both, or none does."""
    indices = [t.indirection.by.region if t.indirection is not None else None for t in (data, scale)]
    if indices[0] != indices[1]:
        raise ArgumentError(
            f"{call}: {operand} and {operand}_scale do not use the same index; accepted: indirect(index) on both, or "
            f"on neither"
        )


def check_scale(call: str, operand: str, scale: NkiTensor, of: str, data: NkiTensor, columns: int) -> None:
    """A scale tile: a column per packed column of its data, in data's quadrants, 0, 4, 8 or 12 partitions in."""
    rules.buffer(call, operand, scale, (rules.SBUF,))
    rules.dtype(call, operand, scale, dtypes.MX_SCALE)
    if prod(scale.shape[1:]) != columns:
        raise ShapeError(
            f"{call}: {operand} {list(scale.shape)} has {prod(scale.shape[1:])} columns; accepted: {columns}, one for "
            f"every 4 lanes of {of}"
        )
    start, quadrant = scale.start_partition, data.start_partition // decode.QUADRANT
    if start % decode.QUADRANT not in _SCALE_OFFSETS or start // decode.QUADRANT != quadrant:
        raise PartitionError(
            f"{call}: {operand} starts at partition {start}; accepted: 0, 4, 8 or 12 partitions into the quadrant of "
            f"{of}, which starts at {data.start_partition}"
        )
    needed = data.shape[0] - decode.QUADRANT + _SCALE_ROWS
    if scale.shape[0] < needed:
        raise ShapeError(
            f"{call}: {operand} has {scale.shape[0]} partitions for {data.shape[0]} of {of}; accepted: {needed} and up"
        )


def scale_rows(scale: NkiTensor, partitions: int) -> list[NkiTensor]:
    """The rows of a scale tile that hold scales: the first 4 of each quadrant of `partitions` partitions of data."""
    return [scale[start : start + _SCALE_ROWS] for start in range(0, partitions, decode.QUADRANT)]


def _multiplier(
    call: str, core: machine.Core, stationary: tuple[NkiTensor, NkiTensor], moving: tuple[NkiTensor, NkiTensor]
) -> Callable[[np.ndarray, bool], None]:
    """Multiplies two operands, each (data, scale): in bf16 where that is possible and exact, else in fp32."""
    if bf16_product.available():
        left = _kept(call, core, "stationary", *stationary, bf16_product.stationary)
        right = _kept(call, core, "moving", *moving, bf16_product.moving)
        if left.size and right.size:
            return functools.partial(bf16_product.accumulate, left, right)
    left = _kept(call, core, "stationary", *stationary, decode.scaled)
    right = _kept(call, core, "moving", *moving, decode.scaled)
    return functools.partial(product.accumulate, left, right)


def _kept(
    call: str, core: machine.Core, operand: str, data: NkiTensor, scale: NkiTensor, form: Callable[..., np.ndarray]
) -> np.ndarray:
    """The operand with its scales applied, in one form; kept until its data or its scales are overwritten."""
    data, scale = memory.settled(call, operand, data), memory.settled(call, f"{operand}_scale", scale)
    if data.indirection is not None:
        words = memory.read(call, operand, data)
        return form(words, data.dtype, _exponents(call, operand, scale, data.shape[0]))
    scale_key = (scale.offset, scale.shape, scale.strides, scale.dtype)
    exponents = core.decoded.get(scale.storage.decoded, scale_key)
    if exponents is None:
        exponents = _exponents(call, operand, scale, data.shape[0])
        core.decoded.put(scale.storage.decoded, scale_key, exponents)
    key = (data.offset, data.shape, data.strides, data.dtype, scale_key, form)
    matrix = core.decoded.get(data.storage.decoded, key, exponents)
    if matrix is None:
        words = memory.read(call, operand, data)
        matrix = form(words.reshape(len(words), -1), data.dtype, exponents)
        core.decoded.put(data.storage.decoded, key, matrix, exponents)
    return matrix


def _exponents(call: str, operand: str, scale: NkiTensor, partitions: int) -> np.ndarray:
    """The e8m0 bytes of a scale tile, without the partitions between quadrants that hold none."""
    if scale.indirection is not None:
        values = memory.read(call, f"{operand}_scale", scale)
        rows = [values[start : start + _SCALE_ROWS] for start in range(0, partitions, decode.QUADRANT)]
    else:
        rows = [memory.read(call, f"{operand}_scale", row) for row in scale_rows(scale, partitions)]
    return np.concatenate([row.view(np.uint8).reshape(_SCALE_ROWS, -1) for row in rows])
