"""Access patterns that leave their storage: harmless until an instruction uses them."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from nkisim.dtypes import DType
from nkisim.errors import OutOfBoundsError
from nkisim.tensor import NkiTensor
from nkisim.views import View


class OutsideTensor(NkiTensor):
    """A view made by `ap` that leaves its storage. Kernels make such views for tiles that they then leave out.

    Attributes:
        fault: what is wrong with it.
    """

    __slots__ = ("fault",)

    fault: str

    def _refuse(self) -> NoReturn:
        raise OutOfBoundsError(self.fault)

    def _located(self) -> NoReturn:
        self._refuse()

    def array(self) -> np.ndarray:
        """Refused: there are no such elements."""
        self._refuse()

    def _viewed(self, view: View, how: str, given: Any, dtype: DType | None = None) -> NkiTensor:
        return outside(self, view, self.dtype if dtype is None else dtype, self.fault, (self, how, given))

    def __repr__(self) -> str:
        return f"<{self._title()}: {self.fault}>"


def outside(base: NkiTensor, view: View, dtype: DType, fault: str, made: Any) -> NkiTensor:
    """A view of `base` that no instruction can use, which says why."""
    new: OutsideTensor = object.__new__(OutsideTensor)
    new.shape, new.strides, new.offset = view
    new.dtype, new.buffer, new.storage = dtype, base.buffer, base.storage
    new.fault, new.made = fault, made
    return new
