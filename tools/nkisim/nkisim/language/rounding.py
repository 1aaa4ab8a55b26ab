"""Whole numbers near a tile's elements.

No engine rounds other than in a cast to integers, which goes to the nearest one: the functions correct that by
comparing. Elements from 2**23 on are whole already and are kept; so are infinities and NaN.
"""

from __future__ import annotations

from typing import Any

from nkisim.dtypes import float32, int32, uint8
from nkisim.isa import copying, elementwise, selection
from nkisim.language import activations, compose, operators
from nkisim.tensor import NkiTensor

_ALL_WHOLE = float(1 << 23)


def floor(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The largest whole number up to `x`."""
    x = compose.tile("nl.floor", "x", x)
    near = nearest(x)
    above = operators.greater(near, x, float32)
    return _or_kept(x, operators.subtract(near, above), dtype)


def ceil(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The smallest whole number from `x` on."""
    x = compose.tile("nl.ceil", "x", x)
    near = nearest(x)
    below = operators.less(near, x, float32)
    return _or_kept(x, operators.add(near, below), dtype)


def trunc(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The whole number next to `x` towards zero."""
    x = compose.tile("nl.trunc", "x", x)
    magnitude = activations.abs(x, float32)
    near = nearest(magnitude)
    whole = operators.subtract(near, operators.greater(near, magnitude, float32))
    return _or_kept(x, operators.multiply(whole, activations.sign(x, float32)), dtype)


def nearest(x: NkiTensor) -> NkiTensor:
    """The nearest whole number, ties to even, in fp32; right up to 2**31."""
    integers = compose.new(x.shape, int32)
    copying.tensor_copy(integers, x)
    return compose.cast(integers, float32)


def _or_kept(x: NkiTensor, whole: NkiTensor, dtype: Any) -> NkiTensor:
    """`whole` where `x` is small enough to have a fraction, else `x`."""
    result = compose.new(x.shape, float32)
    copying.tensor_copy(result, x)
    small = compose.new(x.shape, uint8)
    elementwise.tensor_scalar(small, x, activations.abs, None, op1=operators.less, operand1=_ALL_WHOLE)
    selection.tensor_copy_predicated(result, whole, small)
    return compose.cast(result, compose.result_dtype(dtype, x))
