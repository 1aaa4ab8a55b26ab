"""The operators of the Vector, Scalar and GpSimd Engines on fp32 and integer arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator of the documented table.

    Attributes:
        name: as in `nki.language`.
        kind: "arithmetic" (two operands, in fp32), "unary" (one), "bitvec" (two operands, bits of integers) or
            "bitvec_unary".
        apply: the function; takes `out=` where it is a numpy ufunc. Bits come as unsigned integers of one width.
        reduces: whether `tensor_reduce` may use it.
        identity: what a reduction with it starts from.
        needs_trn3: whether only trn3 has it.
    """

    name: str
    kind: str
    apply: Callable[..., Any]
    reduces: bool = False
    identity: float = 0.0
    needs_trn3: bool = False

    @property
    def __name__(self) -> str:
        """As a function of `nki.language` would say it, which operators stand in for as defaults."""
        return self.name

    @cached_property
    def is_ufunc(self) -> bool:
        """Whether `apply` can write into a given array."""
        return isinstance(self.apply, np.ufunc)

    @cached_property
    def is_bitvec(self) -> bool:
        """Whether it works on bits."""
        return self.kind.startswith("bitvec")

    @cached_property
    def is_unary(self) -> bool:
        """Whether it takes one operand."""
        return self.kind.endswith("unary")

    def __repr__(self) -> str:
        return f"nl.{self.name}"


def apply(op: Operator, *values: Any) -> Array:
    """The operator without numpy's warnings: overflow and invalid values are the hardware's inf and NaN."""
    with np.errstate(all="ignore"):
        result: Array = op.apply(*values)
    return result


def reduce_rows(op: Operator, values: Array) -> Array:
    """Reduces the last axis from left to right, as `(x0 <op> x1) <op> x2 ...`."""
    with np.errstate(all="ignore"):
        if op.is_ufunc:
            result: Array = op.apply.reduce(values, axis=-1)  # type: ignore[attr-defined]
            return result.astype(values.dtype, copy=False)
        if op.name in _LOGICAL:
            return _LOGICAL[op.name].reduce(values != 0, axis=-1).astype(np.float32)
        return _reduce_by_magnitude(op, values)


def _reduce_by_magnitude(op: Operator, values: Array) -> Array:
    """abs_max and abs_min: of equal magnitudes the last one stays, as the operator returns y for a tie."""
    backwards = np.abs(values[..., ::-1])
    place = np.argmax(backwards, axis=-1) if op.name == "abs_max" else np.argmin(backwards, axis=-1)
    chosen: Array = np.take_along_axis(values, values.shape[-1] - 1 - place[..., None], axis=-1)[..., 0]
    return chosen


def _flag(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda x, y: function(x, y).astype(np.float32)


def _abs_max(x: Array, y: Array) -> Array:
    return np.where(np.abs(x) > np.abs(y), x, y)


def _abs_min(x: Array, y: Array) -> Array:
    return np.where(np.abs(x) < np.abs(y), x, y)


def _logical(function: np.ufunc) -> Callable[[Array, Array], Array]:
    return lambda x, y: function(x != 0, y != 0).astype(np.float32)


_INF = float("inf")
_LOGICAL: dict[str, np.ufunc] = {
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}
_ALL = (
    Operator("add", "arithmetic", np.add, reduces=True),
    Operator("subtract", "arithmetic", np.subtract, reduces=True),
    Operator("multiply", "arithmetic", np.multiply, reduces=True, identity=1.0),
    Operator("maximum", "arithmetic", np.maximum, reduces=True, identity=-_INF),
    Operator("minimum", "arithmetic", np.minimum, reduces=True, identity=_INF),
    Operator("power", "arithmetic", np.power),
    Operator("abs_max", "arithmetic", _abs_max, needs_trn3=True),
    Operator("abs_min", "arithmetic", _abs_min, identity=_INF, needs_trn3=True),
    Operator("equal", "arithmetic", _flag(np.equal)),
    Operator("not_equal", "arithmetic", _flag(np.not_equal)),
    Operator("greater", "arithmetic", _flag(np.greater)),
    Operator("greater_equal", "arithmetic", _flag(np.greater_equal)),
    Operator("less", "arithmetic", _flag(np.less)),
    Operator("less_equal", "arithmetic", _flag(np.less_equal)),
    *(Operator(name, "arithmetic", _logical(function), reduces=True) for name, function in _LOGICAL.items()),
    Operator("bitwise_and", "bitvec", np.bitwise_and, reduces=True),
    Operator("bitwise_or", "bitvec", np.bitwise_or, reduces=True),
    Operator("bitwise_xor", "bitvec", np.bitwise_xor, reduces=True),
    Operator("left_shift", "bitvec", np.left_shift),
    Operator("right_shift", "bitvec", np.right_shift),
    Operator("invert", "bitvec_unary", np.invert),
    Operator("abs", "unary", np.abs),
    Operator("square", "unary", np.square),
    Operator("relu", "unary", lambda x: np.maximum(x, np.float32(0))),
    Operator("rsqrt", "unary", lambda x: np.float32(1) / np.sqrt(x)),
    Operator("reciprocal", "unary", lambda x: np.float32(1) / x),
)

OPERATORS: dict[str, Operator] = {operator.name: operator for operator in _ALL}
"""The table of operators. Shifts are logical: signed operands are shifted as bits, and vacated places become 0."""

COMPARISONS = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
"""Operators whose result is 1 or 0."""
