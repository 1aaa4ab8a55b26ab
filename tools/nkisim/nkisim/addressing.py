"""Works out the addresses of views with a dynamic index when an instruction runs, and moves their elements."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nkisim import machine
from nkisim.enums import engine
from nkisim.errors import ArgumentError, NotSimulatedError, OutOfBoundsError, UninitializedReadError
from nkisim.indirect import COLUMNS
from nkisim.numerics import cast
from nkisim.registers import VirtualRegister
from nkisim.storage import Region
from nkisim.tensor import NkiTensor

_GROUP_PARTITIONS = 16
_GROUP_PARTITIONS_TENSOR_ENGINE = 32


class Selection(NamedTuple):
    """The elements that an index chooses.

    Attributes:
        table: what it chooses from; its first (columns: second) dimension has one entry per value in bounds.
        key: numpy index of the chosen elements of the table.
        present: which of the view's rows have a value in bounds; None if all.
    """

    table: Region
    key: tuple[Any, ...]
    present: np.ndarray | None


def column_major(index: np.ndarray, count: int) -> np.ndarray:
    """The first `count` values of an index tile in the order in which a DMA takes them: row i of the view takes
    element `[i % partitions, i // partitions]`.

    The documentation states this for `dma_transpose` (`indices.T.flatten()`). For `dma_copy` it shows one column only;
    several are read the same way here, which is to be confirmed on silicon. Tables built for a batched gather refer to
    this function.
    """
    return index.reshape(index.shape[0], -1).T.reshape(-1)[:count]


def moved(call: str, operand: str, tensor: NkiTensor, skip: bool = False) -> NkiTensor | None:
    """The static view that a dynamic offset makes of an OFFSET view now; None if it is out of bounds and skipped.

    Raises:
        OutOfBoundsError: the offset leaves the tensor.
    """
    found = tensor.indirection
    if isinstance(found.by, VirtualRegister):
        value = found.by.value(f"{call}: {operand}")
    else:
        value = int(_values(call, operand, found.by).reshape(()))
    if not 0 <= value < found.limit:
        if skip:
            return None
        raise OutOfBoundsError(
            f"{call}: {operand}: dynamic offset {value} on {tensor.name}; accepted: 0 to {found.limit - 1}"
        )
    new: NkiTensor = object.__new__(NkiTensor)
    new.shape, new.strides, new.offset = tensor.shape, tensor.strides, tensor.offset + value * found.step
    new.dtype, new.buffer, new.storage, new.made = tensor.dtype, tensor.buffer, tensor.storage, tensor.made
    return new


def select(call: str, operand: str, tensor: NkiTensor, skip: bool = False) -> Selection:
    """The elements that the index of a ROWS or COLUMNS view chooses now.

    Raises:
        OutOfBoundsError: a value leaves the table, and is not skipped; names value, position and table.
    """
    found = tensor.indirection
    values = _values(call, operand, found.by)
    if found.kind == COLUMNS:
        chosen = _snake(call, operand, tensor, values)
        shape, strides = (tensor.shape[0], found.limit), (tensor.strides[0], found.step)
    else:
        chosen = column_major(values, tensor.shape[0])
        shape, strides = (found.limit, *tensor.shape[1:]), (found.step, *tensor.strides[1:])
    bad = (chosen < 0) | (chosen >= found.limit)
    present = None
    if bad.any():
        if not skip:
            _refuse(call, operand, tensor, chosen, int(bad.argmax()))
        present, chosen = ~bad, np.where(bad, 0, chosen)
    table = Region(tensor.storage.allocation, tensor.dtype, tensor.offset, shape, strides)
    return Selection(table, (slice(None), chosen) if found.kind == COLUMNS else (chosen,), present)


def _values(call: str, operand: str, index: NkiTensor) -> np.ndarray:
    missing = index.storage.first_unwritten(index.region)
    if missing is not None:
        raise UninitializedReadError(
            f"{call}: {operand}: element {list(missing)} of index {index.name} {list(index.shape)} is read, "
            f"and nothing has written it"
        )
    return index.array().astype(np.int64)


def _refuse(call: str, operand: str, tensor: NkiTensor, chosen: np.ndarray, position: int) -> None:
    found = tensor.indirection
    per_column = found.by.shape[0] if found.kind != COLUMNS else _group()
    what = "columns" if found.kind == COLUMNS else "rows"
    hint = "" if found.kind == COLUMNS else "; oob_mode.skip leaves such rows out"
    raise OutOfBoundsError(
        f"{call}: {operand}: index {int(chosen[position])} at position {position} (element "
        f"[{position % per_column}, {position // per_column}] of {found.by.name}) on {tensor.name}, "
        f"which has {found.limit} {what}; accepted: 0 to {found.limit - 1}{hint}"
    )


def _group() -> int:
    """Partitions that hold the index of one group, on the engine of the instruction that was issued last."""
    issued = machine.core("indirect").stream[-1].engine
    return _GROUP_PARTITIONS_TENSOR_ENGINE if issued is engine.tensor else _GROUP_PARTITIONS


def _snake(call: str, operand: str, tensor: NkiTensor, values: np.ndarray) -> np.ndarray:
    """Value i lies at `[i % group, i // group]`. All groups of partitions must hold the same ones: the documentation
    does not say what a group does whose own differ."""
    group = min(_group(), values.shape[0])
    count = tensor.shape[1]
    if count > group * values.shape[1]:
        raise ArgumentError(
            f"{call}: {operand}: num_elem {count} of {tensor.name}; accepted: up to {group * values.shape[1]}, "
            f"{group} partitions by {values.shape[1]} columns of the index"
        )
    groups = [values[first : first + group].T.reshape(-1)[:count] for first in range(0, values.shape[0], group)]
    for other in groups[1:]:
        if not np.array_equal(other[: groups[0].size], groups[0][: other.size]):
            raise NotSimulatedError(
                f"{call}: {operand}: the index of {tensor.name} differs between groups of {group} partitions; "
                f"simulated: the same values in each"
            )
    return groups[0]


def unwritten(tensor: NkiTensor, chosen: Selection) -> np.ndarray | None:
    """Which of the view's elements are present and nothing has written; None if there is none."""
    flags = tensor.storage.flags(chosen.table)
    if flags is None:
        return None
    missing: np.ndarray = flags[chosen.key]
    if missing.ndim > tensor.ndim:
        missing = np.logical_or.reduce(missing, -1)
    if chosen.present is not None:
        missing = missing & _rows(chosen.present, missing.ndim)
    return missing if missing.any() else None


def gather(tensor: NkiTensor, chosen: Selection) -> np.ndarray:
    """A copy of the chosen elements, written or not; rows that are not present hold anything."""
    if tensor.storage.sharing is not None:
        read = chosen.key if chosen.present is None else (chosen.key[0][chosen.present],)
        tensor.storage.sharing.read(chosen.table, read)
    picked: np.ndarray = tensor.storage.values(*chosen.table[1:])[chosen.key]
    return picked


def scatter(
    tensor: NkiTensor,
    values: np.ndarray,
    chosen: Selection,
    where: np.ndarray | None = None,
    unwritten: np.ndarray | None = None,
) -> None:
    """Stores values of the view's shape in row-major order, so that of two equal indices the last one stays.

    Args:
        where: which of them to store, of the view's shape; None stores all.
        unwritten: which of them nothing has written, of the view's shape; None: none.
    """
    storage = tensor.storage
    storage.prepare_write(chosen.table)
    key: tuple[Any, ...] = chosen.key
    taken: Any = ...
    if where is not None:
        if chosen.present is not None:
            where = where & _rows(chosen.present, where.ndim)
        axes = [
            key[d] if d < len(key) and type(key[d]) is not slice else np.arange(n) for d, n in enumerate(where.shape)
        ]
        key, taken = tuple(np.broadcast_to(a, where.shape)[where] for a in np.ix_(*axes)), where
    elif chosen.present is not None:
        key, taken = (key[0][chosen.present],), chosen.present
    values = values[taken]
    stored = np.empty(values.shape, tensor.dtype.storage)
    cast.store(stored, values, tensor.dtype)
    storage.array(*chosen.table[1:])[key] = stored
    if storage.keeps_fp32:
        storage.keep(*chosen.table[1:], values, key)
    storage.mark_chosen_written(chosen.table, key)
    if unwritten is not None:
        storage.mark_unwritten(chosen.table, unwritten[taken], key)


def _rows(present: np.ndarray, rank: int) -> np.ndarray:
    return present.reshape(-1, *[1] * (rank - 1))
