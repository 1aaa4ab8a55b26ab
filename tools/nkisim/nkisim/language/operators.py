"""Binary operators of `nki.language`: called, they make a tile; `nki.isa` takes them as `op`.

`x` and `y` are tiles, or a tile and a number; dimensions of size 1 stretch. `dtype` is the result's type; without
it, the type of the inputs that holds most.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim.dtypes import float32
from nkisim.isa import elementwise, operands, rules
from nkisim.language import compose, flags
from nkisim.tensor import NkiTensor


def add(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """`x + y`."""
    return compose.binary(add, x, y, dtype)


def subtract(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """`x - y`."""
    return compose.binary(subtract, x, y, dtype)


def multiply(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """`x * y`."""
    return compose.binary(multiply, x, y, dtype)


def maximum(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """The larger of `x` and `y`."""
    return compose.binary(maximum, x, y, dtype)


def minimum(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """The smaller of `x` and `y`."""
    return compose.binary(minimum, x, y, dtype)


def abs_max(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """`x` where its magnitude is larger, else `y` (trn3)."""
    return compose.binary(abs_max, x, y, dtype)


def abs_min(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """`x` where its magnitude is smaller, else `y` (trn3)."""
    return compose.binary(abs_min, x, y, dtype)


def power(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """`x ** y`."""
    return compose.binary(power, x, y, dtype)


def equal(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """1 where `x == y`, else 0. `assert nl.equal(x, y)` holds where all are 1."""
    return flags.testable(compose.binary(equal, x, y, dtype))


def not_equal(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """1 where `x != y`, else 0."""
    return flags.testable(compose.binary(not_equal, x, y, dtype))


def less(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """1 where `x < y`, else 0."""
    return flags.testable(compose.binary(less, x, y, dtype))


def less_equal(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """1 where `x <= y`, else 0."""
    return flags.testable(compose.binary(less_equal, x, y, dtype))


def greater(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """1 where `x > y`, else 0."""
    return flags.testable(compose.binary(greater, x, y, dtype))


def greater_equal(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """1 where `x >= y`, else 0."""
    return flags.testable(compose.binary(greater_equal, x, y, dtype))


def logical_and(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """1 where both are nonzero, else 0."""
    return compose.binary(logical_and, x, y, dtype)


def logical_or(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """1 where one is nonzero, else 0."""
    return compose.binary(logical_or, x, y, dtype)


def logical_xor(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """1 where exactly one is nonzero, else 0."""
    return compose.binary(logical_xor, x, y, dtype)


def bitwise_and(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """`x & y` of integers."""
    return compose.binary(bitwise_and, x, y, dtype)


def bitwise_or(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """`x | y` of integers."""
    return compose.binary(bitwise_or, x, y, dtype)


def bitwise_xor(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """`x ^ y` of integers."""
    return compose.binary(bitwise_xor, x, y, dtype)


def left_shift(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """`x << y` of integers."""
    return compose.binary(left_shift, x, y, dtype)


def right_shift(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """`x >> y` of integers, without regard to the sign."""
    return compose.binary(right_shift, x, y, dtype)


def divide(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """`x / y`, as `x` times the reciprocal of `y`: no engine divides."""
    if not isinstance(y, NkiTensor):
        return compose.binary(multiply, x, _inverse(y), dtype)
    y = compose.tile("nl.divide", "y", y)
    tiles = [t for t in (x, y) if isinstance(t, NkiTensor)]
    inverse = compose.new(y.shape, float32)
    elementwise.reciprocal(inverse, y)
    return compose.binary(multiply, x, inverse, compose.result_dtype(dtype, *tiles))


def _inverse(number: Any) -> Any:
    if not rules.is_number(number):
        return number
    with np.errstate(divide="ignore"):
        return np.float32(1) / operands.constant(number)
