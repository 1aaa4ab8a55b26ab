"""The operators of the Vector, Scalar and GpSimd Engines on fp32 and integer arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Operator:
    """One operator.

    Attributes:
        name: as in `nki.language`.
        kind: "arithmetic" (two operands, in fp32), "bitvec" (two operands, integers) or "unary".
        apply: the function; takes `out=` where it is a numpy ufunc.
        reduces: whether reductions may use it.
    """

    name: str
    kind: str
    apply: Callable[..., Any]
    reduces: bool = False

    @property
    def is_ufunc(self) -> bool:
        """Whether `apply` can write into a given array."""
        return isinstance(self.apply, np.ufunc)


def _flag(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda x, y: function(x, y).astype(np.float32)


def _abs_max(x: Array, y: Array) -> Array:
    return np.where(np.abs(x) > np.abs(y), x, y)


def _abs_min(x: Array, y: Array) -> Array:
    return np.where(np.abs(x) < np.abs(y), x, y)


def _logical(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda x, y: function(x != 0, y != 0).astype(np.float32)


def _rsqrt(x: Array) -> Array:
    return np.float32(1) / np.sqrt(x)


_ARITHMETIC: dict[str, tuple[Callable[..., Any], bool]] = {
    "add": (np.add, True),
    "subtract": (np.subtract, True),
    "multiply": (np.multiply, True),
    "divide": (np.divide, False),
    "maximum": (np.maximum, True),
    "minimum": (np.minimum, True),
    "power": (np.power, False),
    "abs_max": (_abs_max, False),
    "abs_min": (_abs_min, False),
    "equal": (_flag(np.equal), False),
    "not_equal": (_flag(np.not_equal), False),
    "greater": (_flag(np.greater), False),
    "greater_equal": (_flag(np.greater_equal), False),
    "less": (_flag(np.less), False),
    "less_equal": (_flag(np.less_equal), False),
    "logical_and": (_logical(np.logical_and), True),
    "logical_or": (_logical(np.logical_or), True),
    "logical_xor": (_logical(np.logical_xor), True),
}
_BITVEC: dict[str, tuple[Callable[..., Any], bool]] = {
    "bitwise_and": (np.bitwise_and, True),
    "bitwise_or": (np.bitwise_or, True),
    "bitwise_xor": (np.bitwise_xor, True),
    "left_shift": (np.left_shift, False),
    "right_shift": (np.right_shift, False),
}
_UNARY: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "square": np.square,
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "rsqrt": _rsqrt,
    "reciprocal": lambda x: np.float32(1) / x,
}

OPERATORS: dict[str, Operator] = (
    {n: Operator(n, "arithmetic", f, r) for n, (f, r) in _ARITHMETIC.items()}
    | {n: Operator(n, "bitvec", f, r) for n, (f, r) in _BITVEC.items()}
    | {n: Operator(n, "unary", f) for n, f in _UNARY.items()}
)
