"""What the matrix products share: the Tensor Engine's tiling modes, and results in PSUM.

PSUM adds a product to what it holds, element by element. A group of products is started by one that overwrites; the
ones after it accumulate. The documentation defines no end of a group, so that reading between two of them is allowed,
and so are several groups in one bank, as long as their elements differ. On trn2 a group may not start from what another
engine wrote. Of accumulate=None there it says both that the first product overwrites and that whatever was written is
added to; where that is zero, as public kernels make it, both come to the same, and elsewhere this refuses.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from common.hardware import Hardware
from nkisim import indirect, machine, memory
from nkisim.dtypes import DType, bfloat16, float32
from nkisim.errors import AccumulationError, ArgumentError, PartitionError, ShapeError
from nkisim.isa import rules
from nkisim.numerics import decode
from nkisim.numerics.background import Multiply
from nkisim.tensor import NkiTensor

_ROW_SIZES = (32, 64, 128)


def first_byte_in_bank(dst: NkiTensor, hardware: Hardware) -> int:
    """Where in a PSUM bank a tile begins; a tensor without an address begins with a bank."""
    allocation = dst.storage.allocation
    placed = allocation.address[1] if allocation.address else 0
    return (placed + dst.offset * dst.dtype.itemsize % allocation.row_bytes) % hardware.psum_bank_bytes


def place(dst: NkiTensor, hardware: Hardware) -> int:
    """What rules look at in a PSUM tile besides its signature: where in a bank it begins, on trn3 whether oddly."""
    return dst.offset % 2 if hardware.supports_mx else first_byte_in_bank(dst, hardware)


def check_destination(
    call: str, dst: NkiTensor, rows: int, columns: int, accepted: tuple[DType, ...], hardware: Hardware
) -> None:
    """The result fits its place: (rows, columns) in PSUM, within a bank on trn2."""
    rules.tile(call, "dst", dst, hardware, (rules.PSUM,))
    rules.dtype(call, "dst", dst, accepted)
    rules.writable(call, "dst", dst)
    wide = dst.dtype.itemsize == bfloat16.itemsize
    limit = hardware.matmul_moving_free_max_bf16 if wide else hardware.matmul_moving_free_max_fp32
    if columns > limit:
        raise ShapeError(f"{call}: moving has {columns} columns; accepted: up to {limit} with a {dst.dtype} dst")
    if dst.shape[0] != rows or prod(dst.shape[1:]) != columns:
        raise ShapeError(f"{call}: dst {list(dst.shape)}; accepted: ({rows}, {columns}), the operands' columns")
    if hardware.matmul_moving_free_max_fp32 <= hardware.psum_bank_fp32:
        _check_one_bank(call, dst, hardware)


def _check_one_bank(call: str, dst: NkiTensor, hardware: Hardware) -> None:
    steps = sum((size - 1) * stride for size, stride in zip(dst.shape[1:], dst.strides[1:], strict=True))
    end = first_byte_in_bank(dst, hardware) + (steps + 1) * dst.dtype.itemsize
    if end > hardware.psum_bank_bytes:
        raise ShapeError(
            f"{call}: dst {dst.name} {list(dst.shape)} crosses a PSUM bank on {hardware.name}: it ends "
            f"{end} bytes after the bank's start; accepted: within one bank of {hardware.psum_bank_bytes} bytes"
        )


def matrix(call: str, core: machine.Core, operand: str, tensor: NkiTensor, halves: int = 1) -> np.ndarray:
    """An operand in fp32, [contraction, columns]; what is not fp32 already is kept decoded.

    Args:
        halves: 2 where the first free dimension also contracts; row `half * partitions + partition`.
    """
    tensor = memory.settled(call, operand, tensor)
    if tensor.indirection is not None:
        return decode.matrix(memory.read(call, operand, tensor), halves)
    if tensor.dtype is float32 and halves == 1:
        values = memory.read(call, operand, tensor)
        return values if values.ndim == 2 else values.reshape(len(values), -1)
    key = (tensor.offset, tensor.shape, tensor.strides, tensor.dtype, halves)
    table = tensor.storage.decoded
    found = core.decoded.get(table, key)
    if found is None:
        found = decode.matrix(memory.read(call, operand, tensor), halves)
        core.decoded.put(table, key, found)
    return found


def check_fed_together(call: str, stationary: NkiTensor, moving: NkiTensor) -> None:
    """Both operands lie in the same partitions, of which each feeds one row of the array."""
    rules.same_partitions(call, "moving", moving, "stationary", stationary)
    if moving.start_partition != stationary.start_partition:
        raise PartitionError(
            f"{call}: moving starts at partition {moving.start_partition}, stationary at "
            f"{stationary.start_partition}; accepted: the same, since a partition feeds one row of the array"
        )


def check_indirect(
    call: str, dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, position: Any, accepted: tuple[DType, ...]
) -> None:
    """Operands whose columns an index chooses (trn3), with `accepted` types for stationary and moving."""
    operands = [("dst", dst), ("stationary", stationary), ("moving", moving)]
    chosen = [(o, t) for o, t in operands if t.indirection is not None and t.indirection.kind == indirect.COLUMNS]
    if chosen and position and tuple(position) != (0, 0):
        raise ArgumentError(f"{call}: tile_position {position} with an indirect operand; accepted: (0, 0) or none")
    for operand, tensor in chosen:
        index = tensor.indirection.by
        if index.start_partition % 32:
            raise PartitionError(
                f"{call}: the index of {operand} starts at partition {index.start_partition}; "
                f"accepted: a multiple of 32"
            )
        base, of = (stationary, "stationary") if operand == "dst" else (tensor, operand)
        if index.start_partition != base.start_partition:
            raise PartitionError(
                f"{call}: the index of {operand} starts at partition {index.start_partition}, {of} at "
                f"{base.start_partition}; accepted: the same"
            )
        if operand != "dst":
            rules.dtype(call, f"indirect {operand}", tensor, accepted)


def check_accumulate(call: str, accumulate: Any) -> None:
    """A flag known when the kernel is traced, or None."""
    if accumulate is not None and not (isinstance(accumulate, (int, np.bool_)) and accumulate in (0, 1)):
        raise ArgumentError(f"{call}: accumulate {accumulate!r}; accepted: True, False or None")


def check_tiling(
    call: str, position: Any, size: Any, stationary: NkiTensor, columns: int, dst: NkiTensor, column_tiles: bool
) -> None:
    """A tile of the 128 x 128 array: rows are fed by the SBUF partitions, columns drain to the PSUM partitions.

    Args:
        position, size: (start_row, start_column) and (rows, columns) of the tile; empty for the whole array.
        columns: of `stationary`.
        column_tiles: whether tiles of fewer than 128 columns are possible.
    """
    for parameter, given in (("tile_position", position), ("tile_size", size)):
        if given is not None and not isinstance(given, (tuple, list)):
            raise ArgumentError(f"{call}: {parameter} {given!r}; accepted: a pair of integers")
    if not position and not size:
        return
    if not position or not size:
        raise ArgumentError(f"{call}: tile_position {position!r}, tile_size {size!r}; accepted: both or neither")
    (row, column), (rows, width) = _pair(call, "tile_position", position), _pair(call, "tile_size", size)
    widths = _ROW_SIZES if column_tiles else _ROW_SIZES[-1:]
    if rows not in _ROW_SIZES or width not in widths:
        raise ArgumentError(
            f"{call}: tile_size {size}; accepted: ({' or '.join(map(str, _ROW_SIZES))}, "
            f"{' or '.join(map(str, widths))})"
        )
    if row % rows or column % width or not 0 <= row < 128 or not 0 <= column < 128:
        raise ArgumentError(
            f"{call}: tile_position {position} with tile_size {size}; accepted: multiples of it, below 128"
        )
    if stationary.shape[0] > rows or columns > width:
        raise ShapeError(
            f"{call}: stationary has {stationary.shape[0]} partitions and {columns} columns; "
            f"accepted: up to tile_size {size}"
        )
    if stationary.start_partition != row:
        raise PartitionError(
            f"{call}: stationary starts at partition {stationary.start_partition} with tile_position {position}; "
            f"accepted: partition {row}, which feeds that row"
        )
    if width < 128 and dst.start_partition != column:
        raise PartitionError(
            f"{call}: dst starts at partition {dst.start_partition} with tile_position {position}; "
            f"accepted: partition {column}, to which that column drains"
        )


def _pair(call: str, parameter: str, value: Any) -> tuple[int, int]:
    try:
        first, second = (operator.index(v) for v in value)
    except (TypeError, ValueError):
        raise ArgumentError(f"{call}: {parameter} {value!r}; accepted: a pair of integers") from None
    return first, second


def store(
    call: str,
    core: machine.Core,
    dst: NkiTensor,
    multiply: Callable[[np.ndarray, bool], None],
    accumulate: bool | None,
    by_columns: Multiply | None = None,
) -> None:
    """Adds a product to dst or puts it there; a bf16 dst is read as fp32, added to and rounded once.

    Args:
        multiply: writes the product to an fp32 array (rows, columns), or with True adds it to what is there.
        accumulate: as the instruction has it; None adds where dst was written before.
        by_columns: does so for some columns, on any thread; None: it cannot.
    """
    dst = memory.settled(call, "dst", dst)
    onto = _accumulates(call, core, dst, accumulate)
    if dst.dtype is float32 and len(dst.shape) == 2 and dst.indirection is None:
        if by_columns is not None:
            dst.storage.multiply(dst.region, by_columns, onto)
        else:
            multiply(memory.destination(dst), onto)
        dst.storage.mark_written(dst.region)
        dst.storage.clear_foreign(dst.region)
        return
    total = np.empty((dst.shape[0], prod(dst.shape[1:])), np.float32)
    multiply(total, False)
    if onto:
        total += memory.read_fp32(call, "dst", dst).reshape(total.shape)
    memory.write_product(dst, total)


def _accumulates(call: str, core: machine.Core, dst: NkiTensor, accumulate: bool | None) -> bool:
    if accumulate is not None and not accumulate:
        return False
    storage = dst.storage
    if dst.indirection is not None:
        return bool(accumulate) if accumulate is not None else storage.has_been_written
    written = storage.is_written(dst.region)
    if written is None or (accumulate and not written):
        raise AccumulationError(
            f"{call}: accumulate={accumulate} onto {dst.name} {list(dst.shape)}, "
            f"{'part of which ' if written is None else 'which '}nothing has written; "
            f"accepted: accumulate=False first"
        )
    if written and not core.hardware.supports_mx and storage.is_foreign(dst.region):
        if accumulate is None and not memory.read(call, "dst", dst).any():
            return False
        raise AccumulationError(
            f"{call}: accumulate={accumulate} onto {dst.name} {list(dst.shape)}, which an engine other than the Tensor "
            f"Engine wrote; accepted on {core.hardware.name}: what a product with accumulate=False started"
        )
    return written
