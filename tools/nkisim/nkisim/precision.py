"""The high-precision mode (NKI_PRECISE_FP=0): an fp32 number behind each element of a narrower floating-point tensor.

The bytes are written as ever, so that views of other types, packed words, races and unwritten elements are what they
are on the chip. Beside them stands the number before it was rounded to the tensor's type; it counts as long as it
rounds to what the bytes hold. So what was written through another type, or packed, is taken from the bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim.dtypes import DType, float32, tfloat32
from nkisim.numerics import cast
from nkisim.options import Options
from nkisim.storage import Allocation, Storage


class Fp32Storage(Storage):
    """Bytes with the fp32 numbers that they were rounded from."""

    __slots__ = ("_unrounded",)

    keeps_fp32 = True

    def __init__(self, allocation: Allocation, raw: np.ndarray | None, *, written: bool) -> None:
        super().__init__(allocation, raw, written=written)
        self._unrounded: np.ndarray | None = None

    def values(self, dtype: DType, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
        """The elements of a view: in fp32 where more is known of them than is stored, else as they are stored."""
        stored = self.array(dtype, offset, shape, strides)
        if self._unrounded is None or dtype is not self.allocation.dtype:
            return stored
        numbers = _view(self._unrounded, offset, shape, strides)
        rounded = np.empty(shape, stored.dtype)
        cast.store(rounded, numbers, dtype)
        bits, exact = f"u{stored.itemsize}", cast.to_fp32(stored)
        more = (rounded.view(bits) == stored.view(bits)) & (numbers != exact) & ~np.isnan(numbers)
        return np.where(more, numbers, exact) if more.any() else stored

    def keep(
        self,
        dtype: DType,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        values: np.ndarray,
        chosen: Any = ...,
    ) -> None:
        """Notes what was rounded into the elements of a view that a numpy index chooses."""
        if dtype is not self.allocation.dtype:
            return
        if self._unrounded is None:
            if values.dtype == dtype.storage and dtype is not tfloat32:
                return
            assert self.raw is not None
            self._unrounded = np.array(cast.to_fp32(self.raw.view(dtype.storage)), np.float32)
        _view(self._unrounded, offset, shape, strides)[chosen] = values


def _view(flat: np.ndarray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    size = flat.itemsize
    return np.ndarray(shape, flat.dtype, flat, offset * size, [stride * size for stride in strides])


def storage_of(allocation: Allocation, options: Options) -> type[Storage]:
    """The kind of storage that an allocation gets."""
    narrow = allocation.dtype.kind == "float" and allocation.dtype is not float32
    return Fp32Storage if narrow and options.numerics and not options.precise else Storage
