"""Views whose addresses only the device knows: a dynamic offset, rows chosen by an index, columns chosen by one.

`IndirectTensor` carries the index; `nkisim.addressing` works out addresses when an instruction runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from nkisim import access_pattern, machine, views
from nkisim.dtypes import DType, int32, uint32
from nkisim.errors import (
    ArgumentError,
    DtypeError,
    OutOfBoundsError,
    ShapeError,
    TargetError,
    ViewError,
    WrongBufferError,
)
from nkisim.registers import VirtualRegister
from nkisim.storage import IndexedRegion, Region
from nkisim.tensor import SBUF, NkiTensor
from nkisim.views import DynamicSlice, View

OFFSET, ROWS, COLUMNS = "offset", "rows", "columns"


class Indirection(NamedTuple):
    """How an index moves a view.

    Attributes:
        kind: OFFSET moves the whole view by one value, ROWS gives each row of dimension 0 its own value, COLUMNS
            each element of the free dimension.
        by: the index: a register, or a tensor of values.
        step: elements between one value of the index and the next.
        limit: values from 0 to below this lie within the tensor.
        dim: the dimension of the view that the index chooses, which no further view may cut; None if it is gone.
    """

    kind: str
    by: NkiTensor | VirtualRegister
    step: int
    limit: int
    dim: int | None


class IndirectTensor(NkiTensor):
    """A view with an index. Instructions read and write it through `nkisim.memory` like any other.

    After `vector_select` and `ap(vector_offset=...)` dimension 0 stays first and whole; after
    `ap(scalar_offset=...)` the indexed dimension stays whole; after `indirect` the view is final.
    """

    __slots__ = ("indirection",)

    indirection: Indirection

    def is_indirect(self) -> bool:
        """True: its addresses are known on the device only."""
        return True

    def _seen(self) -> tuple[Region, int]:
        return self._located(), self._numbered()

    def _rules_see(self) -> tuple[Any, ...]:
        by = self.indirection.by
        return (*super()._rules_see(), self.indirection.kind, by.signature if isinstance(by, NkiTensor) else None)

    def _located(self) -> Region:
        by = self.indirection.by
        region = IndexedRegion(self.storage.allocation, self.dtype, self.offset, self.shape, self.strides)
        region.chosen_by = by.region if isinstance(by, NkiTensor) else None
        return region

    def _viewed(self, view: View, how: str, given: Any, dtype: DType | None = None) -> NkiTensor:
        raise ViewError(f"{how}: not supported on {self.name}, a view with a dynamic index")

    def _moved(self, view: View, how: str, given: Any, dim: int | None) -> NkiTensor:
        self._not_final(how)
        return _indirect(self, view, self.dtype, self.indirection._replace(dim=dim), (self, how, given))

    def __repr__(self) -> str:
        by = self.indirection.by
        index = by.name if isinstance(by, NkiTensor) else repr(by)
        return f"<{self._title()}, {self.indirection.kind} chosen by {index}>"

    def _not_final(self, how: str) -> None:
        if self.indirection.kind == COLUMNS:
            raise ViewError(f"{how}: {self.name} is a view made by indirect(), which is final")

    @property
    def _keeps_first(self) -> bool:
        """Whether dimension 0 stays where it is: partitions, or rows chosen by an index."""
        return self.on_chip or self.indirection.kind == ROWS

    def _keep(self, dims: range, how: str) -> None:
        if self.indirection.dim is not None and self.indirection.dim in dims:
            raise ViewError(
                f"{how}: dimension {self.indirection.dim} of {self.name} {list(self.shape)} is chosen by an index at "
                f"run time; accepted: the other dimensions"
            )

    def __getitem__(self, key: Any) -> NkiTensor:
        """A view of the dimensions that the index does not choose; the one it chooses stays whole."""
        entries = views.filled(key if type(key) is tuple else (key,), self.ndim)
        if all(_is_whole(k, n) for k, n in zip(entries, self.shape, strict=False)):
            return self
        _refuse_dynamic(self, "[...]", entries)
        dim = self.indirection.dim
        if dim is not None and dim < len(entries) and not _is_whole(entries[dim], self.shape[dim]):
            self._keep(range(dim, dim + 1), "[...]")
        view = views.index(self._view(), entries, self.on_chip)
        if dim is not None:
            dim -= sum(1 for d, k in enumerate(entries[:dim]) if _drops(k) and not (self.on_chip and d == 0))
        return self._moved(view, "[...]", key, dim)

    def permute(self, dims: tuple[int, ...]) -> NkiTensor:
        """Dimensions in another order; rows chosen by an index stay first."""
        view = views.permute(self._view(), dims, self._keeps_first)
        dim = self.indirection.dim
        return self._moved(view, "permute", dims, None if dim is None else tuple(dims).index(dim))

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """Dimension `dim`, of size 1, repeated; not the one that the index chooses."""
        position = views.check_dim(dim, self.ndim, "broadcast")
        self._keep(range(position, position + 1), "broadcast")
        view = views.broadcast(self._view(), dim, size, self._keeps_first)
        return self._moved(view, "broadcast", (dim, size), self.indirection.dim)

    def expand_dim(self, dim: int) -> NkiTensor:
        """A dimension of size 1 more, never in front of rows chosen by an index."""
        position = views.check_dim(dim, self.ndim + 1, "expand_dim")
        return self._moved(
            views.expand(self._view(), dim, self._keeps_first), "expand_dim", dim, self._shifted(position, 1)
        )

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Without dimension `dim`, of size 1; not the one that the index chooses."""
        position = views.check_dim(dim, self.ndim, "squeeze_dim")
        self._keep(range(position, position + 1), "squeeze_dim")
        view = views.squeeze(self._view(), dim, self._keeps_first)
        return self._moved(view, "squeeze_dim", dim, self._shifted(position, -1))

    def reshape_dim(self, dim: int, shape: tuple[int, ...]) -> NkiTensor:
        """Dimension `dim` split; not the one that the index chooses."""
        position = views.check_dim(dim, self.ndim, "reshape_dim")
        shape = views.integers(shape, "reshape_dim: shape")
        if len(shape) > 1:
            self._keep(range(position, position + 1), "reshape_dim")
        view = views.split(self._view(), dim, shape, self._keeps_first)
        return self._moved(view, "reshape_dim", (dim, shape), self._shifted(position, len(shape) - 1))

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Dimensions merged; not the one that the index chooses."""
        start = views.check_dim(start_dim, self.ndim, "flatten_dims")
        end = views.check_dim(end_dim, self.ndim, "flatten_dims")
        if start != end:
            self._keep(range(start, end + 1), "flatten_dims")
        view = views.flatten(self._view(), start, end, self._keeps_first)
        return self._moved(view, "flatten_dims", (start_dim, end_dim), self._shifted(start, start - end))

    def reshape(self, shape: tuple[int, ...]) -> NkiTensor:
        """The same elements under another shape, the same up to the dimension that the index chooses."""
        shape = views.integers(shape, "reshape: shape")
        kept = 0 if self.indirection.dim is None else self.indirection.dim + 1
        if tuple(shape[:kept]) != self.shape[:kept]:
            raise ViewError(
                f"reshape: {self.shape} to {tuple(shape)} of {self.name}, whose dimension {kept - 1} an index chooses; "
                f"accepted: {self.shape[:kept]} first"
            )
        if kept:
            rest = View(self.shape[kept:] or (1,), self.strides[kept:] or (1,), 0)
            free = views.reshape(rest, tuple(shape[kept:]) or (1,), False)
            view = View(self.shape[:kept] + free.shape, self.strides[:kept] + free.strides, self.offset)
        else:
            view = views.reshape(self._view(), shape, self.on_chip)
        return self._moved(view, "reshape", shape, self.indirection.dim)

    def rearrange(
        self,
        src_pattern: tuple[Any, ...],
        dst_pattern: tuple[Any, ...],
        fixed_sizes: dict[str, int] | None = None,
    ) -> NkiTensor:
        """Splits, reorders and merges dimensions by name, all but the one that the index chooses."""
        dim = self.indirection.dim
        if dim is not None:
            named = isinstance(src_pattern, (tuple, list)) and isinstance(dst_pattern, (tuple, list))
            name = src_pattern[dim] if named and dim < len(src_pattern) else None
            if not isinstance(name, str) or name not in dst_pattern:
                self._keep(range(dim, dim + 1), "rearrange")
            dim = dst_pattern.index(name)
        view = views.rearrange(
            self._view(), src_pattern, dst_pattern, {} if fixed_sizes is None else fixed_sizes, self._keeps_first
        )
        return self._moved(view, "rearrange", (src_pattern, dst_pattern, fixed_sizes), dim)

    def view(self, dtype: DType) -> NkiTensor:
        """Refused: the bits of a view with a dynamic index keep their type."""
        raise ViewError(f"view: {self.name} already has a dynamic index; accepted: view({dtype}) before it")

    reinterpret_cast = view

    def _shifted(self, position: int, by: int) -> int | None:
        """The chosen dimension after `by` dimensions came (or went) at `position`."""
        dim = self.indirection.dim
        return dim if dim is None or position > dim or (position == dim and by < 1) else dim + by


def _is_whole(entry: Any, size: int) -> bool:
    if type(entry) is slice:
        return entry.start in (None, 0) and entry.step in (None, 1) and entry.stop in (None, size)
    return type(entry) is DynamicSlice and entry.start == 0 and entry.size == size


def _drops(entry: Any) -> bool:
    return type(entry) not in (slice, DynamicSlice)


def _indirect(base: NkiTensor, view: View, dtype: DType, indirection: Indirection, made: Any) -> NkiTensor:
    new: IndirectTensor = object.__new__(IndirectTensor)
    new.shape, new.strides, new.offset = view
    new.dtype, new.buffer, new.storage = dtype, base.buffer, base.storage
    new.indirection, new.made = indirection, made
    return new


def _refuse_second(tensor: NkiTensor, how: str) -> None:
    if tensor.indirection is not None:
        raise ViewError(f"{how}: {tensor.name} already has a dynamic index; accepted: one per view (see is_indirect)")


def _refuse_dynamic(tensor: NkiTensor, how: str, entries: tuple[Any, ...]) -> None:
    if any(is_dynamic(k) for k in entries):
        _refuse_second(tensor, how)


def is_dynamic(entry: Any) -> bool:
    """Whether an entry of `tensor[...]` is known at run time only."""
    return isinstance(entry.start if type(entry) is DynamicSlice else entry, (VirtualRegister, NkiTensor))


def _scalar(how: str, index: Any) -> NkiTensor | VirtualRegister:
    """A register, or an integer tensor of one element in SBUF."""
    if isinstance(index, VirtualRegister):
        return index
    if not isinstance(index, NkiTensor):
        raise ArgumentError(f"{how}: index {index!r}; accepted: a register or a tensor (1, 1) in SBUF")
    if index.size != 1:
        raise ShapeError(f"{how}: index {index.name} {list(index.shape)}; accepted: (1, 1)")
    _check_index(how, index)
    return index


def _check_index(how: str, index: NkiTensor) -> None:
    if index.buffer is not SBUF:
        raise WrongBufferError(f"{how}: index {index.name} lies in {index.buffer.value}; accepted: sbuf")
    if index.dtype.kind != "integer":
        raise DtypeError(f"{how}: index {index.name} is {index.dtype}; accepted: an integer type")
    _refuse_second(index, f"{how}: index")


def _free_dim(tensor: NkiTensor, dim: int, how: str) -> int:
    position = views.check_dim(dim, tensor.ndim, how)
    if tensor.on_chip and position == 0:
        raise ViewError(f"{how}: dimension 0 of {tensor.name} is the partition dimension; accepted: a free dimension")
    if tensor.strides[position] == 0:
        raise ViewError(f"{how}: dimension {position} of {tensor.name} is broadcast; accepted: a dimension that is not")
    return position


def selected(tensor: NkiTensor, dim: int, index: Any) -> NkiTensor:
    """`tensor.select(dim, index)` for an index known at run time."""
    _refuse_second(tensor, "select")
    position = _free_dim(tensor, dim, "select")
    value = _scalar("select", index)
    view = views.index(tensor._view(), (*[slice(None)] * position, 0), tensor.on_chip)
    step, limit = tensor.strides[position], tensor.shape[position]
    return _indirect(
        tensor, view, tensor.dtype, Indirection(OFFSET, value, step, limit, None), (tensor, "select", (dim, index))
    )


def indexed(tensor: NkiTensor, key: tuple[Any, ...]) -> NkiTensor:
    """`tensor[key]` where one entry is a register, or `nl.ds` of one."""
    _refuse_second(tensor, "[...]")
    entries = views.filled(key, tensor.ndim)
    dynamic = [d for d, k in enumerate(entries) if is_dynamic(k)]
    if len(dynamic) > 1:
        raise ViewError(f"[...]: {len(dynamic)} dynamic entries; accepted: one")
    position = _free_dim(tensor, dynamic[0], "[...]")
    entry = entries[position]
    sliced = type(entry) is DynamicSlice
    value = _scalar("[...]", entry.start if sliced else entry)
    size = views.integer(entry.size, "nl.ds size") if sliced else 1
    if not 1 <= size <= tensor.shape[position]:
        raise OutOfBoundsError(f"nl.ds size {size} on dimension {position}; accepted: 1 to {tensor.shape[position]}")
    static = DynamicSlice(0, size) if sliced else 0
    view = views.index(tensor._view(), (*entries[:position], static, *entries[position + 1 :]), tensor.on_chip)
    step, limit = tensor.strides[position], tensor.shape[position] - size + 1
    return _indirect(tensor, view, tensor.dtype, Indirection(OFFSET, value, step, limit, None), (tensor, "[...]", key))


def _check_rows(tensor: NkiTensor, dim: Any, index: Any, how: str) -> None:
    _refuse_second(tensor, how)
    if tensor.on_chip:
        raise WrongBufferError(f"{how}: {tensor.name} lies in {tensor.buffer.value}; accepted: hbm")
    if views.integer(dim, f"{how}: dimension") != 0:
        raise ViewError(f"{how}: dimension {dim}; accepted: 0")
    if not isinstance(index, NkiTensor):
        raise ArgumentError(f"{how}: index {index!r}; accepted: a tensor (rows, 1) in SBUF")
    _check_index(how, index)
    if index.dtype not in (int32, uint32):
        raise DtypeError(f"{how}: index {index.name} is {index.dtype}; accepted: int32 or uint32")
    if index.ndim > 2 and index.size != index.shape[0]:
        raise ShapeError(f"{how}: index {index.name} {list(index.shape)}; accepted: (rows, 1) or (rows, columns)")
    _free_dim(tensor, 0, how)


def rows_selected(tensor: NkiTensor, dim: int, index: NkiTensor) -> NkiTensor:
    """`tensor.vector_select(dim, index)`."""
    how = "vector_select"
    _check_rows(tensor, dim, index, how)
    if index.size != index.shape[0]:
        raise ShapeError(f"{how}: index {index.name} {list(index.shape)}; accepted: ({index.shape[0]}, 1)")
    view = View((index.shape[0], *tensor.shape[1:]), tensor.strides, tensor.offset)
    found = Indirection(ROWS, index, tensor.strides[0], tensor.shape[0], 0)
    return _indirect(tensor, view, tensor.dtype, found, (tensor, how, (dim, index)))


def patterned(
    tensor: NkiTensor, pattern: Any, offset: Any, scalar_offset: Any, vector_offset: Any, indirect_dim: int, dtype: Any
) -> NkiTensor:
    """`tensor.ap(...)` with a scalar or a vector offset."""
    how = "ap"
    _refuse_second(tensor, how)
    if scalar_offset is not None and vector_offset is not None:
        raise ArgumentError(f"{how}: scalar_offset and vector_offset are both given; accepted: at most one")
    if vector_offset is not None:
        _check_rows(tensor, indirect_dim, vector_offset, f"{how}: vector_offset")
    dim = _free_dim(tensor, indirect_dim, f"{how}: indirect_dim")
    found = access_pattern.of(tensor, pattern, offset, dtype, gathers=vector_offset is not None)
    if found.fault is not None:
        raise OutOfBoundsError(found.fault)
    step_bytes = tensor.strides[dim] * tensor.dtype.itemsize
    if step_bytes % found.dtype.itemsize:
        raise ViewError(
            f"{how}: dimension {dim} of {tensor.name} steps {step_bytes} bytes, not a multiple of {found.dtype}"
        )
    step = step_bytes // found.dtype.itemsize
    limit = found.room // step + 1
    given = (tensor, how, (pattern, offset, scalar_offset if vector_offset is None else vector_offset))
    if vector_offset is None:
        value = _scalar(f"{how}: scalar_offset", scalar_offset)
        cut = dim if dim < len(found.view.shape) else None
        return _indirect(tensor, found.view, found.dtype, Indirection(OFFSET, value, step, limit, cut), given)
    count = found.view.shape[0]
    if count > vector_offset.size:
        raise ShapeError(
            f"{how}: {count} rows in pattern {pattern}, {vector_offset.size} in vector_offset "
            f"{list(vector_offset.shape)}; accepted: at most as many rows as the index has"
        )
    view = found.view._replace(strides=(step, *found.view.strides[1:]))
    return _indirect(tensor, view, found.dtype, Indirection(ROWS, vector_offset, step, limit, 0), given)


def columns_selected(tensor: NkiTensor, index: NkiTensor, num_elem: int | None) -> NkiTensor:
    """`tensor.indirect(index, num_elem)`."""
    how = "indirect"
    _refuse_second(tensor, how)
    core = machine.core(how)
    if not core.hardware.supports_mx:
        raise TargetError(f"{how}: target {core.hardware.name}; accepted: trn3")
    if not tensor.on_chip:
        raise WrongBufferError(f"{how}: {tensor.name} lies in {tensor.buffer.value}; accepted: sbuf or psum")
    if not isinstance(index, NkiTensor):
        raise ArgumentError(f"{how}: index {index!r}; accepted: a tensor in SBUF")
    _check_index(how, index)
    if index.ndim != 2 or index.shape[0] != tensor.shape[0]:
        raise ShapeError(
            f"{how}: index {index.name} {list(index.shape)}; accepted: ({tensor.shape[0]}, columns), as many "
            f"partitions as {tensor.name} {list(tensor.shape)}"
        )
    count = index.size if num_elem is None else num_elem
    if not isinstance(count, int) or not 1 <= count <= index.size:
        raise ArgumentError(f"{how}: num_elem {num_elem!r}; accepted: 1 to {index.size}, the elements of the index")
    flat = views.reshape(tensor._view(), (tensor.shape[0], tensor.size // tensor.shape[0]), True, how)
    step = flat.strides[1]
    view = View((flat.shape[0], count), flat.strides, flat.offset)
    found = Indirection(COLUMNS, index, step, flat.shape[1], 1)
    return _indirect(tensor, view, tensor.dtype, found, (tensor, how, (index, count)))
