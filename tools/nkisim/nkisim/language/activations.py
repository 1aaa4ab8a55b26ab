"""Functions of one tile: called, they make a tile; `nki.isa` takes them as `op`.

`dtype` is the result's type, by default that of `x`. Most are one activation of the Scalar Engine; the others say
what they are made of.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim.dtypes import DType
from nkisim.enums import engine
from nkisim.errors import DtypeError
from nkisim.isa import elementwise, scalar_engine
from nkisim.language import compose, operators
from nkisim.tensor import NkiTensor


def _activation(op: Any, x: Any, dtype: Any) -> NkiTensor:
    x = compose.tile(f"nl.{op.__name__}", "x", x)
    result = compose.new(x.shape, compose.result_dtype(dtype, x))
    scalar_engine.activation(result, op, x)
    return result


def exp(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """`e ** x`."""
    return _activation(exp, x, dtype)


def log(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Natural logarithm."""
    return _activation(log, x, dtype)


def sqrt(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Square root."""
    return _activation(sqrt, x, dtype)


def square(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """`x * x`."""
    return _activation(square, x, dtype)


def tanh(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Hyperbolic tangent."""
    return _activation(tanh, x, dtype)


def sigmoid(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """`1 / (1 + exp(-x))`."""
    return _activation(sigmoid, x, dtype)


def relu(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The larger of `x` and 0."""
    return _activation(relu, x, dtype)


def gelu(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """`x` times the normal distribution's probability up to `x`."""
    return _activation(gelu, x, dtype)


def gelu_dx(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Derivative of `gelu`."""
    return _activation(gelu_dx, x, dtype)


def gelu_apprx_sigmoid(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """`gelu` by a sigmoid."""
    return _activation(gelu_apprx_sigmoid, x, dtype)


def gelu_apprx_sigmoid_dx(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Derivative of `gelu_apprx_sigmoid`."""
    return _activation(gelu_apprx_sigmoid_dx, x, dtype)


def gelu_apprx_tanh(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """`gelu` by a hyperbolic tangent."""
    return _activation(gelu_apprx_tanh, x, dtype)


def silu(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """`x * sigmoid(x)`."""
    return _activation(silu, x, dtype)


def silu_dx(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Derivative of `silu`."""
    return _activation(silu_dx, x, dtype)


def softplus(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """`log(1 + exp(x))`."""
    return _activation(softplus, x, dtype)


def mish(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """`x * tanh(softplus(x))`."""
    return _activation(mish, x, dtype)


def erf(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The error function."""
    return _activation(erf, x, dtype)


def erf_dx(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Derivative of `erf`."""
    return _activation(erf_dx, x, dtype)


def sign(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """-1, 0 or 1."""
    return _activation(sign, x, dtype)


def abs(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The magnitude."""
    return _activation(abs, x, dtype)


def negative(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """`-x`, as a product with -1."""
    return operators.multiply(compose.tile("nl.negative", "x", x), -1.0, dtype)


def reciprocal(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """`1 / x`, by the Vector Engine, which is more exact than the Scalar Engine."""
    x = compose.tile("nl.reciprocal", "x", x)
    result = compose.new(x.shape, compose.result_dtype(dtype, x))
    elementwise.reciprocal(result, x)
    return result


def rsqrt(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """`1 / sqrt(x)`, by the GpSimd Engine, which is more exact than the Scalar Engine and cannot reach PSUM."""
    x = compose.tile("nl.rsqrt", "x", x)
    result = compose.new(x.shape, compose.result_dtype(dtype, x))
    elementwise.tensor_scalar(result, x, rsqrt, 0.0, engine=engine.gpsimd)
    return result


def invert(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Every bit of an integer flipped, as an exclusive or with ones."""
    x = compose.tile("nl.invert", "x", x)
    return operators.bitwise_xor(x, _all_ones("nl.invert", x.dtype), dtype)


def _all_ones(call: str, dtype: DType) -> int:
    if dtype.kind != "integer":
        raise DtypeError(f"{call}: x is {dtype}; accepted: integer types")
    info = np.iinfo(dtype.storage)
    return -1 if info.min < 0 else int(info.max)


def logical_not(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """1 where `x` is 0, and 0 where it is 1, as an exclusive or with 1: of the bits of integers, else logical."""
    x = compose.tile("nl.logical_not", "x", x)
    flip = operators.bitwise_xor if x.dtype.kind == "integer" else operators.logical_xor
    return flip(x, 1, dtype)
