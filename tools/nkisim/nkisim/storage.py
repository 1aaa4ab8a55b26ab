"""Memory behind tensors: what was allocated, its bytes, and which of them have been written.

On-chip memory is kept as one row of bytes per partition, HBM as one flat run of bytes; a tensor view addresses
either as a flat array of elements. In a timing-only run nothing holds bytes.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nkisim.dtypes import DType
from nkisim.enums import MemoryRegion
from nkisim.numerics.background import Multiply, Products
from nkisim.source import Site

if TYPE_CHECKING:
    from nkisim.sharing import Sharing

POISON = 0xFF
"""Fills fresh memory: NaN in every floating-point type, -1 in signed integers."""


class Allocation(NamedTuple):
    """What a tensor occupies; outlives the bytes, so that records can name it.

    Attributes:
        number: order of creation on its core.
        name: the kernel's name for it, or one made from its number.
        shape, dtype: as created.
        partitions: partitions occupied; 1 for HBM.
        row_bytes: bytes in each partition; for HBM the whole tensor.
        address: (partition, byte in the partition) where the kernel fixed it, otherwise None.
        site: where in the kernel it was created.
    """

    number: int
    name: str
    buffer: MemoryRegion
    shape: tuple[int, ...]
    dtype: DType
    partitions: int
    row_bytes: int
    address: tuple[int, int] | None
    site: Site | None


class Region(NamedTuple):
    """One operand of a record: elements `offset + sum(index * stride)` of an allocation, counted in `dtype`."""

    allocation: Allocation
    dtype: DType
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements accessed."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes accessed."""
        return prod(self.shape) * self.dtype.itemsize


class IndexedRegion(Region):
    """An operand with a dynamic index: `shape` counts its elements, which may be any of the allocation.

    Attributes:
        chosen_by: the index tile; None where a register holds the index.
    """

    chosen_by: Region | None = None


class Storage:
    """The bytes of one allocation.

    Attributes:
        allocation: what they are the bytes of.
        unwritten: None once every element has been written; until then a flag per granule, set when it was not.
        known: what `NkiTensor` has worked out of its views.
        decoded: views decoded for the Tensor Engine, by (offset, shape, strides, dtype, ...); dropped when overwritten.
        sharing: of shared HBM, who of two cores touched it; see `nkisim.sharing`.
        keeps_fp32: whether `keep` is to be called after each write.
        foreign: of PSUM, a flag per byte, set where another engine than the Tensor Engine wrote last; None if none did.
    """

    __slots__ = (
        "__weakref__",
        "_granule",
        "_missing",
        "_private",
        "_products",
        "_raw",
        "allocation",
        "decoded",
        "foreign",
        "known",
        "sharing",
        "unwritten",
    )

    keeps_fp32 = False

    def __init__(self, allocation: Allocation, raw: np.ndarray | None, *, written: bool) -> None:
        self.allocation = allocation
        self._raw = raw
        self._products: Products | None = None
        self.known: dict[Any, Any] = {}
        self.decoded: dict[Any, Any] = {}
        self.sharing: Sharing | None = None
        self.foreign: np.ndarray | None = None
        self.unwritten: np.ndarray | None = None
        self._private = not written
        self._granule = allocation.dtype.itemsize
        self._missing = 0
        if raw is not None and not written:
            self._missing = raw.size // self._granule
            self.unwritten = np.ones(self._missing, np.bool_)

    @property
    def raw(self) -> np.ndarray | None:
        """Flat uint8 array, or None in a timing-only run; every product that was issued is in it."""
        self._settle()
        return self._raw

    def multiply(self, region: Region, multiply: Multiply, onto: bool) -> None:
        """Issues a product into a region of PSUM, to be computed by the time that the bytes are looked at.

        Args:
            multiply: computes columns of it.
            onto: adds it to what is there.
        """
        size = region.dtype.itemsize
        columns = region.offset * size % self.allocation.row_bytes, region.shape[1], region.strides[1]
        if self._products is None or self._products.columns != columns:
            self._settle()
            self._products = Products(columns)
        strides = [stride * size for stride in region.strides]
        target = np.ndarray(region.shape, region.dtype.storage, self._raw, region.offset * size, strides)
        self._products.add(multiply, target, onto)

    def _settle(self) -> None:
        if self._products is not None:
            self._products.finish()
            self._products = None

    @classmethod
    def fresh(cls, allocation: Allocation, *, numerics: bool) -> Storage:
        """Poisoned memory that nothing has written."""
        raw = None
        if numerics:
            raw = np.empty(allocation.partitions * allocation.row_bytes, np.uint8)
            raw.fill(POISON)
        return cls(allocation, raw, written=False)

    def array(self, dtype: DType, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
        """The elements of a view, sharing memory."""
        size = dtype.itemsize
        return np.ndarray(shape, dtype.storage, self.raw, offset * size, [s * size for s in strides])

    values = array
    """The elements for whoever computes with them or moves them; see `nkisim.precision`."""

    def keep(
        self,
        dtype: DType,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        values: np.ndarray,
        chosen: Any = ...,
    ) -> None:
        """Notes what was rounded into a view, where `keeps_fp32` asks for it."""

    def missing(self, region: Region, chosen: np.ndarray | None = None) -> np.ndarray | None:
        """Which of the region's elements nothing has written; None if there is none.

        Args:
            chosen: looks only at elements where this (of the region's shape) is true; None looks at all.
        """
        flags = self.flags(region)
        if flags is None or not flags.any():
            return None
        unwritten = np.logical_or.reduce(flags, -1) if flags.ndim > len(region.shape) else flags.copy()
        if chosen is not None:
            unwritten &= chosen
        return unwritten if chosen is None or unwritten.any() else None

    def first_unwritten(self, region: Region) -> tuple[int, ...] | None:
        """Index, within the region, of an element that nothing has written; None when there is none."""
        unwritten = self.missing(region)
        if unwritten is None:
            return None
        return tuple(int(i) for i in np.unravel_index(int(unwritten.argmax()), unwritten.shape))

    @property
    def has_been_written(self) -> bool:
        """Whether any element has."""
        return self.unwritten is None or self._missing < self.unwritten.size

    def is_written(self, region: Region) -> bool | None:
        """Whether every element of the region has been written (True), none (False) or some (None)."""
        if self.unwritten is None:
            return True
        if not self.has_been_written:
            return False
        flags = self.flags(region)
        assert flags is not None
        return None if flags.any() and not flags.all() else not flags.any()

    def own(self) -> None:
        """Before the first write to a caller's array: work on a copy, so that a failed run leaves it untouched."""
        if not self._private and self.raw is not None:
            self._raw = self.raw.copy()
            self._private = True

    @property
    def is_private(self) -> bool:
        """Whether the bytes are the simulator's own rather than a caller's."""
        return self._private

    def mark_written(self, region: Region) -> None:
        """Notes that every element of the region now holds a value."""
        if self.sharing is not None:
            self.sharing.after_write(region)
        flags = self.flags(region)
        if flags is None:
            return
        self._missing -= int(np.count_nonzero(flags))
        flags[...] = False
        if self._missing == 0:
            self.unwritten = None

    def mark_written_where(self, region: Region, chosen: np.ndarray) -> None:
        """Like `mark_written`, for the elements where `chosen` (of the region's shape) is true."""
        if self.sharing is not None:
            self.sharing.after_write(region, chosen)
        flags = self.flags(region)
        if flags is None:
            return
        if flags.ndim > chosen.ndim:
            chosen = np.broadcast_to(chosen[..., None], flags.shape)
        self._missing -= int(np.count_nonzero(flags & chosen))
        flags[chosen] = False
        if self._missing == 0:
            self.unwritten = None

    def mark_chosen_written(self, table: Region, key: tuple[Any, ...]) -> None:
        """Like `mark_written`, for the elements that a numpy index chooses from a table, which may overlap."""
        if self.sharing is not None:
            self.sharing.after_write(table, key)
        flags = self.flags(table)
        if flags is None:
            return
        flags[key] = False
        assert self.unwritten is not None
        self._missing = int(np.count_nonzero(self.unwritten))
        if self._missing == 0:
            self.unwritten = None

    def mark_unwritten(self, table: Region, unwritten: np.ndarray, key: Any = ...) -> None:
        """Notes, after a write to elements that a numpy index chooses, which of these hold nothing after all.

        Args:
            unwritten: a boolean per chosen element.
        """
        if self.unwritten is None:
            assert self.raw is not None
            self.unwritten = np.zeros(self.raw.size // self._granule, np.bool_)
        flags = self.flags(table)
        assert flags is not None
        flags[key] = unwritten[..., None] if flags.ndim > len(table.shape) else unwritten
        self._missing = int(np.count_nonzero(self.unwritten))
        if self._missing == 0:
            self.unwritten = None

    def prepare_write(self, region: Region) -> None:
        """Before a write to the region: own the bytes and forget what was decoded from it."""
        if not self._private:
            self.own()
        if self.decoded:
            self.drop_decoded(region)
        if self.sharing is not None:
            self.sharing.before_write(region)

    def mark_foreign(self, region: Region) -> None:
        """Notes that another engine than the Tensor Engine wrote the region, which lies in PSUM."""
        if self.foreign is None:
            assert self.raw is not None
            self.foreign = np.zeros(self.raw.size, np.bool_)
        self._foreign_flags(region)[...] = True

    def clear_foreign(self, region: Region) -> None:
        """Notes that the Tensor Engine wrote the region."""
        if self.foreign is not None:
            self._foreign_flags(region)[...] = False

    def is_foreign(self, region: Region) -> bool:
        """Whether another engine than the Tensor Engine wrote some of the region last."""
        return self.foreign is not None and bool(self._foreign_flags(region).any())

    def _foreign_flags(self, region: Region) -> np.ndarray:
        size = region.dtype.itemsize
        strides = [s * size for s in region.strides]
        return np.ndarray((*region.shape, size), np.bool_, self.foreign, region.offset * size, [*strides, 1])

    def drop_decoded(self, region: Region) -> None:
        """Forgets decoded views that overlap a region about to be written."""
        low, high = _byte_span(region)
        for key in [k for k in self.decoded if _overlaps(k, low, high)]:
            self.decoded.pop(key).forget()

    def __del__(self) -> None:
        for kept in self.decoded.values():
            kept.forget()

    def flags(self, region: Region) -> np.ndarray | None:
        """A view of the flags of the region's elements (a last axis more where an element has several granules)."""
        if self.unwritten is None:
            return None
        size = region.dtype.itemsize
        if size % self._granule:
            self.unwritten = np.repeat(self.unwritten, self._granule)
            self._missing *= self._granule
            self._granule = 1
        ratio = size // self._granule
        shape, strides = region.shape, [s * ratio for s in region.strides]
        if ratio > 1:
            shape, strides = (*shape, ratio), [*strides, 1]
        return np.ndarray(shape, np.bool_, self.unwritten, region.offset * ratio, strides)


def overlap(a: Region, b: Region) -> bool:
    """Whether the bytes from first to last of two regions of one allocation overlap."""
    (start, stop), (low, high) = _byte_span(a), _byte_span(b)
    return start < high and low < stop


def _byte_span(region: Region) -> tuple[int, int]:
    size = region.dtype.itemsize
    last = region.offset + sum((n - 1) * s for n, s in zip(region.shape, region.strides, strict=True))
    return region.offset * size, (last + 1) * size


def _overlaps(key: tuple[Any, ...], low: int, high: int) -> bool:
    offset, shape, strides, dtype = key[:4]
    size = dtype.itemsize
    start = offset * size
    stop = start + (sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1) * size
    return start < high and low < stop
