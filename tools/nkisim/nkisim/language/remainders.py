"""Remainders of divisions, in fp32.

No engine divides: the quotient comes from a reciprocal, is rounded down, and is put right where it is one off. The
result is exact to a rounding of `x`; quotients from 2**24 on have no remainder that fp32 could tell.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim.dtypes import float32
from nkisim.errors import ArgumentError
from nkisim.isa import operands, rules
from nkisim.language import activations, compose, operators, rounding
from nkisim.tensor import NkiTensor


def mod(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """Remainder of `x / y` with the sign of `y`, as Python's `%`."""
    quotient = rounding.floor(operators.divide(x, y, float32))
    rest = operators.subtract(x, operators.multiply(quotient, y, float32), float32)
    beyond = operators.greater_equal(_magnitude(rest), _magnitude(y), float32)
    rest = operators.subtract(rest, operators.multiply(beyond, y, float32))
    opposite = operators.less(operators.multiply(rest, _sign(y), float32), 0.0, float32)
    tiles = [value for value in (x, y) if isinstance(value, NkiTensor)]
    wanted = compose.result_dtype(dtype, *tiles)
    return operators.add(rest, operators.multiply(opposite, y, float32), wanted)


def fmod(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """Remainder of `x / y` with the sign of `x`, as C's `fmod`."""
    rest = mod(_magnitude(x), _magnitude(y), float32)
    tiles = [value for value in (x, y) if isinstance(value, NkiTensor)]
    return operators.multiply(rest, _sign(x), compose.result_dtype(dtype, *tiles))


def _magnitude(value: Any) -> Any:
    return activations.abs(value, float32) if isinstance(value, NkiTensor) else np.abs(_number(value))


def _sign(value: Any) -> Any:
    return activations.sign(value, float32) if isinstance(value, NkiTensor) else np.sign(_number(value))


def _number(value: Any) -> Any:
    if not rules.is_number(value):
        raise ArgumentError(f"nl.mod or nl.fmod: {value!r}; accepted: tiles and numbers")
    return float(operands.constant(value))
