"""The functions of the Scalar Engine, exact in fp32 rather than by the hardware's piecewise polynomials."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "copy": lambda x: x,
    "square": np.square,
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.float32(1) / np.sqrt(x),
    "reciprocal": lambda x: np.float32(1) / x,
    "tanh": np.tanh,
    "sigmoid": lambda x: np.float32(1) / (np.float32(1) + np.exp(-x)),
    "silu": lambda x: x / (np.float32(1) + np.exp(-x)),
    "sign": np.sign,
    "abs": np.abs,
}
