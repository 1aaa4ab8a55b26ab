"""The functions of the Scalar Engine, exact in fp32 rather than by the hardware's piecewise polynomials.

Outside its valid range a function still gives its exact value, which the hardware does not promise, except `sin`,
of which the documentation tells what the hardware gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

Array = np.ndarray
_F = np.float32
_ONE, _HALF, _ZERO = _F(1), _F(0.5), _F(0)
_SIGMOID_GELU = _F(1.702)
_PI = _F(math.pi)


class ValidRange(NamedTuple):
    """Inputs for which the hardware's approximation holds; by magnitude where `both_signs`."""

    low: float
    high: float
    text: str
    both_signs: bool = False

    def first_outside(self, values: Array) -> float | None:
        """An input outside the range, if there is one; NaN counts as inside."""
        sizes = np.abs(values) if self.both_signs else values
        outside = (sizes < _F(self.low)) | (sizes > _F(self.high))
        return float(values[outside][0]) if outside.any() else None


RANGES = {
    "log": ValidRange(2.0**-64, 2.0**64, "[2^-64, 2^64]"),
    "sin": ValidRange(-math.pi, math.pi, "[-pi, pi]"),
    "arctan": ValidRange(-math.pi / 2, math.pi / 2, "[-pi/2, pi/2]"),
    "sqrt": ValidRange(2.0**-116, 2.0**118, "[2^-116, 2^118]"),
    "rsqrt": ValidRange(2.0**-87, 2.0**97, "[2^-87, 2^97]"),
    "reciprocal": ValidRange(2.0**-42, 2.0**42, "+-[2^-42, 2^42]", both_signs=True),
}


def _by_torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Array], Array]:
    return lambda x: function(torch.from_numpy(np.array(x, np.float32))).numpy()


_erf, _erfc = _by_torch(torch.erf), _by_torch(torch.erfc)


def _gated(x: Array, gate: Array) -> Array:
    """`x * gate`, 0 where the gate is closed even if x is infinite."""
    return np.where(gate == 0, _ZERO, x * gate)


def _sigmoid(x: Array) -> Array:
    return _ONE / (_ONE + np.exp(-x))


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, _ZERO)


def _normal_cdf(x: Array) -> Array:
    return _HALF * _erfc(x * _F(-math.sqrt(0.5)))


def _normal_density(x: Array) -> Array:
    return _F(1 / math.sqrt(2 * math.pi)) * np.exp(_F(-0.5) * x * x)


def _gelu_tanh_gate(x: Array) -> Array:
    """`(1 + tanh(u)) / 2`, as a sigmoid, which keeps its precision where tanh comes near -1."""
    return _sigmoid(_F(2 * math.sqrt(2 / math.pi)) * (x + _F(0.044715) * x * x * x))


def _silu_dx(x: Array) -> Array:
    gate = _sigmoid(x)
    return gate + _gated(x, gate * (_ONE - gate))


def _gelu_sigmoid_dx(x: Array) -> Array:
    gate = _sigmoid(_SIGMOID_GELU * x)
    return gate + _gated(_SIGMOID_GELU * x, gate * (_ONE - gate))


def _sin(x: Array) -> Array:
    """Outside [-pi, pi] the last piece's cubic goes on: -d + d^3 / 6 with d counted from the nearer end."""
    distance = x - np.copysign(_PI, x)
    return np.where(np.abs(x) <= _PI, np.sin(x), distance * distance * distance / _F(6) - distance)


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "copy": lambda x: x,
    "square": np.square,
    "sigmoid": _sigmoid,
    "relu": lambda x: np.maximum(x, _ZERO),
    "gelu": lambda x: _gated(x, _normal_cdf(x)),
    "gelu_dx": lambda x: _normal_cdf(x) + _gated(x, _normal_density(x)),
    "gelu_apprx_tanh": lambda x: _gated(x, _gelu_tanh_gate(x)),
    "gelu_apprx_sigmoid": lambda x: _gated(x, _sigmoid(_SIGMOID_GELU * x)),
    "gelu_apprx_sigmoid_dx": _gelu_sigmoid_dx,
    "silu": lambda x: _gated(x, _sigmoid(x)),
    "silu_dx": _silu_dx,
    "tanh": np.tanh,
    "softplus": _softplus,
    "mish": lambda x: _gated(x, np.tanh(_softplus(x))),
    "erf": _erf,
    "erf_dx": lambda x: _F(2 / math.sqrt(math.pi)) * np.exp(-x * x),
    "exp": np.exp,
    "log": np.log,
    "sin": _sin,
    "arctan": np.arctan,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: _ONE / np.sqrt(x),
    "reciprocal": lambda x: _ONE / x,
    "sign": np.sign,
    "abs": np.abs,
}
"""The documented table but for `prelu`, which takes a slope."""


def prelu(x: Array, slope: Array | np.float32) -> Array:
    """`x` where it is positive, else `slope * x`."""
    return np.where(x > 0, x, slope * x)
