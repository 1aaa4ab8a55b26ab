"""`NkiTensor`: a storage and a strided view of it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NoReturn, TypeVar

import numpy as np

from nkisim import access_pattern, binding, views
from nkisim.dtypes import DType, as_dtype
from nkisim.enums import MemoryRegion
from nkisim.errors import ArgumentError, DtypeError, ShapeError, ViewError
from nkisim.objects import NKIObject
from nkisim.storage import Region, Storage
from nkisim.views import DynamicSlice, View

SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum
Found = TypeVar("Found")

_interned: dict[tuple[Any, ...], int] = {}
"""A number per signature, so that an instruction checks each combination of operands once per process."""


class NkiTensor(NKIObject):
    """A tensor in SBUF, PSUM or HBM.

    Views share the storage; none copies. On-chip tensors keep their partition dimension at position 0.

    Attributes:
        shape, strides, offset: the view; element (i0, i1, ...) lies at `offset + sum(i_k * strides[k])`.
        dtype, buffer: as created, or as `view(dtype)` made it.
        region: the view as records name it.
        signature: a number that equal operands (same memory, type, layout and start partition) share.
        indirection: the dynamic index of an `IndirectTensor`, otherwise None.
        made: (tensor, call, arguments) of the view; None for a whole tensor. See `history`.
    """

    __slots__ = ("buffer", "dtype", "made", "offset", "region", "shape", "signature", "storage", "strides")

    _keeps_init = True

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: DType
    buffer: MemoryRegion
    storage: Storage
    region: Region
    signature: int
    indirection: Any = None
    made: tuple[NkiTensor, str, Any] | None

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: DType | str,
        storage: Any,
        buffer: MemoryRegion | str = SBUF,
        name: str = "",
    ) -> None:
        """Binds the storage of another tensor to a dense view of `shape`; most code wants `nl.ndarray`.

        Args:
            storage: None makes a placeholder, which has a shape and a type and which no instruction takes.
            buffer: where the storage lies.
            name: of a placeholder; else the storage has one.

        Raises:
            ArgumentError, ShapeError, DtypeError, WrongBufferError: there is no such view.
        """
        self.shape = views.integers(shape, "NkiTensor: shape")
        self.strides = views.row_major(self.shape)
        self.offset = 0
        self.dtype = as_dtype(dtype)
        self.buffer = binding.memory(buffer)
        self.storage = binding.placeholder(self.shape, self.dtype, self.buffer, name) if storage is None else storage
        self.made = None
        binding.check(self)

    @property
    def name(self) -> str:
        """The name given at creation, or one made up for it."""
        return self.storage.allocation.name

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def address(self) -> tuple[int, int] | None:
        """(partition, byte) of the whole allocation where the kernel fixed it, otherwise None."""
        return self.storage.allocation.address

    @property
    def on_chip(self) -> bool:
        """Whether it lies in SBUF or PSUM."""
        return self.buffer is SBUF or self.buffer is PSUM

    @property
    def start_partition(self) -> int:
        """Partition of its first row; 0 for HBM."""
        if not self.on_chip:
            return 0
        allocation = self.storage.allocation
        first = allocation.address[0] if allocation.address else 0
        return first + self.offset * self.dtype.itemsize // allocation.row_bytes

    def __getattr__(self, name: str) -> Any:
        """Works out `region` and `signature` when first asked for; afterwards they are plain attributes."""
        if name == "signature" or name == "region":
            self.region, self.signature = self._seen()
            return self.signature if name == "signature" else self.region
        if name == "made":
            return None
        raise AttributeError(f"NkiTensor has no attribute {name!r}")

    def _seen(self) -> tuple[Region, int]:
        """Region and signature, found once for all views that show the same."""
        known, view = self.storage.known, (self.offset, self.shape, self.strides, self.dtype, self.buffer)
        found = known.get(view)
        if found is None:
            found = known[view] = self._located(), self._numbered()
        return found

    def once(self, what: str, find: Callable[[NkiTensor], Found]) -> Found:
        """What `find` gives for this view; found once for all views that show the same, unless an index moves it.

        It holds no view, which would keep the storage alive.
        """
        if self.indirection is not None:
            return find(self)
        known, view = self.storage.known, (self.offset, self.shape, self.strides, self.dtype, what)
        found: Found | None = known.get(view)
        if found is None:
            found = known[view] = find(self)
        return found

    def _numbered(self) -> int:
        return _interned.setdefault(self._rules_see(), len(_interned))

    def _located(self) -> Region:
        if binding.is_placeholder(self.storage):
            raise ArgumentError(f"{self.name} {list(self.shape)} has no storage; accepted: a tensor of nl.ndarray")
        return Region(self.storage.allocation, self.dtype, self.offset, self.shape, self.strides)

    def _rules_see(self) -> tuple[Any, ...]:
        """Everything that the rules of an instruction look at, save its values."""
        return (self.buffer, self.dtype, self.shape, self.strides, self.start_partition)

    def array(self) -> np.ndarray:
        """Its elements as a numpy array that shares memory with the storage."""
        return self.storage.array(self.dtype, self.offset, self.shape, self.strides)

    def is_contiguous(self) -> bool:
        """Whether the free dimensions (all of them for HBM) lie densely in row-major order."""
        first = 1 if self.on_chip else 0
        return views.is_contiguous(self.shape[first:], self.strides[first:])

    def get_pattern(self) -> list[list[int]]:
        """The view as `[[stride, count], ...]`, in the form that `ap` takes."""
        return [[stride, size] for stride, size in zip(self.strides, self.shape, strict=True)]

    def is_indirect(self) -> bool:
        """Whether the view's address is known only at run time."""
        return False

    def __getitem__(self, key: Any) -> NkiTensor:
        """A view by integers, slices, `nl.ds` and an ellipsis, which all must lie within the tensor.

        One integer, or the start of one `nl.ds`, may be a register.

        Raises:
            OutOfBoundsError: an index or slice outside its dimension, or an empty slice.
            ViewError: too many indices, or a step below 1.
        """
        if type(key) is not tuple:
            key = (key,)
        buffer = self.buffer
        try:
            view = views.index((self.shape, self.strides, self.offset), key, buffer is SBUF or buffer is PSUM)
        except ArgumentError:
            if not any(indirect.is_dynamic(k) for k in key):
                raise
            return indirect.indexed(self, key)
        except ValueError:  # an array among the entries compares element by element
            raise ArgumentError(f"index {key!r}; accepted: integers, slices, nl.ds, registers, an ellipsis") from None
        return self._viewed(view, "[...]", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise ViewError(
            f"{self.name}[...] = value is not an NKI instruction; accepted: nisa.tensor_copy, nisa.dma_copy or nl.store"
        )

    def permute(self, dims: tuple[int, ...]) -> NkiTensor:
        """Dimensions in another order; on-chip the partition dimension stays first."""
        return self._viewed(views.permute(self._view(), dims, self.on_chip), "permute", dims)

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """Dimension `dim`, of size 1, repeated `size` times with stride 0; never the partition dimension."""
        return self._viewed(views.broadcast(self._view(), dim, size, self.on_chip), "broadcast", (dim, size))

    def expand_dim(self, dim: int) -> NkiTensor:
        """A dimension of size 1 more, at position `dim`."""
        return self._viewed(views.expand(self._view(), dim, self.on_chip), "expand_dim", dim)

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Without dimension `dim`, which has size 1."""
        return self._viewed(views.squeeze(self._view(), dim, self.on_chip), "squeeze_dim", dim)

    def reshape_dim(self, dim: int, shape: tuple[int, ...]) -> NkiTensor:
        """Dimension `dim` split into `shape`, of which one size may be -1."""
        return self._viewed(
            views.split(self._view(), dim, shape, self.on_chip),
            "reshape_dim",
            (dim, shape),
        )

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Dimensions `start_dim` to `end_dim`, both included, merged into one."""
        return self._viewed(
            views.flatten(self._view(), start_dim, end_dim, self.on_chip), "flatten_dims", (start_dim, end_dim)
        )

    def reshape(self, shape: tuple[int, ...]) -> NkiTensor:
        """The same elements under another shape, where that needs no copy; the partition dimension stays."""
        return self._viewed(views.reshape(self._view(), shape, self.on_chip), "reshape", shape)

    def rearrange(
        self,
        src_pattern: tuple[Any, ...],
        dst_pattern: tuple[Any, ...],
        fixed_sizes: dict[str, int] | None = None,
    ) -> NkiTensor:
        """Splits, reorders and merges dimensions by name, einops-style."""
        return self._viewed(
            views.rearrange(
                self._view(), src_pattern, dst_pattern, {} if fixed_sizes is None else fixed_sizes, self.on_chip
            ),
            "rearrange",
            (src_pattern, dst_pattern, fixed_sizes),
        )

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """`start:end:step` of dimension `dim`."""
        dim = views.check_dim(dim, self.ndim, "slice")
        return self[(*[slice(None)] * dim, slice(start, end, step))]

    def select(self, dim: int, index: Any) -> NkiTensor:
        """Element `index` of dimension `dim`, which is dropped; an integer, a register or a tensor (1, 1) in SBUF."""
        if indirect.is_dynamic(index):
            return indirect.selected(self, dim, index)
        dim = views.check_dim(dim, self.ndim, "select")
        return self[(*[slice(None)] * dim, index)]

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """Rows of dimension 0 of an HBM tensor chosen by an index (rows, 1) in SBUF."""
        return indirect.rows_selected(self, dim, vector_offset)

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
        """Free elements chosen by an index, the same in all partitions (trn3): a view (partitions, num_elem).

        Element i takes the value at `index[i % G, i // G]`, G being 32 for the Tensor Engine and 16 for the others.

        Args:
            index: integers in SBUF, (partitions, columns).
            num_elem: how many of them; None takes `index.size`.
        """
        return indirect.columns_selected(self, index, num_elem)

    def ap(
        self,
        pattern: list[list[int]],
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: DType | None = None,
    ) -> NkiTensor:
        """A view given as `[[stride, count], ...]` over the whole storage, whatever this view shows of it.

        The documentation counts `offset` from the start of the storage in its deep dive and from the start of this
        view in this method's reference. So it is refused where the two differ.

        Args:
            pattern: on-chip, the first stride is the number of elements in a partition.
            offset: first element, counted in `dtype`; None keeps this view's, which is 0 where an offset is given.
            scalar_offset: a register or a tensor (1, 1) in SBUF, which moves the view along `indirect_dim`.
            vector_offset: int32 or uint32 in SBUF, one row of dimension 0 of this HBM tensor for each row of the
                view: (rows, 1), or (128, columns) read column by column. The first stride is ignored.
            indirect_dim: dimension of this tensor whose stride multiplies the offset.
            dtype: the bits read as this type.

        Raises:
            ArgumentError, ViewError, ShapeError, DtypeError, WrongBufferError: such a view does not exist.
            OutOfBoundsError: it leaves the storage; without a dynamic offset only once an instruction uses it.
        """
        if scalar_offset is not None or vector_offset is not None:
            return indirect.patterned(self, pattern, offset, scalar_offset, vector_offset, indirect_dim, dtype)
        found = access_pattern.of(self, pattern, offset, dtype, gathers=False)
        if found.fault is not None:
            return outside.outside(self, found.view, found.dtype, found.fault, (self, "ap", (pattern, offset)))
        return self._viewed(found.view, "ap", (pattern, offset), found.dtype)

    def view(self, dtype: DType) -> NkiTensor:
        """The same bits read as another type; the last dimension, which must be dense, scales with the width."""
        new = as_dtype(dtype)
        old_size, new_size = self.dtype.itemsize, new.itemsize
        if old_size == new_size:
            return self._viewed(View(self.shape, self.strides, self.offset), "view", new, new)
        if self.shape[-1] > 1 and self.strides[-1] != 1:
            raise ViewError(f"view: last dimension of {self.name} has stride {self.strides[-1]}; accepted: 1")
        walked = [s for s, count in zip(self.strides[:-1], self.shape[:-1], strict=True) if count > 1]
        if any(n * old_size % new_size for n in (self.shape[-1], self.offset, *walked)):
            raise ShapeError(
                f"view: {self.shape} of {self.dtype} at offset {self.offset} does not divide into {new_size}-byte {new}"
            )
        row, offset, *strides = (n * old_size // new_size for n in (self.shape[-1], self.offset, *self.strides[:-1]))
        return self._viewed(View((*self.shape[:-1], row), (*strides, 1), offset), "view", new, new)

    reinterpret_cast = view

    def _view(self) -> View:
        return View(self.shape, self.strides, self.offset)

    def _viewed(self, view: View, how: str, given: Any, dtype: DType | None = None) -> NkiTensor:
        new: NkiTensor = object.__new__(NkiTensor)
        new.shape, new.strides, new.offset = view
        new.dtype = self.dtype if dtype is None else dtype
        new.buffer = self.buffer
        new.storage = self.storage
        new.made = (self, how, given)
        return new

    def history(self) -> str:
        """How the view came about: the whole tensor, then each call with the shape that it made."""
        steps: list[str] = []
        tensor = self
        while tensor.made is not None:
            base, how, given = tensor.made
            shown = ", ".join(_entry(g) for g in (given if type(given) is tuple else (given,)))
            call = f"[{shown}]" if how == "[...]" else f"{how}({shown})"
            dtype = tensor.dtype if tensor.dtype is not base.dtype else ""
            steps.append(f" -> {call} {dtype}{list(tensor.shape)}")
            tensor = base
        site = tensor.storage.allocation.site
        created = f" created at {site}" if site else ""
        return tensor._title() + created + "".join(reversed(steps))

    def _title(self) -> str:
        allocation = self.storage.allocation
        place = f" at {allocation.address}" if allocation.address else ""
        return f"{self.name}: {self.dtype}{list(self.shape)} in {self.buffer!r}{place}"

    def _arithmetic(self, *_: Any) -> NoReturn:
        raise DtypeError(
            f"Python arithmetic with {self.name}; accepted: instructions such as nisa.tensor_tensor, or nl.add(x, y)"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _arithmetic
    __floordiv__ = __mod__ = __pow__ = __matmul__ = __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = _arithmetic
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __pos__ = __abs__ = __invert__ = _arithmetic

    def __bool__(self) -> bool:
        raise DtypeError(
            f"the value of {self.name} is not known when the kernel is traced; Python control flow cannot depend on it"
        )

    def __repr__(self) -> str:
        text = f"<{self._title()}>"
        if self.storage.raw is None:
            return text
        return f"{text}\n{np.array2string(self.array(), threshold=64)}"


def _entry(given: Any) -> str:
    """An argument of a view as a kernel would write it."""
    if given is Ellipsis:
        return "..."
    if type(given) is slice:
        bounds = [given.start, given.stop] + ([] if given.step is None else [given.step])
        return ":".join("" if b is None else str(b) for b in bounds)
    if type(given) is DynamicSlice:
        return f"nl.ds({_entry(given.start)}, {given.size})"
    return given.name if isinstance(given, NkiTensor) else repr(given)


from nkisim import indirect, outside  # noqa: E402 - they subclass NkiTensor
