"""Matrix products and transposes of the Tensor Engine."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from nkisim import dtypes, machine, memory
from nkisim.enums import engine as Engine
from nkisim.errors import (
    AccumulationError,
    ArgumentError,
    PartitionError,
    ShapeError,
)
from nkisim.instruction import NkiInstruction
from nkisim.isa import rules
from nkisim.numerics import decode, product
from nkisim.tensor import NkiTensor

_SCALE_OFFSETS = (0, 4, 8, 12)
_VECTOR_TRANSPOSE_MAX = 32


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
    try:
        key = (
            call, dst.signature, stationary.signature, moving.signature, stationary_scale.signature,
            moving_scale.signature, tile_position, tile_size, accumulate,
        )  # fmt: skip
    except AttributeError:
        rules.generation(call, core.hardware, core.hardware.supports_mx, "trn3")
        rules.require_tensors(
            call, dst=dst, stationary=stationary, moving=moving,
            stationary_scale=stationary_scale, moving_scale=moving_scale,
        )  # fmt: skip
        raise
    if key not in core.checked:
        _check_matmul_mx(call, core, dst, stationary, moving, stationary_scale, moving_scale)
        _check_tiling(call, stationary, tile_position, tile_size)
        _check_accumulate(call, accumulate)
        core.checked.add(key)
    reads = (stationary.region, moving.region, stationary_scale.region, moving_scale.region)
    issued = core.emit("nc_matmul_mx", Engine.tensor, (dst.region,), reads, name, accumulate)
    if core.numerics:
        left = _decoded(call, core, "stationary", stationary, stationary_scale)
        right = _decoded(call, core, "moving", moving, moving_scale)
        _multiply(call, dst, left, right, accumulate)
    return issued


def _check_matmul_mx(
    call: str,
    core: machine.Core,
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    stationary_scale: NkiTensor,
    moving_scale: NkiTensor,
) -> None:
    hardware = core.hardware
    rules.generation(call, hardware, hardware.supports_mx, "trn3")
    for operand, tensor in (("stationary", stationary), ("moving", moving)):
        rules.tile(call, operand, tensor, hardware, (rules.SBUF,))
        rules.dtype(call, operand, tensor, dtypes.MX_DATA)
        _check_matrix(call, operand, tensor)
    contraction, columns = stationary.shape
    rules.same_partitions(call, "moving", moving, "stationary", stationary)
    if contraction % decode.QUADRANT:
        raise ShapeError(
            f"{call}: {contraction} partitions of stationary and moving; accepted: a multiple of 32 up to 128"
        )
    if columns % 2 or columns > hardware.matmul_stationary_free_max:
        limit = hardware.matmul_stationary_free_max
        raise ShapeError(f"{call}: stationary has {columns} columns; accepted: an even number up to {limit}")
    _check_product(call, core, dst, columns, moving.shape[1], (dtypes.float32, dtypes.bfloat16))
    for operand, scale, data in (
        ("stationary_scale", stationary_scale, stationary),
        ("moving_scale", moving_scale, moving),
    ):
        _check_scale(call, operand, scale, data)


def _check_matrix(call: str, operand: str, tensor: NkiTensor) -> None:
    if len(tensor.shape) != 2:
        raise ShapeError(f"{call}: {operand} {list(tensor.shape)}; accepted: (partitions, columns)")


def _check_product(
    call: str, core: machine.Core, dst: NkiTensor, rows: int, columns: int, accepted: tuple[dtypes.DType, ...]
) -> None:
    hardware = core.hardware
    rules.tile(call, "dst", dst, hardware, (rules.PSUM,))
    rules.dtype(call, "dst", dst, accepted)
    rules.writable(call, "dst", dst)
    if dst.shape[0] != rows or prod(dst.shape[1:]) != columns:
        raise ShapeError(f"{call}: dst {list(dst.shape)}; accepted: ({rows}, {columns}), the operands' columns")
    wide = dst.dtype is dtypes.bfloat16
    limit = hardware.matmul_moving_free_max_bf16 if wide else hardware.matmul_moving_free_max_fp32
    if columns > limit:
        raise ShapeError(f"{call}: moving has {columns} columns; accepted: up to {limit} with a {dst.dtype} dst")


def _check_scale(call: str, operand: str, scale: NkiTensor, data: NkiTensor) -> None:
    rules.buffer(call, operand, scale, (rules.SBUF,))
    rules.dtype(call, operand, scale, dtypes.MX_SCALE)
    _check_matrix(call, operand, scale)
    if scale.shape[1] != data.shape[1]:
        raise ShapeError(f"{call}: {operand} has {scale.shape[1]} columns, its data {data.shape[1]}; accepted: as many")
    start = scale.start_partition
    if (
        start % decode.QUADRANT not in _SCALE_OFFSETS
        or start // decode.QUADRANT != data.start_partition // decode.QUADRANT
    ):
        raise PartitionError(
            f"{call}: {operand} starts at partition {start}; accepted: 0, 4, 8 or 12 partitions into the quadrant of "
            f"its data, which starts at {data.start_partition}"
        )
    needed = data.shape[0] - decode.QUADRANT + decode.QUADRANT // decode.GROUP_PARTITIONS
    if scale.shape[0] < needed:
        raise ShapeError(
            f"{call}: {operand} has {scale.shape[0]} partitions for {data.shape[0]} of data; accepted: {needed} and up"
        )


def _check_tiling(call: str, stationary: NkiTensor, position: Any, size: Any) -> None:
    if not position and not size:
        return
    if not position or not size:
        raise ArgumentError(f"{call}: tile_position {position!r}, tile_size {size!r}; accepted: both or neither")
    (row, column), (rows, columns) = position, size
    if rows not in (32, 64, 128) or columns != 128 or column != 0 or row % rows or not 0 <= row < 128:
        raise ArgumentError(
            f"{call}: tile_position {position}, tile_size {size}; accepted: size (32, 64 or 128, 128), "
            f"position (a multiple of the rows below 128, 0)"
        )
    if stationary.shape[0] > rows:
        raise ShapeError(f"{call}: stationary has {stationary.shape[0]} partitions; accepted: up to tile_size's {rows}")


def _check_accumulate(call: str, accumulate: Any) -> None:
    if accumulate not in (None, True, False):
        raise ArgumentError(f"{call}: accumulate {accumulate!r}; accepted: True, False or None")


def _decoded(call: str, core: machine.Core, operand: str, data: NkiTensor, scale: NkiTensor) -> np.ndarray:
    """The operand as an fp32 matrix, its block scales applied."""
    key = (data.offset, data.shape, data.strides, data.dtype)
    table = data.storage.decoded
    matrix = core.decoded.get(table, key)
    if matrix is None:
        matrix = decode.lanes(memory.read(call, operand, data), data.dtype)
        core.decoded.put(table, key, matrix)
    quadrants = range(0, data.shape[0], decode.QUADRANT)
    per_quadrant = decode.QUADRANT // decode.GROUP_PARTITIONS
    rows = [memory.read(call, f"{operand}_scale", scale[q : q + per_quadrant]) for q in quadrants]
    exponents = np.concatenate([r.view(np.uint8) for r in rows])
    if (exponents == decode.NEUTRAL_SCALE).all():
        return matrix
    return decode.apply_scales(matrix.copy(), exponents)


def _multiply(call: str, dst: NkiTensor, left: np.ndarray, right: np.ndarray, accumulate: bool | None) -> None:
    """dst (+)= left.T @ right in fp32; a bf16 dst rounds each sum."""
    written = dst.storage.unwritten is None or dst.storage.first_unwritten(dst.region) is None
    if accumulate and not written:
        raise AccumulationError(
            f"{call}: accumulate=True onto {dst.name} {list(dst.shape)}, part of which no matmul has written; "
            f"accepted: accumulate=False first"
        )
    onto = written if accumulate is None else accumulate
    target = memory.destination(dst)
    if dst.dtype is dtypes.float32 and target.ndim == 2:
        product.accumulate(target, left, right, onto=onto)
        dst.storage.mark_written(dst.region)
        return
    total = np.empty((left.shape[1], right.shape[1]), np.float32)
    if onto:
        total[...] = target.reshape(total.shape)
    product.accumulate(total, left, right, onto=onto)
    memory.write(dst, total)


def nc_transpose(
    dst: NkiTensor, data: NkiTensor, engine: Engine = Engine.unknown, name: str | None = None
) -> NkiInstruction:
    """Swaps the partition axis with the free axes, flattened into one; bit by bit.

    Args:
        dst: (free elements, partitions) tile of data's type; in PSUM for the Tensor Engine.
        data: tile up to (128, 128) in SBUF for the Tensor Engine, up to (32, 32) anywhere on-chip for Vector.
        engine: tensor or vector; unknown takes vector where only it fits, else tensor.

    Raises:
        WrongBufferError, DtypeError, ShapeError, PartitionError, EngineError, UninitializedReadError.
    """
    call = "nisa.nc_transpose"
    core = machine.core(call)
    try:
        key = (call, dst.signature, data.signature, engine)
    except AttributeError:
        rules.require_tensors(call, dst=dst, data=data)
        raise
    chosen = _transpose_engine(call, dst, data, engine)
    if key not in core.checked:
        _check_transpose(call, core, dst, data, chosen)
        core.checked.add(key)
    issued = core.emit("nc_transpose", chosen, (dst.region,), (data.region,), name)
    if core.numerics:
        values = memory.read(call, "data", data)
        memory.write(dst, values.reshape(values.shape[0], -1).T)
    return issued


def _transpose_engine(call: str, dst: NkiTensor, data: NkiTensor, asked: Engine) -> Engine:
    if asked is not Engine.unknown:
        return rules.choose_engine(call, asked, (Engine.tensor, Engine.vector))
    tensor_reaches = data.buffer is rules.SBUF and dst.buffer is rules.PSUM
    return Engine.tensor if tensor_reaches else Engine.vector


def _check_transpose(call: str, core: machine.Core, dst: NkiTensor, data: NkiTensor, chosen: Engine) -> None:
    on_tensor = chosen is Engine.tensor
    rules.tile(call, "data", data, core.hardware, (rules.SBUF,) if on_tensor else rules.ON_CHIP)
    rules.tile(call, "dst", dst, core.hardware, (rules.PSUM,) if on_tensor else rules.ON_CHIP)
    rules.writable(call, "dst", dst)
    rules.same_dtype(call, "dst", dst, "data", data)
    limit = core.hardware.matmul_stationary_free_max if on_tensor else _VECTOR_TRANSPOSE_MAX
    rows, columns = data.shape[0], prod(data.shape[1:])
    if rows > limit or columns > limit:
        raise ShapeError(f"{call}: data {list(data.shape)} on engine {chosen.name}; accepted: up to ({limit}, {limit})")
    if dst.shape[0] != columns or prod(dst.shape[1:]) != rows:
        raise ShapeError(f"{call}: dst {list(dst.shape)}; accepted: ({columns}, {rows}), data transposed")
