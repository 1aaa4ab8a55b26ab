"""Reductions along the free dimensions, and what is made of them.

`axis` is the last dimension or a run of last dimensions, never the partition dimension. `dtype` is the result's
type, by default that of `x`; without `keepdims` the reduced dimensions go, save that a tile keeps two.
"""

from __future__ import annotations

import operator
from math import prod as product
from typing import Any

from nkisim.dtypes import float32
from nkisim.errors import ArgumentError
from nkisim.isa import elementwise, reduction, rules
from nkisim.language import activations, compose, operators
from nkisim.tensor import NkiTensor


def sum(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Sum."""
    return _reduced("nl.sum", operators.add, x, axis, dtype, keepdims)


def prod(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Product."""
    return _reduced("nl.prod", operators.multiply, x, axis, dtype, keepdims)


def max(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Largest element."""
    return _reduced("nl.max", operators.maximum, x, axis, dtype, keepdims)


def min(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Smallest element."""
    return _reduced("nl.min", operators.minimum, x, axis, dtype, keepdims)


def all(x: NkiTensor, axis: Any, dtype: Any = None) -> NkiTensor:
    """1 where every element is nonzero, else 0."""
    return _reduced("nl.all", operators.logical_and, x, axis, dtype, False)


def mean(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Arithmetic mean, from an fp32 sum."""
    x, axes = _axes("nl.mean", x, axis)
    total = _reduced("nl.mean", operators.add, x, axes, float32, keepdims)
    return operators.multiply(total, 1 / _count(x, axes), compose.result_dtype(dtype, x))


def var(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Variance (of a population), from the squares of the differences to the mean.

    The reduced dimensions stay with size 1 whatever `keepdims` says, as documented.
    """
    x, axes = _axes("nl.var", x, axis)
    centred = operators.subtract(x, mean(x, axes, float32, keepdims=True), float32)
    squares = activations.square(centred)
    total = _reduced("nl.var", operators.add, squares, axes, float32, True)
    return operators.multiply(total, 1 / _count(x, axes), compose.result_dtype(dtype, x))


def softmax(x: NkiTensor, axis: Any = -1, dtype: Any = None) -> NkiTensor:
    """`exp(x - max(x))` over its sum."""
    x, axes = _axes("nl.softmax", x, axis)
    shifted = operators.subtract(x, max(x, axes, float32, keepdims=True), float32)
    powers = activations.exp(shifted)
    total = sum(powers, axes, float32, keepdims=True)
    return operators.multiply(powers, activations.reciprocal(total), compose.result_dtype(dtype, x))


def rms_norm(
    x: NkiTensor,
    w: NkiTensor,
    axis: Any,
    n: int,
    epsilon: float = 1e-06,
    dtype: Any = None,
    compute_dtype: Any = None,
) -> NkiTensor:
    """`x / sqrt(sum(x * x) / n + epsilon) * w`.

    Args:
        x: a tile.
        w: weights of the same shape, or with dimensions of size 1 that stretch.
        axis: what is summed over.
        n: number of elements that the mean counts.
        epsilon: added to the mean.
        dtype: of the result, by default that of `x`.
        compute_dtype: of everything in between, by default fp32.
    """
    x, axes = _axes("nl.rms_norm", x, axis)
    w = compose.tile("nl.rms_norm", "w", w)
    if not isinstance(n, int) or n < 1:
        raise ArgumentError(f"nl.rms_norm: n {n!r}; accepted: an integer from 1 on")
    if not rules.is_number(epsilon):
        raise ArgumentError(f"nl.rms_norm: epsilon {epsilon!r}; accepted: a number")
    between = compose.result_dtype(compute_dtype or float32, x)
    squares = activations.square(x, between)
    total = sum(squares, axes, between, keepdims=True)
    shifted = compose.new(total.shape, between)
    elementwise.tensor_scalar(shifted, total, operators.multiply, 1 / n, op1=operators.add, operand1=epsilon)
    scaled = operators.multiply(x, activations.rsqrt(shifted, between), between)
    return operators.multiply(scaled, w, compose.result_dtype(dtype, x))


def _axes(call: str, x: Any, axis: Any) -> tuple[NkiTensor, tuple[int, ...]]:
    x = compose.tile(call, "x", x)
    given = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    rank = len(x.shape)
    try:
        wanted = [operator.index(a) for a in given]
        axes = tuple(sorted(a % rank if -rank <= a < rank else a for a in wanted))
    except TypeError:
        raise ArgumentError(f"{call}: axis {axis!r}; accepted: an integer or several") from None
    if not axes or 0 in axes or axes != tuple(range(rank - len(axes), rank)):
        raise ArgumentError(
            f"{call}: axis {axis!r} of a tile with {rank} dimensions; accepted: the last dimension or a run of last "
            f"dimensions, without the partition dimension 0"
        )
    return x, axes


def _count(x: NkiTensor, axes: tuple[int, ...]) -> int:
    return product(x.shape[a] for a in axes)


def _reduced(call: str, op: Any, x: Any, axis: Any, dtype: Any, keepdims: bool) -> NkiTensor:
    x, axes = _axes(call, x, axis)
    kept = x.shape[: axes[0]]
    result = compose.new((*kept, *[1] * len(axes)), compose.result_dtype(dtype, x))
    reduction.tensor_reduce(result, op, x, axes, keepdims=True)
    return result if keepdims else result.reshape(kept if len(kept) > 1 else (*kept, 1))
