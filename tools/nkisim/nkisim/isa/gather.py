"""Gathers, searches and sorts of the GpSimd Engine, whose eight cores each see 16 partitions of SBUF."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from nkisim import dtypes, machine, memory, views
from nkisim.enums import engine as Engine
from nkisim.errors import ArgumentError, OutOfBoundsError, ShapeError
from nkisim.instruction import NkiInstruction
from nkisim.isa import rules
from nkisim.storage import Region
from nkisim.tensor import NkiTensor

CORE_PARTITIONS = 16
_LOCAL_GATHER_RUNS = (1, 2, 4, 8, 16, 32)
_LOCAL_GATHER_INDICES_MAX = 4096
_TOPK_MIN, _TOPK_ELEMENTS_END, _TOPK_K_END = 8, 65536, 32768
_LOWEST, _HIGHEST = -(1 << 31), (1 << 31) - 1


def _in_sbuf(core: machine.Core, call: str, **tiles: NkiTensor) -> None:
    for operand, tensor in tiles.items():
        rules.tile(call, operand, tensor, core.hardware, (rules.SBUF,))


def nc_n_gather(dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None) -> NkiInstruction:
    """`dst[p, i] = data[p, indices[p, i]]`, the free dimensions of all three flattened.

    Args:
        dst: tile in SBUF of data's type, with as many elements per partition as indices.
        data: tile in SBUF.
        indices: uint32 tile in SBUF.

    Raises:
        WrongBufferError, DtypeError, ShapeError, PartitionError, UninitializedReadError.
        OutOfBoundsError: an index beyond data's elements per partition.
    """
    call = "nisa.nc_n_gather"
    core = machine.core(call)
    rules.require_tensors(call, dst=dst, data=data, indices=indices)
    key = (call, dst.signature, data.signature, indices.signature)
    if key not in core.checked:
        _in_sbuf(core, call, dst=dst, data=data, indices=indices)
        rules.writable(call, "dst", dst)
        rules.dtype(call, "indices", indices, (dtypes.uint32,))
        rules.same_dtype(call, "dst", dst, "data", data)
        rules.same_partitions(call, "data", data, "indices", indices)
        rules.same_elements(call, "dst", dst, "indices", indices)
        core.checked.add(key)
    issued = core.emit("nc_n_gather", Engine.gpsimd, (dst.region,), (data.region, indices.region), name)
    if core.numerics:
        partitions = data.shape[0]
        wanted = memory.read(call, "indices", indices).reshape(partitions, -1).astype(np.int64)
        _check_indices(call, "indices", wanted, prod(data.shape[1:]))
        memory.write(dst, _taken(call, "data", data, wanted))
    return issued


def _check_indices(call: str, operand: str, wanted: np.ndarray, limit: int) -> None:
    outside = np.argwhere(wanted >= limit)
    if outside.size:
        place = tuple(int(i) for i in outside[0])
        raise OutOfBoundsError(
            f"{call}: {operand}: {int(wanted[place])} at partition {place[0]}, position {place[1]}; "
            f"accepted: below {limit}, the elements of a partition"
        )


def _taken(call: str, operand: str, data: NkiTensor, wanted: np.ndarray) -> np.ndarray:
    """Elements `wanted` (partitions, count) of each partition's flattened free dimensions, all of them written."""
    chosen = None
    if data.storage.unwritten is not None:
        chosen = np.zeros((data.shape[0], prod(data.shape[1:])), np.bool_)
        np.put_along_axis(chosen, wanted, True, axis=1)
        chosen = chosen.reshape(data.shape)
    values = memory.read_where(call, operand, data, chosen)
    return np.take_along_axis(values.reshape(data.shape[0], -1), wanted, axis=1)


def local_gather(
    dst: NkiTensor,
    src_buffer: NkiTensor,
    index: NkiTensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Each group of 16 partitions gathers runs of elements at the indices that the group holds together.

    A group's indices, read down its partitions and then along the free dimension, apply to each of its partitions:
    run i of partition p is `src_buffer[p, index_i : index_i + num_elem_per_idx]`, free dimensions flattened.

    Args:
        dst: tile in SBUF of src_buffer's type, with num_valid_indices * num_elem_per_idx elements per partition.
        src_buffer: tile in SBUF with a multiple of 16 partitions.
        index: uint16 tile in SBUF with as many partitions; counts elements.
        num_elem_per_idx: 1, 2, 4, 8, 16 or 32.
        num_valid_indices: how many of a group's indices count, up to 4096; all of them where it is None.

    Raises:
        WrongBufferError, DtypeError, ShapeError, ArgumentError, PartitionError, UninitializedReadError.
        OutOfBoundsError: a run leaves the partition, which the hardware leaves undefined.
    """
    call = "nisa.local_gather"
    core = machine.core(call)
    rules.require_tensors(call, dst=dst, src_buffer=src_buffer, index=index)
    held = CORE_PARTITIONS * prod(index.shape[1:])
    count = held if num_valid_indices is None else views.integer(num_valid_indices, f"{call}: num_valid_indices")
    num_elem_per_idx = views.integer(num_elem_per_idx, f"{call}: num_elem_per_idx")
    key = (call, dst.signature, src_buffer.signature, index.signature, num_elem_per_idx, count)
    if key not in core.checked:
        _in_sbuf(core, call, dst=dst, src_buffer=src_buffer, index=index)
        _check_local_gather(call, dst, src_buffer, index, num_elem_per_idx, count, held)
        core.checked.add(key)
    issued = core.emit(
        "local_gather", Engine.gpsimd, (dst.region,), (src_buffer.region, index.region), name, num_elem_per_idx
    )
    if core.numerics:
        starts = _group_values(memory.read_where(call, "index", index, _in_snake(index, count)), count)
        wanted = (starts.astype(np.int64)[:, :, None] + np.arange(num_elem_per_idx)).reshape(len(starts), -1)
        _check_indices(call, "index (with num_elem_per_idx)", wanted, prod(src_buffer.shape[1:]))
        memory.write(dst, _taken(call, "src_buffer", src_buffer, np.repeat(wanted, CORE_PARTITIONS, axis=0)))
    return issued


def _check_local_gather(
    call: str, dst: NkiTensor, src: NkiTensor, index: NkiTensor, run: Any, count: Any, held: int
) -> None:
    rules.writable(call, "dst", dst)
    rules.dtype(call, "index", index, (dtypes.uint16,))
    rules.same_dtype(call, "dst", dst, "src_buffer", src)
    rules.same_partitions(call, "index", index, "src_buffer", src)
    _check_groups(call, "src_buffer", src)
    if run not in _LOCAL_GATHER_RUNS:
        accepted = ", ".join(map(str, _LOCAL_GATHER_RUNS))
        raise ArgumentError(f"{call}: num_elem_per_idx {run!r}; accepted: {accepted}")
    limit = min(held, _LOCAL_GATHER_INDICES_MAX)
    if not isinstance(count, int) or not 1 <= count <= limit:
        raise ArgumentError(f"{call}: num_valid_indices {count!r}; accepted: 1 to {limit}")
    rules.same_partitions(call, "dst", dst, "src_buffer", src)
    if prod(dst.shape[1:]) != count * run:
        raise ShapeError(
            f"{call}: dst {list(dst.shape)} has {prod(dst.shape[1:])} elements per partition; "
            f"accepted: {count * run}, num_valid_indices * num_elem_per_idx"
        )


def _check_groups(call: str, operand: str, tensor: NkiTensor) -> None:
    if tensor.shape[0] % CORE_PARTITIONS:
        raise ShapeError(
            f"{call}: {operand} has {tensor.shape[0]} partitions; accepted: a multiple of {CORE_PARTITIONS}"
        )


def _in_snake(tensor: NkiTensor, count: int) -> np.ndarray:
    """Whether an element is among the first `count` of its group, which run down 16 partitions, column by column."""
    columns = prod(tensor.shape[1:])
    place = np.arange(columns) * CORE_PARTITIONS + np.arange(tensor.shape[0])[:, None] % CORE_PARTITIONS
    return (place < count).reshape(tensor.shape)


def _group_values(values: np.ndarray, count: int) -> np.ndarray:
    """(groups, count): each group's first values, down its partitions and then along the free dimension."""
    groups = values.reshape(values.shape[0] // CORE_PARTITIONS, CORE_PARTITIONS, -1)
    return groups.transpose(0, 2, 1).reshape(len(groups), -1)[:, :count]


def nonzero_with_count(
    dst: NkiTensor, src: NkiTensor, index_offset: int = 0, padding_val: int = -1, name: str | None = None
) -> NkiInstruction:
    """In partitions 0, 16, 32, ...: positions of nonzero elements, then padding, then how many there are.

    Args:
        dst: int32 tile in SBUF with as many partitions as src and one element more; other partitions stay.
        src: fp32 or int32 tile in SBUF.
        index_offset: added to each position.
        padding_val: fills the places between the positions and the count.

    Raises:
        WrongBufferError, DtypeError, ShapeError, ArgumentError, PartitionError, UninitializedReadError.
    """
    call = "nisa.nonzero_with_count"
    core = machine.core(call)
    for parameter, value in (("index_offset", index_offset), ("padding_val", padding_val)):
        if not isinstance(value, int) or not _LOWEST <= value <= _HIGHEST:
            raise ArgumentError(f"{call}: {parameter} {value!r}; accepted: an integer of 32 bits")
    try:
        key = (call, dst.signature, src.signature)
    except AttributeError:
        rules.require_tensors(call, dst=dst, src=src)
        raise
    if key not in core.checked:
        _in_sbuf(core, call, dst=dst, src=src)
        rules.writable(call, "dst", dst)
        rules.dtype(call, "src", src, (dtypes.float32, dtypes.int32))
        rules.dtype(call, "dst", dst, (dtypes.int32,))
        rules.same_partitions(call, "dst", dst, "src", src)
        if prod(dst.shape[1:]) != prod(src.shape[1:]) + 1:
            raise ShapeError(
                f"{call}: dst {list(dst.shape)} for src {list(src.shape)}; accepted: one element per partition more"
            )
        core.checked.add(key)
    read, written = src.once("lane of each core", _one_per_core), dst.once("lane of each core", _one_per_core)
    issued = core.emit("nonzero_with_count", Engine.gpsimd, (written,), (read,), name, (index_offset, padding_val))
    if core.numerics:
        lanes = src[::CORE_PARTITIONS]
        values = memory.read(call, "src", lanes).reshape(lanes.shape[0], -1)
        found = np.full((values.shape[0], values.shape[1] + 1), padding_val, np.int64)
        for row, elements in zip(found, values, strict=True):
            positions = np.flatnonzero(elements)
            row[: positions.size] = positions + index_offset
            row[-1] = positions.size
        memory.write(dst[::CORE_PARTITIONS], found.astype(np.int32))
    return issued


def _one_per_core(tensor: NkiTensor) -> Region:
    """Partitions 0, 16, 32, ..."""
    return tensor[::CORE_PARTITIONS].region


def topk(val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: int, name: str | None = None) -> NkiInstruction:
    """The K largest of the `n` values that a group of 16 partitions holds, ascending, and where they were.

    A group's values run down its partitions and then along the free dimension. Every partition of the group gets
    the same result; the documentation also says that partitions work independently, which leaves no other reading
    of values that lie across 16 of them. Of equal values the later ones count as larger; no order is documented.

    Args:
        val_dst: bf16 tile in SBUF (partitions, K), K below 32768 and up to n.
        idx_dst: uint32 tile in SBUF (partitions, K).
        src: bf16 tile in SBUF with a multiple of 16 partitions and room for n values in each group.
        n: values in a group, 8 to 65535.

    Raises:
        WrongBufferError, DtypeError, ShapeError, ArgumentError, PartitionError, UninitializedReadError.
    """
    call = "nisa.topk"
    core = machine.core(call)
    rules.require_tensors(call, val_dst=val_dst, idx_dst=idx_dst, src=src)
    n = views.integer(n, f"{call}: n")
    key = (call, val_dst.signature, idx_dst.signature, src.signature, n)
    if key not in core.checked:
        _in_sbuf(core, call, val_dst=val_dst, idx_dst=idx_dst, src=src)
        _check_topk(call, val_dst, idx_dst, src, n)
        core.checked.add(key)
    issued = core.emit("topk", Engine.gpsimd, (val_dst.region, idx_dst.region), (src.region,), name, n)
    if core.numerics:
        values = _group_values(memory.read_where(call, "src", src, _in_snake(src, n)), n)
        order = np.argsort(values.astype(np.float32), axis=1, kind="stable")[:, n - prod(val_dst.shape[1:]) :]
        largest = np.take_along_axis(values, order, axis=1)
        memory.write(val_dst, np.repeat(largest, CORE_PARTITIONS, axis=0))
        memory.write(idx_dst, np.repeat(order.astype(np.uint32), CORE_PARTITIONS, axis=0))
    return issued


def _check_topk(call: str, val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: Any) -> None:
    rules.dtype(call, "src", src, (dtypes.bfloat16,))
    rules.dtype(call, "val_dst", val_dst, (dtypes.bfloat16,))
    rules.dtype(call, "idx_dst", idx_dst, (dtypes.uint32,))
    for operand, tensor in (("val_dst", val_dst), ("idx_dst", idx_dst)):
        rules.writable(call, operand, tensor)
        rules.same_partitions(call, operand, tensor, "src", src)
    rules.same_elements(call, "idx_dst", idx_dst, "val_dst", val_dst)
    _check_groups(call, "src", src)
    room = CORE_PARTITIONS * prod(src.shape[1:])
    if not isinstance(n, int) or not _TOPK_MIN <= n < _TOPK_ELEMENTS_END:
        raise ArgumentError(f"{call}: n {n!r}; accepted: {_TOPK_MIN} to {_TOPK_ELEMENTS_END - 1}")
    if n > room:
        raise ShapeError(f"{call}: n {n} values in src {list(src.shape)}; accepted: up to {room}, 16 per column")
    largest = prod(val_dst.shape[1:])
    if largest > min(n, _TOPK_K_END - 1):
        raise ShapeError(f"{call}: K is {largest}, from val_dst; accepted: 1 to {min(n, _TOPK_K_END - 1)}")


def sequence_bounds(dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None) -> NkiInstruction:
    """For each element, where the run of equal segment ids around it begins, and where it ends (exclusive).

    An element with id 0 is padding: it gets n, the number of ids, as its begin and -1 as its end.

    Args:
        dst: fp32 or int32 tile in SBUF (1, 2, n): begins, then ends.
        segment_ids: fp32 or int32 tile in SBUF (1, n) of whole numbers from 0 on.

    Raises:
        WrongBufferError, DtypeError, ShapeError, PartitionError, UninitializedReadError.
        ArgumentError: an id that is negative or not whole.
    """
    call = "nisa.sequence_bounds"
    core = machine.core(call)
    rules.require_tensors(call, dst=dst, segment_ids=segment_ids)
    key = (call, dst.signature, segment_ids.signature)
    count = prod(segment_ids.shape[1:])
    if key not in core.checked:
        _in_sbuf(core, call, dst=dst, segment_ids=segment_ids)
        rules.writable(call, "dst", dst)
        for operand, tensor in (("dst", dst), ("segment_ids", segment_ids)):
            rules.dtype(call, operand, tensor, (dtypes.float32, dtypes.int32))
            if tensor.shape[0] != 1:
                raise ShapeError(f"{call}: {operand} has {tensor.shape[0]} partitions; accepted: 1")
        if dst.shape != (1, 2, count):
            raise ShapeError(f"{call}: dst {list(dst.shape)}; accepted: (1, 2, {count})")
        core.checked.add(key)
    issued = core.emit("sequence_bounds", Engine.gpsimd, (dst.region,), (segment_ids.region,), name)
    if core.numerics:
        ids = memory.read(call, "segment_ids", segment_ids).reshape(-1)
        wrong = np.flatnonzero((ids < 0) | (ids != np.rint(ids)))
        if wrong.size:
            raise ArgumentError(
                f"{call}: segment_ids: {ids[wrong[0]]} at position {wrong[0]}; accepted: whole numbers from 0 on"
            )
        memory.write(dst, _bounds(ids).astype(dst.dtype.storage)[None])
    return issued


def _bounds(ids: np.ndarray) -> np.ndarray:
    changes = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    edges = np.concatenate([[0], changes, [ids.size]])
    run = np.repeat(np.arange(edges.size - 1), np.diff(edges))
    padding = ids == 0
    return np.stack([np.where(padding, ids.size, edges[run]), np.where(padding, -1, edges[run + 1])])
