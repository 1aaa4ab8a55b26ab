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
from nkisim.indirect import COLUMNS
from nkisim.instruction import NkiInstruction
from nkisim.isa import products, rules
from nkisim.numerics import bf16_product, decode, product
from nkisim.storage import Region
from nkisim.tensor import NkiTensor

_CALL = "nisa.nc_matmul_mx"
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
    `(p % 32) // 8` from the scale tile's start, which is 0, 4, 8 or 12 partitions into the quadrant. Scales are applied
    before the products are taken, in fp32: an operand beyond its largest number is infinite here, also where the
    other's scale would bring the product back, which no document tells.

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
    core = machine.current or machine.core(_CALL)
    try:
        key: tuple[Any, ...] = (
            _CALL, dst.signature, stationary.signature, moving.signature, stationary_scale.signature,
            moving_scale.signature, tile_position and repr(tile_position), tile_size and repr(tile_size), accumulate,
            type(accumulate),
        )  # fmt: skip
        passed = key in core.checked
    except (AttributeError, TypeError, ValueError):
        key, passed = (), False
    if not passed:
        _check(core, dst, (stationary, stationary_scale), (moving, moving_scale), tile_position, tile_size, accumulate)
        # Which index an indirect operand uses is no part of its signature.
        if key and all(t.indirection is None for t in (stationary, stationary_scale, moving, moving_scale)):
            core.checked.add(key)
    reads = (stationary.region, moving.region, stationary_scale.region, moving_scale.region)
    issued = core.emit("nc_matmul_mx", _TENSOR, (dst.region,), reads, name, accumulate)
    if core.numerics:
        _multiply(core, dst, (stationary, stationary_scale), (moving, moving_scale), accumulate)
    return issued


Operand = tuple[NkiTensor, NkiTensor]
"""Packed data and its scales."""


def _check(
    core: machine.Core,
    dst: NkiTensor,
    stationary: Operand,
    moving: Operand,
    position: Any,
    size: Any,
    accumulate: Any,
) -> None:
    call, hardware = _CALL, core.hardware
    rules.generation(call, hardware, hardware.supports_mx, "trn3")
    operands = {"stationary": stationary, "moving": moving}
    rules.require_tensors(
        call,
        dst=dst,
        **{operand: data for operand, (data, _) in operands.items()},
        **{f"{operand}_scale": scale for operand, (_, scale) in operands.items()},
    )
    rules.tile(call, "dst", dst, hardware, (rules.PSUM,))
    for operand, (data, scale) in operands.items():
        _check_pair(call, operand, data, scale)
        rules.tile(call, operand, data, hardware, (rules.SBUF,))
        rules.dtype(call, operand, data, dtypes.MX_DATA)
    products.check_fed_together(call, stationary[0], moving[0])
    contraction, columns = stationary[0].shape[0], prod(stationary[0].shape[1:])
    if contraction % decode.QUADRANT:
        raise ShapeError(
            f"{call}: {contraction} partitions of stationary and moving; accepted: a multiple of 32 up to 128"
        )
    if columns % 2 or columns > hardware.matmul_stationary_free_max:
        limit = hardware.matmul_stationary_free_max
        raise ShapeError(f"{call}: stationary has {columns} columns; accepted: an even number up to {limit}")
    accepted = (dtypes.float32, dtypes.bfloat16)
    products.check_destination(call, dst, columns, prod(moving[0].shape[1:]), accepted, hardware)
    products.check_indirect(call, dst, stationary[0], moving[0], position, dtypes.MX_DATA)
    for operand, (data, scale) in operands.items():
        check_scale(call, f"{operand}_scale", scale, operand, data, prod(data.shape[1:]))
    products.check_tiling(call, position, size, stationary[0], columns, dst, column_tiles=False)
    products.check_accumulate(call, accumulate)


def _check_pair(call: str, operand: str, data: NkiTensor, scale: NkiTensor) -> None:
    """Data and scales are one logical tensor: one index chooses the columns of both, or none does."""
    found = [t.indirection for t in (data, scale)]
    indices = [f.by.region if f is not None and f.kind == COLUMNS else None for f in found]
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


def scale_regions(scale: NkiTensor, partitions: int) -> list[Region]:
    """The regions of `scale_rows`."""
    return scale.once(f"scales of {partitions}", lambda tile: [row.region for row in scale_rows(tile, partitions)])


def _multiply(
    core: machine.Core, dst: NkiTensor, stationary: Operand, moving: Operand, accumulate: bool | None
) -> None:
    """Multiplies two operands, each (data, scale): in bf16 where that is possible and exact, else in fp32."""
    if bf16_product.available():
        left = _kept(_CALL, core, "stationary", *stationary, bf16_product.stationary)
        right = _kept(_CALL, core, "moving", *moving, bf16_product.moving)
        if left.size and right.size:
            multiply = functools.partial(bf16_product.accumulate, left, right)
            products.store(_CALL, core, dst, multiply, accumulate, by_columns=multiply)
            return
    left = _kept(_CALL, core, "stationary", *stationary, decode.scaled)
    right = _kept(_CALL, core, "moving", *moving, decode.scaled)
    products.store(_CALL, core, dst, functools.partial(product.accumulate, left, right), accumulate)


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
