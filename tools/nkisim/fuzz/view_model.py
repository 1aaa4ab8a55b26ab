"""Views of plain numpy arrays by the rules of NKI: what `NkiTensor`'s views have to agree with.

Nothing here comes from the simulator: numpy decides which view exists without a copy, and the partition rules are
written down once more. A call that NKI refuses gives None.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from nkisim.dtypes import DType

Draw = Any


class Ds(NamedTuple):
    """`nl.ds(start, size)` in an index."""

    start: int
    size: int


class ViewCall(NamedTuple):
    """One method of `NkiTensor` that makes a view; "index" is `tensor[...]`."""

    method: str
    args: tuple[Any, ...]

    def source(self) -> str:
        """As a kernel writes it, behind the tensor."""
        if self.method == "index":
            return f"[{', '.join(map(_entry_source, self.args))}]"
        return f".{self.method}({', '.join(map(_argument_source, self.args))})"


def _entry_source(entry: Any) -> str:
    if isinstance(entry, slice):
        parts = [entry.start, entry.stop] + ([] if entry.step is None else [entry.step])
        return ":".join("" if part is None else str(part) for part in parts)
    if isinstance(entry, Ds):
        return f"nl.ds({entry.start}, {entry.size})"
    return "..." if entry is Ellipsis else repr(entry)


def _argument_source(argument: Any) -> str:
    return f"nl.{argument}" if isinstance(argument, DType) else repr(argument)


class Model(NamedTuple):
    """A view of the bytes of one tensor.

    Attributes:
        array: the view; shares memory with `memory`.
        memory: all bytes of the tensor.
        dtype: what the elements are.
        on_chip: whether dimension 0 is the partition dimension.
        row_bytes: bytes per partition; of HBM all.
    """

    array: np.ndarray
    memory: np.ndarray
    dtype: DType
    on_chip: bool
    row_bytes: int

    @property
    def offset_bytes(self) -> int:
        """Where the view starts."""
        return _address(self.array) - _address(self.memory)

    @property
    def start_partition(self) -> int:
        """Partition of the first row."""
        return self.offset_bytes // self.row_bytes if self.on_chip else 0

    @property
    def broadcasts(self) -> bool:
        """Whether an element of memory shows more than once for a stride of 0."""
        return any(s == 0 and n > 1 for n, s in zip(self.array.shape, self.array.strides, strict=True))

    def same_view_of(self, other: np.ndarray) -> Model:
        """The same elements of another array of bytes, as bytes (a last axis more)."""
        shape, strides = (*self.array.shape, self.array.itemsize), (*self.array.strides, 1)
        return self._replace(array=np.ndarray(shape, other.dtype, other, self.offset_bytes, strides), memory=other)


def whole(memory: np.ndarray, shape: tuple[int, ...], dtype: DType, on_chip: bool) -> Model:
    """All of a dense tensor."""
    return Model(
        memory.view(dtype.storage).reshape(shape),
        memory,
        dtype,
        on_chip,
        memory.size // shape[0] if on_chip else memory.size,
    )


def view(model: Model, call: ViewCall) -> Model | None:
    """The view that the call makes; None where NKI has none."""
    if call.method == "view":
        return _reinterpreted(model, *call.args)
    if call.method == "ap":
        return _pattern(model, *call.args)
    array = _METHODS[call.method](model.array, model.on_chip, *call.args)
    if array is None or array.size == 0 or array.ndim < (2 if model.on_chip else 1):
        return None
    return model._replace(array=array)


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _index(array: np.ndarray, on_chip: bool, *entries: Any) -> np.ndarray | None:
    if sum(entry is Ellipsis for entry in entries) > 1:
        return None
    key: list[Any] = []
    dim = 0
    for entry in entries:
        if entry is Ellipsis:
            missing = array.ndim - len(entries) + 1
            if missing < 0:
                return None
            key += [slice(None)] * missing
            dim += missing
            continue
        if dim >= array.ndim:
            return None
        plain = _plain(entry, array.shape[dim])
        if plain is None:
            return None
        if isinstance(plain, int) and on_chip and dim == 0:
            plain = slice(plain, plain + 1)
        key.append(plain)
        dim += 1
    if dim > array.ndim:
        return None
    found = array[tuple(key)] if key else array
    found = found if isinstance(found, np.ndarray) and found.base is not None else array[(*key, ...)]
    return found if found.ndim >= (2 if on_chip else 1) else found[..., None]


def _plain(entry: Any, size: int) -> slice | int | None:
    """The entry with positions from 0 up, if it lies within a dimension of this size and is not empty."""
    if isinstance(entry, slice):
        step = 1 if entry.step is None else entry.step
        start, stop = (0 if entry.start is None else entry.start), (size if entry.stop is None else entry.stop)
        start, stop = (start + size if start < 0 else start), (stop + size if stop < 0 else stop)
        return slice(start, stop, step) if step >= 1 and 0 <= start < stop <= size else None
    if isinstance(entry, Ds):
        start, stop = entry.start, entry.start + entry.size
        return slice(start, stop) if 0 <= start < stop <= size else None
    return entry % size if -size <= entry < size else None


def _slice(array: np.ndarray, on_chip: bool, dim: int, start: int, end: int, step: int = 1) -> np.ndarray | None:
    if not -array.ndim <= dim < array.ndim:
        return None
    return _index(array, on_chip, *[slice(None)] * (dim % array.ndim), slice(start, end, step))


def _select(array: np.ndarray, on_chip: bool, dim: int, position: int) -> np.ndarray | None:
    if not -array.ndim <= dim < array.ndim:
        return None
    return _index(array, on_chip, *[slice(None)] * (dim % array.ndim), position)


def _permute(array: np.ndarray, on_chip: bool, dims: tuple[int, ...]) -> np.ndarray | None:
    if sorted(dims) != list(range(array.ndim)) or (on_chip and dims[0] != 0):
        return None
    return array.transpose(dims)


def _broadcast(array: np.ndarray, on_chip: bool, dim: int, size: int) -> np.ndarray | None:
    if not -array.ndim <= dim < array.ndim or array.shape[dim] != 1 or size < 1 or (on_chip and dim % array.ndim == 0):
        return None
    shape = list(array.shape)
    shape[dim] = size
    return np.broadcast_to(array, shape)


def _expand_dim(array: np.ndarray, on_chip: bool, dim: int) -> np.ndarray | None:
    rank = array.ndim + 1
    if not -rank <= dim < rank or (on_chip and dim % rank == 0):
        return None
    return np.expand_dims(array, dim)


def _squeeze_dim(array: np.ndarray, on_chip: bool, dim: int) -> np.ndarray | None:
    if not -array.ndim <= dim < array.ndim or array.shape[dim] != 1 or (on_chip and dim % array.ndim == 0):
        return None
    return np.squeeze(array, dim)


def _without_copy(array: np.ndarray, shape: Iterable[int]) -> np.ndarray | None:
    sizes = tuple(shape)
    if any(n < -1 or n == 0 for n in sizes):
        return None
    try:
        return np.reshape(array, sizes, copy=False)
    except ValueError:
        return None


def _reshape(array: np.ndarray, on_chip: bool, shape: tuple[int, ...]) -> np.ndarray | None:
    found = _without_copy(array, shape)
    if found is None or (on_chip and (found.ndim == 0 or found.shape[0] != array.shape[0])):
        return None
    return found[:, None] if on_chip and found.ndim == 1 else found


def _reshape_dim(array: np.ndarray, on_chip: bool, dim: int, shape: tuple[int, ...]) -> np.ndarray | None:
    if not -array.ndim <= dim < array.ndim or sum(n == -1 for n in shape) > 1:
        return None
    dim %= array.ndim
    if not shape:
        return None
    known = prod(n for n in shape if n != -1)
    if known < 1 or array.shape[dim] % known:
        return None
    sizes = tuple(array.shape[dim] // known if n == -1 else n for n in shape)
    if on_chip and dim == 0 and sizes != array.shape[:1]:
        return None
    return _without_copy(array, (*array.shape[:dim], *sizes, *array.shape[dim + 1 :]))


def _flatten_dims(array: np.ndarray, on_chip: bool, start: int, end: int) -> np.ndarray | None:
    if not all(-array.ndim <= d < array.ndim for d in (start, end)):
        return None
    start, end = start % array.ndim, end % array.ndim
    if start > end or (on_chip and start == 0 and end > 0):
        return None
    merged = prod(array.shape[start : end + 1])
    return _without_copy(array, (*array.shape[:start], merged, *array.shape[end + 1 :]))


def _rearrange(
    array: np.ndarray, on_chip: bool, source: tuple[Any, ...], target: tuple[Any, ...], sizes: dict[str, int]
) -> np.ndarray | None:
    """Splits by reshape, reorders, merges by reshape."""
    names = [name for entry in source for name in ((entry,) if isinstance(entry, str) else entry)]
    wanted = [name for entry in target for name in ((entry,) if isinstance(entry, str) else entry)]
    if len(source) != array.ndim or sorted(wanted) != sorted(names):
        return None
    split: np.ndarray | None = array
    dim = 0
    for entry in source:
        group = (entry,) if isinstance(entry, str) else entry
        if len(group) > 1:
            assert split is not None
            split = _reshape_dim(split, on_chip, dim, tuple(sizes.get(name, -1) for name in group))
            if split is None:
                return None
        dim += len(group)
    assert split is not None
    order = [names.index(name) for name in wanted]
    if on_chip and (order[0] != 0 or not isinstance(target[0], str)):
        return None
    ordered = split.transpose(order)
    by_name = dict(zip(names, split.shape, strict=True))
    return _without_copy(
        ordered, [by_name[e] if isinstance(e, str) else prod(by_name[name] for name in e) for e in target]
    )


_METHODS = {
    "index": _index,
    "slice": _slice,
    "select": _select,
    "permute": _permute,
    "broadcast": _broadcast,
    "expand_dim": _expand_dim,
    "squeeze_dim": _squeeze_dim,
    "reshape": _reshape,
    "reshape_dim": _reshape_dim,
    "flatten_dims": _flatten_dims,
    "rearrange": _rearrange,
}


def _reinterpreted(model: Model, dtype: DType) -> Model | None:
    """numpy's view as another type; besides, everything must lie at multiples of the new element's size."""
    size = dtype.itemsize
    try:
        array = model.array.view(dtype.storage)
    except ValueError:
        return None
    if array.size == 0:
        return None
    steps = [s for n, s in zip(array.shape[:-1], array.strides[:-1], strict=True) if n > 1]
    if model.dtype.itemsize != size and (model.offset_bytes % size or any(s % size for s in steps)):
        return None
    return model._replace(array=array, dtype=dtype)


def _pattern(model: Model, pattern: list[list[int]], offset: int | None) -> Model | None:
    """Every element's place is looked at, one by one."""
    size = model.dtype.itemsize
    own = model.offset_bytes // size
    if offset is not None and own:
        return None
    start = own if offset is None else offset
    strides, shape = [s for s, _ in pattern], [n for _, n in pattern]
    if not pattern or min(shape) < 1 or min(strides) < 0 or start < 0 or (model.on_chip and len(pattern) < 2):
        return None
    places = np.array([start])
    rows = [places]
    for stride, count in pattern:
        places = (places[:, None] + np.arange(count) * stride).reshape(-1)
        if len(rows) == 1:
            rows.append(places)
    if places.max() >= model.memory.size // size:
        return None
    if model.on_chip:
        row = model.row_bytes // size
        if shape[0] > 1 and strides[0] != row:
            return None
        if (places.reshape(shape[0], -1) // row != (rows[1] // row)[:, None]).any():
            return None
    array = np.ndarray(shape, model.dtype.storage, model.memory, start * size, [s * size for s in strides])
    return model._replace(array=array)


def draw_call(draw: Draw, model: Model, dtypes: tuple[DType, ...]) -> ViewCall:
    """A call on the view, most often one that NKI accepts."""
    method = draw(st.sampled_from((*_METHODS, "index", "slice", "permute", "reshape", "view", "ap")))
    return ViewCall(method, _DRAWN[method](draw, model, dtypes))


def _around(low: int, high: int) -> st.SearchStrategy[int]:
    """Integers in a range, now and then just outside."""
    high = max(low, high)
    return st.one_of(st.integers(low, high), st.integers(low, high), st.integers(low - 2, high + 2))


def _draw_entry(draw: Draw, size: int) -> Any:
    kind = draw(st.sampled_from(("whole", "slice", "slice", "step", "open", "position", "ds")))
    start = draw(_around(0, size - 1))
    stop = draw(_around(max(start, 0) + 1, max(size, start + 1)))
    match kind:
        case "whole":
            return slice(None)
        case "slice":
            return slice(start, stop)
        case "step":
            return slice(start, stop, draw(_around(1, 4)))
        case "open":
            return slice(None, stop) if draw(st.booleans()) else slice(-draw(_around(1, size)), None)
        case "ds":
            return Ds(start, stop - start)
    return draw(st.one_of(st.just(start), st.integers(-size, size)))


def _draw_index(draw: Draw, model: Model, _: Any) -> tuple[Any, ...]:
    shape = model.array.shape
    entries = [_draw_entry(draw, n) for n in shape[: draw(st.integers(1, len(shape)))]]
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(entries)))
        rest = len(entries) - at
        entries = [
            *entries[:at],
            Ellipsis,
            *(_draw_entry(draw, n) for n in shape[max(len(shape) - rest, 0) :][:rest] if rest),
        ]
    if draw(st.integers(0, 30)) == 0:
        entries.append(0)
    return tuple(entries)


def _draw_slice(draw: Draw, model: Model, _: Any) -> tuple[Any, ...]:
    dim = draw(_around(-model.array.ndim, model.array.ndim - 1))
    size = model.array.shape[dim % model.array.ndim]
    start = draw(_around(0, size - 1))
    given = (dim, start, draw(_around(max(start, 0) + 1, max(size, start + 1))))
    return (*given, draw(_around(1, 3))) if draw(st.booleans()) else given


def _draw_select(draw: Draw, model: Model, _: Any) -> tuple[Any, ...]:
    dim = draw(_around(-model.array.ndim, model.array.ndim - 1))
    size = model.array.shape[dim % model.array.ndim]
    return dim, draw(_around(-size, size - 1))


def _draw_permute(draw: Draw, model: Model, _: Any) -> tuple[Any, ...]:
    dims = list(range(model.array.ndim))
    if model.on_chip and draw(st.integers(0, 4)):
        return ((0, *draw(st.permutations(dims[1:]))),)
    if draw(st.integers(0, 9)) == 0:
        return (tuple(draw(st.lists(_around(0, len(dims) - 1), max_size=len(dims) + 1))),)
    return (tuple(draw(st.permutations(dims))),)


def _draw_dim(draw: Draw, model: Model, extra: int = 0) -> int:
    ones = [d for d, n in enumerate(model.array.shape) if n == 1 and (d or not model.on_chip)]
    if ones and not extra and draw(st.integers(0, 4)):
        return int(draw(st.sampled_from(ones)))
    rank = model.array.ndim + extra
    return int(draw(_around(-rank, rank - 1)))


def factors(draw: Draw, total: int, count: int) -> tuple[int, ...]:
    """`count` sizes that multiply to `total`."""
    sizes = []
    for _ in range(count - 1):
        size = draw(st.sampled_from([f for f in range(1, total + 1) if total % f == 0]))
        sizes.append(size)
        total //= size
    return (*sizes, total)


def _with_unknown(draw: Draw, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The same sizes, some with -1 for one of them, some wrong."""
    change = draw(st.integers(0, 7))
    if change > 1 or not sizes:
        return sizes
    at = draw(st.integers(0, len(sizes) - 1))
    return (*sizes[:at], -1 if change == 0 else sizes[at] + draw(st.sampled_from((-1, 1, -3))), *sizes[at + 1 :])


def _draw_reshape(draw: Draw, model: Model, _: Any) -> tuple[Any, ...]:
    shape = model.array.shape
    kept = shape[:1] if model.on_chip and draw(st.integers(0, 6)) else ()
    sizes = factors(draw, prod(shape[len(kept) :]), draw(st.integers(1, 4)))
    return (_with_unknown(draw, (*kept, *sizes)),)


def _draw_reshape_dim(draw: Draw, model: Model, _: Any) -> tuple[Any, ...]:
    dim = draw(_around(1 if model.on_chip else -model.array.ndim, model.array.ndim - 1))
    size = model.array.shape[dim % model.array.ndim]
    return dim, _with_unknown(draw, factors(draw, size, draw(st.integers(1, 3))))


def _draw_flatten(draw: Draw, model: Model, _: Any) -> tuple[Any, ...]:
    start = draw(_around(1 if model.on_chip else 0, model.array.ndim - 1))
    return start, draw(_around(max(start, 0), model.array.ndim - 1))


def _draw_rearrange(draw: Draw, model: Model, _: Any) -> tuple[Any, ...]:
    names = iter("abcdefghijklmnopqrstuvwxyz")
    source: list[Any] = []
    sizes: dict[str, int] = {}
    for dim, size in enumerate(model.array.shape):
        if draw(st.integers(0, 2)) or (dim == 0 and model.on_chip):
            source.append(next(names))
            continue
        parts = factors(draw, size, draw(st.integers(1, 3)))
        group = tuple(next(names) for _ in parts)
        source.append(group)
        left_out = draw(st.integers(0, len(parts) - 1))
        sizes |= {name: n for i, (name, n) in enumerate(zip(group, parts, strict=True)) if i != left_out}
    flat = [name for entry in source for name in ((entry,) if isinstance(entry, str) else entry)]
    keep = 1 if model.on_chip and draw(st.integers(0, 6)) else 0
    order = [*flat[:keep], *draw(st.permutations(flat[keep:]))]
    target: list[Any] = []
    while order:
        take = draw(st.sampled_from((1, 1, 1, 2, 3))) if target or not model.on_chip else 1
        target.append(order[0] if take == 1 else tuple(order[:take]))
        order = order[take:]
    return tuple(source), tuple(target), sizes


def _draw_ap(draw: Draw, model: Model, _: Any) -> tuple[Any, ...]:
    size = model.dtype.itemsize
    row = model.row_bytes // size
    pairs = [[draw(_around(0, row)), draw(_around(1, 4))] for _ in range(draw(st.integers(1, 3)))]
    if model.on_chip:
        partitions = model.memory.size // model.row_bytes
        first = row if draw(st.integers(0, 9)) else draw(_around(0, row))
        pairs = [[first, draw(_around(1, partitions))], *pairs]
    own = model.offset_bytes
    offset = draw(st.one_of(st.none(), _around(0, row))) if own == 0 or draw(st.integers(0, 5)) == 0 else None
    return pairs, offset


_DRAWN = {
    "index": _draw_index,
    "slice": _draw_slice,
    "select": _draw_select,
    "permute": _draw_permute,
    "broadcast": lambda draw, model, _: (_draw_dim(draw, model), draw(_around(1, 5))),
    "expand_dim": lambda draw, model, _: (_draw_dim(draw, model, 1),),
    "squeeze_dim": lambda draw, model, _: (_draw_dim(draw, model),),
    "reshape": _draw_reshape,
    "reshape_dim": _draw_reshape_dim,
    "flatten_dims": _draw_flatten,
    "rearrange": _draw_rearrange,
    "view": lambda draw, _, dtypes: (draw(st.sampled_from(dtypes)),),
    "ap": _draw_ap,
}
