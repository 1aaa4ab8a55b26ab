"""Tiles between memories and layouts."""

from __future__ import annotations

from typing import Any

from nkisim import dtypes, memory, views
from nkisim.dtypes import as_dtype, uint32
from nkisim.enums import MemoryRegion
from nkisim.errors import NotSimulatedError, ShapeError
from nkisim.isa import copying, gather, rules, selection, transfer
from nkisim.isa import matmul as matmul_engine
from nkisim.isa import transpose as transpose_engine
from nkisim.language import compose, operators
from nkisim.tensor import NkiTensor


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new tile in SBUF with the values of an HBM tensor, by one DMA, which also casts."""
    return _loaded("nl.load", src, dtype)


def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new tile (columns, rows) in SBUF with an HBM tensor (rows, columns), by one DMA that reads it column by column.

    Raises:
        ShapeError: `src` has not two dimensions.
    """
    call = "nl.load_transpose2d"
    rules.require_tensors(call, src=src)
    if len(src.shape) != 2:
        raise ShapeError(f"{call}: src {list(src.shape)}; accepted: two dimensions")
    rules.buffer(call, "src", src, rules.HBM)
    return _loaded(call, src.permute((1, 0)), dtype)


def _loaded(call: str, src: NkiTensor, dtype: Any) -> NkiTensor:
    rules.require_tensors(call, src=src)
    rules.buffer(call, "src", src, rules.HBM)
    tile = memory.create(call, src.shape, src.dtype if dtype is None else dtype, MemoryRegion.sbuf)
    transfer.dma_copy(tile, src)
    return tile


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Writes a tile in SBUF to an HBM tensor, by one DMA, which also casts."""
    call = "nl.store"
    rules.require_tensors(call, dst=dst, value=value)
    rules.buffer(call, "dst", dst, rules.HBM)
    rules.buffer(call, "value", value, (MemoryRegion.sbuf,))
    transfer.dma_copy(dst, value)


def copy(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new tile in SBUF with the values of a tile; as an operator, the value itself."""
    x = compose.tile("nl.copy", "x", x)
    result = compose.new(x.shape, dtype or x.dtype)
    copying.tensor_copy(result, x)
    return result


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """A view with a dimension of size 1 more, at position `axis`; never before the partition dimension."""
    return compose.tile("nl.expand_dims", "x", x).expand_dim(axis)


def broadcast_to(x: NkiTensor, shape: Any, dtype: Any = None) -> NkiTensor:
    """A new tile of a larger shape of the same rank; `x` itself where shape and type are its own already.

    Raises:
        ShapeError: a size that neither is the tile's nor stretches its 1.
    """
    call = "nl.broadcast_to"
    x = compose.tile(call, "x", x)
    wanted = views.integers(shape, f"{call}: shape")
    kind = as_dtype(dtype) if dtype is not None else x.dtype
    if wanted == x.shape:
        return compose.cast(x, kind)
    if len(wanted) != len(x.shape) or any(new != old != 1 for new, old in zip(wanted, x.shape, strict=True)):
        raise ShapeError(
            f"{call}: {list(x.shape)} to {list(wanted)}; accepted: the same number of dimensions, "
            f"with size 1 where they differ"
        )
    result = compose.new(wanted, kind)
    copying.tensor_copy(result, compose.stretched(x, wanted))
    return result


def transpose(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A tile (columns, rows) in PSUM with the values of a 2-D tile (rows, columns), by the Tensor Engine.

    A tile in PSUM is copied to SBUF first, from where the Tensor Engine reads.

    Raises:
        ShapeError: `x` has not two dimensions.
    """
    call = "nl.transpose"
    x = compose.tile(call, "x", x)
    if len(x.shape) != 2:
        raise ShapeError(f"{call}: x {list(x.shape)}; accepted: two dimensions")
    if x.buffer is MemoryRegion.psum:
        x = copy(x)
    kind = as_dtype(dtype) if dtype is not None else x.dtype
    result = memory.create(call, (x.shape[1], x.shape[0]), kind, MemoryRegion.psum)
    transpose_engine.nc_transpose(result, compose.cast(x, kind))
    return result


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """`x @ y` in fp32 in PSUM; `x.T @ y` with `transpose_x`, which saves a transposition.

    Args:
        x: tile in SBUF, (M, K), or (K, M) with `transpose_x`; up to 128 either way.
        y: tile in SBUF, (K, N); K up to 128, N up to 512.

    Raises:
        ShapeError: the sizes exceed those, or x and y differ in K.
    """
    call = "nl.matmul"
    x, y = compose.tile(call, "x", x), compose.tile(call, "y", y)
    _check_matmul(call, x, y, transpose_x)
    stationary = x if transpose_x else copy(transpose(x))
    result = memory.create(call, (stationary.shape[1], y.shape[1]), dtypes.float32, MemoryRegion.psum)
    matmul_engine.nc_matmul(result, stationary, y)
    return result


_MATMUL_MAX = 128
_MATMUL_COLUMNS_MAX = 512


def _check_matmul(call: str, x: NkiTensor, y: NkiTensor, transpose_x: bool) -> None:
    for operand, tile, limit in (("x", x, _MATMUL_MAX), ("y", y, _MATMUL_COLUMNS_MAX)):
        rules.buffer(call, operand, tile, (MemoryRegion.sbuf,))
        if len(tile.shape) != 2 or tile.shape[1] > limit:
            raise ShapeError(
                f"{call}: {operand} {list(tile.shape)}; accepted: two dimensions, at most {_MATMUL_MAX} x {limit}"
            )
    contraction = x.shape[0 if transpose_x else 1]
    if contraction != y.shape[0]:
        raise ShapeError(
            f"{call}: x {list(x.shape)} contracts {contraction} elements, y {list(y.shape)} has {y.shape[0]} "
            f"partitions; accepted: the same number"
        )


def gather_flattened(data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: Any = None) -> NkiTensor:
    """`data[p, indices[p, ...]]` for each partition p, the free dimensions of `data` flattened.

    Args:
        data, indices: tiles in SBUF with as many partitions; indices of another type than uint32 are cast.
        axis: 0. What other values would mean is not documented.
        dtype: of the result, by default that of `data`.
    """
    call = "nl.gather_flattened"
    data, indices = compose.tile(call, "data", data), compose.tile(call, "indices", indices)
    if axis != 0:
        raise NotSimulatedError(f"{call}: axis {axis!r}; accepted: 0, others are not documented")
    gathered = compose.new(indices.shape, data.dtype)
    gather.nc_n_gather(gathered, data, compose.cast(indices, uint32))
    return compose.cast(gathered, as_dtype(dtype) if dtype is not None else data.dtype)


def where(condition: NkiTensor, x: NkiTensor, y: NkiTensor, dtype: Any = None) -> NkiTensor:
    """`x` where `condition` is nonzero, else `y`: a copy of `y`, overwritten where the condition holds.

    Args:
        condition: a tile, usually of 1 and 0 as comparisons give it.
        x, y: tiles, whose dimensions of size 1 stretch to the condition's.
        dtype: of the result; without it, the type of `x` and `y` that holds most.
    """
    call = "nl.where"
    condition, x, y = (compose.tile(call, n, t) for n, t in (("condition", condition), ("x", x), ("y", y)))
    kind = compose.result_dtype(dtype, x, y)
    shape = condition.shape
    for other in (x, y):
        if compose.broadcast_shape(call, condition, other) != shape:
            raise ShapeError(f"{call}: {list(other.shape)} for a condition {list(shape)}; accepted: its shape")
    result = compose.new(shape, kind)
    copying.tensor_copy(result, compose.stretched(y, shape))
    chosen = compose.cast(x, kind)
    flags = operators.not_equal(condition, 0, dtypes.uint8)
    selection.tensor_copy_predicated(result, compose.stretched(chosen, shape), flags)
    return result
