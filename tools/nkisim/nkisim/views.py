"""The algebra of strided views: shapes, strides and offsets in, shapes, strides and offsets out.

A view addresses element `offset + sum(index[k] * strides[k])` of its storage. On-chip tensors keep the partition
dimension first and have at least two dimensions; HBM tensors have at least one.
"""

from __future__ import annotations

import operator
from math import prod
from typing import Any, NamedTuple

from nkisim.errors import ArgumentError, OutOfBoundsError, ShapeError, ViewError

Ints = tuple[int, ...]


class View(NamedTuple):
    """A strided view, in elements."""

    shape: Ints
    strides: Ints
    offset: int


_new_view = tuple.__new__


class DynamicSlice(NamedTuple):
    """`nl.ds(start, size)`: `size` elements from `start` on."""

    start: Any
    size: int


def row_major(shape: Ints) -> Ints:
    """Strides of a dense tensor."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def is_contiguous(shape: Ints, strides: Ints) -> bool:
    """Whether the dimensions lie densely in row-major order; those of size 1 do not matter."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def overlaps_itself(shape: Ints, strides: Ints) -> bool:
    """Whether two indices show the same element."""
    reach = 0
    sized = [(stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1]
    for stride, size in sorted(sized):
        if stride <= reach:
            break
        reach += (size - 1) * stride
    else:
        return False
    places = {0}
    for stride, size in sized:
        moved = [place + stride * i for place in places for i in range(size)]
        places = set(moved)
        if len(places) < len(moved):
            return True
    return False


def index(view: tuple[Ints, Ints, int], key: tuple[Any, ...], on_chip: bool) -> View:
    """`tensor[key]` for integers, slices, `nl.ds` and one ellipsis. `view` may be a plain tuple."""
    shape, strides, offset = view
    if len(key) > len(shape):
        return _indexed(view, key, on_chip)
    sizes: list[int] = []
    steps: list[int] = []
    # What kernels write most, slices and positions; this runs for every view of every instruction.
    for dim, k in enumerate(key):
        size, stride = shape[dim], strides[dim]
        if type(k) is slice:
            start = 0 if k.start is None else k.start
            stop = size if k.stop is None else k.stop
            if type(start) is not int or type(stop) is not int or k.step is not None or not 0 <= start < stop <= size:
                break
            offset += start * stride
            sizes.append(stop - start)
            steps.append(stride)
        elif type(k) is int and 0 <= k < size and (dim or not on_chip):
            offset += k * stride
        else:
            break
    else:
        rest = len(key)
        if rest < len(shape):
            sizes += shape[rest:]
            steps += strides[rest:]
        if len(sizes) > on_chip:
            return _new_view(View, (tuple(sizes), tuple(steps), offset))
    return _indexed(view, key, on_chip)


def _indexed(view: tuple[Ints, Ints, int], key: tuple[Any, ...], on_chip: bool) -> View:
    shape, strides, offset = view
    rank = len(shape)
    if Ellipsis in key:
        key = filled(key, rank)
    if len(key) > rank:
        raise ViewError(f"index {key} has {len(key)} entries, the tensor has {rank} dimensions {shape}")
    new_shape: list[int] = []
    new_strides: list[int] = []
    dropped_stride = 1
    for dim, k in enumerate(key):
        size, stride = shape[dim], strides[dim]
        if type(k) is slice:
            start, stop, step = _bounds(k, size, dim)
            offset += start * stride
            new_shape.append((stop - start + step - 1) // step)
            new_strides.append(stride * step)
        elif type(k) is DynamicSlice:
            start, count = _ds_bounds(k, size, dim)
            offset += start * stride
            new_shape.append(count)
            new_strides.append(stride)
        else:
            offset += _position(k, size, dim) * stride
            if on_chip and dim == 0:
                new_shape.append(1)
                new_strides.append(stride)
            else:
                dropped_stride = stride
    rest = len(key)
    new_shape.extend(shape[rest:])
    new_strides.extend(strides[rest:])
    if len(new_shape) < (2 if on_chip else 1):
        new_shape.append(1)
        new_strides.append(dropped_stride)
    return _new_view(View, (tuple(new_shape), tuple(new_strides), offset))


def filled(key: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    """`key` with its ellipsis, if any, written out as whole slices."""
    places = [i for i, k in enumerate(key) if k is Ellipsis]
    if not places:
        return key
    if len(places) > 1:
        raise ViewError(f"an index has one ellipsis at most, this one {len(places)}")
    missing = rank - len(key) + 1
    if missing < 0:
        raise ViewError(f"index {key} has {len(key) - 1} entries, the tensor has {rank} dimensions")
    return (*key[: places[0]], *([slice(None)] * missing), *key[places[0] + 1 :])


def _bounds(k: slice, size: int, dim: int) -> tuple[int, int, int]:
    start = 0 if k.start is None else integer(k.start, f"slice start of dimension {dim}")
    stop = size if k.stop is None else integer(k.stop, f"slice stop of dimension {dim}")
    step = 1 if k.step is None else integer(k.step, f"slice step of dimension {dim}")
    if start < 0:
        start += size
    if stop < 0:
        stop += size
    if step < 1:
        raise ViewError(f"slice step {step} on dimension {dim}; accepted: 1 and up")
    if not 0 <= start < stop <= size:
        raise OutOfBoundsError(
            f"slice {k.start}:{k.stop} on dimension {dim} of size {size}; accepted: 0 <= start < stop <= {size}"
        )
    return start, stop, step


def _ds_bounds(k: DynamicSlice, size: int, dim: int) -> tuple[int, int]:
    start, count = integer(k.start, "nl.ds start"), integer(k.size, "nl.ds size")
    if start < 0 or count < 1 or start + count > size:
        raise OutOfBoundsError(
            f"nl.ds({start}, {count}) on dimension {dim} of size {size}; accepted: within 0 to {size}, size from 1"
        )
    return start, count


def _position(k: Any, size: int, dim: int) -> int:
    position = integer(k, f"index of dimension {dim}")
    if not -size <= position < size:
        raise OutOfBoundsError(f"index {position} on dimension {dim} of size {size}; accepted: {-size} to {size - 1}")
    return position + size if position < 0 else position


def integer(value: Any, what: str) -> int:
    """A Python or numpy integer."""
    try:
        return int(operator.index(value))
    except TypeError:
        raise ArgumentError(f"{what} is {value!r}; accepted: an integer known when the kernel is traced") from None


def integers(values: Any, what: str) -> Ints:
    """A tuple of integers, given as a tuple or a list."""
    if not isinstance(values, (tuple, list)):
        raise ArgumentError(f"{what} {values!r}; accepted: a tuple of integers")
    return tuple(integer(v, what) for v in values)


def check_dim(dim: int, rank: int, call: str) -> int:
    """`dim` counted from the front; negative ones count from the back."""
    position = integer(dim, f"{call}: dim")
    if not -rank <= position < rank:
        raise ViewError(f"{call}: dimension {dim} of a tensor with {rank} dimensions")
    return position % rank


def permute(view: View, dims: Ints, on_chip: bool) -> View:
    """Reorders dimensions."""
    rank, dims = len(view.shape), integers(dims, "permute: dims")
    if sorted(dims) != list(range(rank)):
        raise ViewError(f"permute: {tuple(dims)} is not a permutation of the {rank} dimensions of {view.shape}")
    if on_chip and dims[0] != 0:
        raise ViewError(f"permute: {tuple(dims)} moves the partition dimension; accepted: 0 first")
    return View(tuple(view.shape[d] for d in dims), tuple(view.strides[d] for d in dims), view.offset)


def broadcast(view: View, dim: int, size: int, on_chip: bool) -> View:
    """Repeats a dimension of size 1."""
    dim = check_dim(dim, len(view.shape), "broadcast")
    if on_chip and dim == 0:
        raise ViewError("broadcast: dimension 0 is the partition dimension; accepted: a free dimension")
    if view.shape[dim] != 1:
        raise ViewError(f"broadcast: dimension {dim} of {view.shape} has size {view.shape[dim]}; accepted: size 1")
    size = integer(size, "broadcast: size")
    if size < 1:
        raise ViewError(f"broadcast: size {size}; accepted: 1 and up")
    return View(_replace(view.shape, dim, (size,)), _replace(view.strides, dim, (0,)), view.offset)


def expand(view: View, dim: int, on_chip: bool) -> View:
    """Inserts a dimension of size 1."""
    dim = check_dim(dim, len(view.shape) + 1, "expand_dim")
    if on_chip and dim == 0:
        raise ViewError("expand_dim: dimension 0 is the partition dimension; accepted: 1 and up")
    inner = view.shape[dim] * view.strides[dim] if dim < len(view.shape) else 1
    shape = (*view.shape[:dim], 1, *view.shape[dim:])
    return View(shape, (*view.strides[:dim], inner, *view.strides[dim:]), view.offset)


def squeeze(view: View, dim: int, on_chip: bool) -> View:
    """Removes a dimension of size 1."""
    dim = check_dim(dim, len(view.shape), "squeeze_dim")
    if on_chip and dim == 0:
        raise ViewError("squeeze_dim: dimension 0 is the partition dimension; accepted: a free dimension")
    if view.shape[dim] != 1:
        raise ViewError(f"squeeze_dim: dimension {dim} of {view.shape} has size {view.shape[dim]}; accepted: size 1")
    if len(view.shape) == (2 if on_chip else 1):
        raise ViewError(f"squeeze_dim: dimension {dim} of {view.shape} is the last one; accepted: one of several")
    return View(_replace(view.shape, dim, ()), _replace(view.strides, dim, ()), view.offset)


def split(view: View, dim: int, sizes: Ints, on_chip: bool) -> View:
    """Splits one dimension into several; one size may be -1."""
    dim = check_dim(dim, len(view.shape), "reshape_dim")
    sizes = infer(integers(sizes, "reshape_dim: shape"), view.shape[dim], "reshape_dim")
    if not sizes:
        raise ShapeError(f"reshape_dim: no sizes for dimension {dim} of {view.shape}; accepted: at least one")
    if on_chip and dim == 0 and sizes != (view.shape[0],):
        raise ViewError("reshape_dim: dimension 0 is the partition dimension; it cannot be split")
    stride = view.strides[dim]
    inner = tuple(stride * s for s in row_major(sizes))
    return View(_replace(view.shape, dim, sizes), _replace(view.strides, dim, inner), view.offset)


def infer(sizes: Ints, total: int, call: str) -> Ints:
    """`sizes` with its -1, if any, worked out so that the product is `total`."""
    unknown = [i for i, s in enumerate(sizes) if s == -1]
    known = prod(s for s in sizes if s != -1)
    if len(unknown) == 1 and known > 0 and total % known == 0:
        sizes = (*sizes[: unknown[0]], total // known, *sizes[unknown[0] + 1 :])
    if prod(sizes) != total or any(s < 1 for s in sizes):
        raise ShapeError(f"{call}: sizes {tuple(sizes)} do not multiply to {total}")
    return tuple(sizes)


def flatten(view: View, start: int, end: int, on_chip: bool) -> View:
    """Merges dimensions `start` to `end`, both included."""
    rank = len(view.shape)
    start, end = check_dim(start, rank, "flatten_dims"), check_dim(end, rank, "flatten_dims")
    if start > end:
        raise ViewError(f"flatten_dims: start {start} lies after end {end}")
    if on_chip and start == 0 and end > 0:
        raise ViewError("flatten_dims: dimension 0 is the partition dimension; accepted: start 1 and up")
    merged = View(view.shape[start : end + 1], view.strides[start : end + 1], 0)
    joined = reshape(merged, (prod(merged.shape),), False, "flatten_dims")
    return View(
        (*view.shape[:start], *joined.shape, *view.shape[end + 1 :]),
        (*view.strides[:start], *joined.strides, *view.strides[end + 1 :]),
        view.offset,
    )


def reshape(view: View, shape: Ints, on_chip: bool, call: str = "reshape") -> View:
    """The same elements in the same order under another shape, where strides can say so."""
    shape = infer(integers(shape, f"{call}: shape"), prod(view.shape), call)
    if on_chip:
        if not shape or shape[0] != view.shape[0]:
            raise ViewError(
                f"{call}: {view.shape} to {shape} changes the partition dimension; accepted: {view.shape[0]} first"
            )
        free = reshape(View(view.shape[1:], view.strides[1:], 0), shape[1:] or (1,), False, call)
        return View((shape[0], *free.shape), (view.strides[0], *free.strides), view.offset)
    if not shape:
        raise ShapeError(f"{call}: no sizes for {view.shape}; accepted: at least one")
    return View(shape, _reshaped_strides(view, shape, call), view.offset)


def _reshaped_strides(view: View, shape: Ints, call: str) -> Ints:
    """Walks both shapes from the back in groups of equal size; within a group the old strides must be dense."""
    old = [(n, s) for n, s in zip(view.shape, view.strides, strict=True) if n != 1]
    strides = [0] * len(shape)
    new = len(shape)
    while old:
        size, stride = old.pop()
        filled, step = 1, stride
        while filled < size:
            new -= 1
            strides[new] = step
            filled *= shape[new]
            step *= shape[new]
            while filled > size and old and old[-1][1] == size * stride:
                size *= old.pop()[0]
        if filled != size:
            raise ViewError(
                f"{call}: strides {view.strides} of {view.shape} cannot be viewed as {shape} without a copy"
            )
    for dim in range(len(shape) - 1, -1, -1):
        if shape[dim] == 1:
            inner = dim + 1
            strides[dim] = strides[inner] * shape[inner] if inner < len(shape) else 1
    return tuple(strides)


def _replace(items: Ints, dim: int, by: Ints) -> Ints:
    return (*items[:dim], *by, *items[dim + 1 :])


def _check_names(source: Any, target: Any, sizes: Any) -> None:
    for pattern in (source, target):
        entries = pattern if isinstance(pattern, (tuple, list)) else (None,)
        groups = [(e,) if isinstance(e, str) else e for e in entries]
        if not all(isinstance(g, (tuple, list)) and g and all(isinstance(n, str) for n in g) for g in groups):
            raise ArgumentError(f"rearrange: pattern {pattern!r}; accepted: a tuple of names and of tuples of names")
    if not isinstance(sizes, dict) or not all(isinstance(v, int) for v in sizes.values()):
        raise ArgumentError(f"rearrange: fixed_sizes {sizes!r}; accepted: integers by name")


def rearrange(view: View, source: tuple[Any, ...], target: tuple[Any, ...], sizes: dict[str, int], chip: bool) -> View:
    """Einops-style: splits grouped names of `source`, reorders, merges grouped names of `target`."""
    _check_names(source, target, sizes)
    if len(source) != len(view.shape):
        raise ViewError(f"rearrange: pattern {source} names {len(source)} dimensions, the tensor has {view.shape}")
    names: list[str] = []
    current = view
    for entry in source:
        group = (entry,) if isinstance(entry, str) else tuple(entry)
        dim = len(names)
        current = split(current, dim, tuple(sizes.get(n, -1) if len(group) > 1 else -1 for n in group), chip)
        names.extend(group)
    wanted = [n for entry in target for n in ((entry,) if isinstance(entry, str) else entry)]
    if sorted(wanted) != sorted(names):
        raise ViewError(f"rearrange: {target} does not name the dimensions {names} once each")
    current = permute(current, tuple(names.index(n) for n in wanted), chip)
    for dim, entry in enumerate(target):
        if not isinstance(entry, str):
            current = flatten(current, dim, dim + len(entry) - 1, chip)
    return current
