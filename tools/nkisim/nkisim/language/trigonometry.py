"""Angles.

The Scalar Engine's sine is right from -pi to pi, its inverse tangent from -pi/2 to pi/2, and neither reduces its
argument. The functions here do, with further instructions.
"""

from __future__ import annotations

import math
from typing import Any

from nkisim.dtypes import float32, uint8
from nkisim.isa import copying, elementwise, scalar_engine, selection
from nkisim.language import activations, compose, operators, rounding
from nkisim.tensor import NkiTensor

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


_HALF_TURN_PARTS = _parts(math.pi, 4)


def sin(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Sine of any angle in radians; beyond 2**16 half turns the reduction loses digits, as fp32 does."""
    return _sine("nl.sin", x, 0.0, dtype)


def cos(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Cosine of any angle in radians, as the sine of a quarter turn more."""
    return _sine("nl.cos", x, math.pi / 2, dtype)


def tan(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Tangent of any angle in radians, as sine over cosine."""
    x = compose.tile("nl.tan", "x", x)
    return operators.divide(sin(x, float32), cos(x, float32), compose.result_dtype(dtype, x))


def _sine(call: str, x: NkiTensor, phase: float, dtype: Any) -> NkiTensor:
    """`sin(x + phase)`, from the sine of what is left of x beyond whole half turns; odd ones change its sign."""
    x = compose.tile(call, "x", x)
    scaled = compose.new(x.shape, float32)
    elementwise.tensor_scalar(scaled, x, operators.multiply, 1 / math.pi, op1=operators.add, operand1=phase / math.pi)
    half_turns = rounding.nearest(scaled)
    angle = x
    for part in _HALF_TURN_PARTS:
        angle = _less_multiple(angle, half_turns, part)
    if phase:
        angle = operators.add(angle, phase, float32)
    sine = compose.new(x.shape, float32)
    scalar_engine.activation(sine, sin, angle)
    odd = _less_multiple(half_turns, rounding.nearest(operators.multiply(half_turns, 0.5)), 2.0)
    result = compose.new(x.shape, compose.result_dtype(dtype, x))
    elementwise.tensor_scalar(odd, odd, activations.abs, None, op1=operators.multiply, operand1=-2.0)
    elementwise.scalar_tensor_tensor(result, odd, operators.add, 1.0, operators.multiply, sine)
    return result


def _less_multiple(x: NkiTensor, count: NkiTensor, size: float) -> NkiTensor:
    """`x - count * size`."""
    rest = compose.new(x.shape, float32)
    elementwise.scalar_tensor_tensor(rest, count, operators.multiply, -size, operators.add, x)
    return rest


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
