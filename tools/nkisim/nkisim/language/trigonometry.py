"""Angles.

The Scalar Engine's sine is right from -pi to pi, its inverse tangent from -pi/2 to pi/2, and neither reduces its
argument. The functions here do, with further instructions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nkisim.dtypes import float32, uint8
from nkisim.isa import copying, elementwise, scalar_engine, selection
from nkisim.language import activations, compose, operators, rounding
from nkisim.tensor import NkiTensor

_TURN = 2 * math.pi
_PI = float(np.nextafter(np.float32(math.pi), np.float32(0)))
_PART_BITS = 8


def _parts(value: float, count: int) -> tuple[float, ...]:
    """`value` as a sum of numbers of few bits, whose products with whole numbers below 2**16 are exact in fp32."""
    parts = []
    for _ in range(count):
        exponent = math.frexp(value)[1] - _PART_BITS
        part = math.ldexp(math.trunc(math.ldexp(value, -exponent)), exponent)
        parts.append(part)
        value -= part
    return tuple(parts)


_TURN_PARTS = _parts(_TURN, 4)


def sin(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Sine of any angle in radians; beyond 2**16 turns the reduction loses digits, as fp32 does."""
    return _sine("nl.sin", sin, x, 0.0, dtype)


def cos(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Cosine of any angle in radians, as the sine of a quarter turn more."""
    return _sine("nl.cos", sin, x, math.pi / 2, dtype)


def tan(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Tangent of any angle in radians, as sine over cosine."""
    x = compose.tile("nl.tan", "x", x)
    return operators.divide(sin(x, float32), cos(x, float32), compose.result_dtype(dtype, x))


def _sine(call: str, op: Any, x: NkiTensor, phase: float, dtype: Any) -> NkiTensor:
    x = compose.tile(call, "x", x)
    turns = compose.new(x.shape, float32)
    elementwise.tensor_scalar(turns, x, operators.multiply, 1 / _TURN, op1=operators.add, operand1=phase / _TURN)
    turns = rounding.nearest(turns)
    angle = x
    for part in _TURN_PARTS:
        rest = compose.new(x.shape, float32)
        elementwise.scalar_tensor_tensor(rest, turns, operators.multiply, -part, operators.add, angle)
        angle = rest
    if phase:
        angle = operators.add(angle, phase)
    within = compose.new(x.shape, float32)
    elementwise.tensor_scalar(within, angle, operators.minimum, _PI, op1=operators.maximum, operand1=-_PI)
    result = compose.new(x.shape, compose.result_dtype(dtype, x))
    scalar_engine.activation(result, op, within)
    return result


def arctan(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Inverse tangent; from magnitude 1 on as a right angle less the one of the reciprocal."""
    x = compose.tile("nl.arctan", "x", x)
    wide = compose.new(x.shape, uint8)
    elementwise.tensor_scalar(wide, x, activations.abs, None, op1=operators.greater, operand1=1.0)
    inverse = compose.new(x.shape, float32)
    elementwise.reciprocal(inverse, x)
    argument = compose.new(x.shape, float32)
    copying.tensor_copy(argument, x)
    selection.tensor_copy_predicated(argument, inverse, wide)
    angle = compose.new(x.shape, float32)
    scalar_engine.activation(angle, arctan, argument)
    right = operators.multiply(activations.sign(x, float32), math.pi / 2)
    selection.tensor_copy_predicated(angle, operators.subtract(right, angle), wide)
    return compose.cast(angle, compose.result_dtype(dtype, x))
