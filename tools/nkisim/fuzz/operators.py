"""Operators on fp64 numbers that fp32 holds, operands of instructions, and what several instructions share.

An operator gives its values, and where the value is not documented.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fuzz import formats
from fuzz.oracle import Fault, Operand
from fuzz.session import Session
from nkisim.dtypes import ALL, DType

Array = np.ndarray


FP32_ERROR = 2.0**-23


BY_NAME = {str(dtype): dtype for dtype in ALL}


UNINITIALIZED = Fault("UninitializedReadError")


def floats_beside(session: Session) -> tuple[DType, ...]:
    """Types of results: those of arguments, and tf32."""
    return (*session.dtypes, BY_NAME["tfloat32"])


def missing(*operands: Operand) -> bool:
    """Whether any of them has an element that nothing has written."""
    return any(operand.unwritten().any() for operand in operands)


def _ordered(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], tuple[Array, Array]]:
    return lambda x, y: (np.asarray(function(x, y), np.float64), np.isnan(x) | np.isnan(y))


def _plain(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], tuple[Array, Array]]:
    return lambda x, y: (function(x, y), np.zeros(np.broadcast(x, y).shape, np.bool_))


def _extreme(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], tuple[Array, Array]]:
    """Of +0 and -0 either may come out."""
    return lambda x, y: (function(x, y), np.isnan(x) | np.isnan(y) | ((x == 0) & (y == 0)))


def _by_size(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], tuple[Array, Array]]:
    return lambda x, y: (
        np.where(function(np.abs(x), np.abs(y)), x, y),
        np.isnan(x) | np.isnan(y) | ((np.abs(x) == np.abs(y)) & (x != y)) | ((x == 0) & (y == 0)),
    )


BINARY: dict[str, Callable[[Array, Array], tuple[Array, Array]]] = {
    "add": _plain(lambda x, y: x + y),
    "subtract": _plain(lambda x, y: x - y),
    "multiply": _plain(lambda x, y: x * y),
    "maximum": _extreme(lambda x, y: np.where(x > y, x, y)),
    "minimum": _extreme(lambda x, y: np.where(x < y, x, y)),
    "equal": _ordered(lambda x, y: x == y),
    "not_equal": _ordered(lambda x, y: x != y),
    "greater": _ordered(lambda x, y: x > y),
    "greater_equal": _ordered(lambda x, y: x >= y),
    "less": _ordered(lambda x, y: x < y),
    "less_equal": _ordered(lambda x, y: x <= y),
    "logical_and": _ordered(lambda x, y: (x != 0) & (y != 0)),
    "logical_or": _ordered(lambda x, y: (x != 0) | (y != 0)),
    "logical_xor": _ordered(lambda x, y: (x != 0) ^ (y != 0)),
    "abs_max": _by_size(lambda x, y: x > y),
    "abs_min": _by_size(lambda x, y: x < y),
}


_ONLY_TRN3 = ("abs_max", "abs_min")


UNARY: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "square": lambda x: x * x,
    "relu": lambda x: np.where(np.isnan(x), x, np.where(x > 0, x, 0.0)),
    "reciprocal": lambda x: 1.0 / x,
}


BITS: dict[str, Callable[[Array, Array], Array]] = {
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | y,
    "bitwise_xor": lambda x, y: x ^ y,
    "left_shift": lambda x, y: x << y,
    "right_shift": lambda x, y: x >> y,
}


FUNCTIONS: dict[str, Callable[[float], float]] = {
    "copy": lambda x: x,
    "square": lambda x: x * x,
    "relu": lambda x: x if x > 0 else 0.0,
    "abs": abs,
    "sign": lambda x: float((x > 0) - (x < 0)),
    "exp": lambda x: math.exp(x) if x < 700 else math.inf,
    "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)) if x > -700 else 0.0,
    "erf": math.erf,
    "softplus": lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x))),
}


def operators_of(session: Session) -> list[str]:
    """Names of the binary operators that the target has."""
    return [name for name in BINARY if session.target != "trn2" or name not in _ONLY_TRN3]


def applied(name: str, x: Array, y: Array) -> tuple[Array, Array]:
    """A binary operator's fp32 results, and where they are not documented."""
    with np.errstate(all="ignore"):
        values, free = BINARY[name](x, y)
        return formats.fp32(values), free


def scalar_operand(session: Session, partitions: int) -> tuple[Any, Callable[[], Array], list[Operand]]:
    """A number, or an fp32 tile (partitions, 1): its source, its values (partitions or 1, 1), and the tile if any."""
    if session.chance(2):
        tile = session.loaded(partitions, 1, BY_NAME["float32"])
        return tile, tile.rows, [tile]
    number = session.sample((0.0, 1.0, -1.0, 0.5, 2.0, -3.25, 1e-3, 0.1, 7, 300))
    return repr(number), lambda: formats.fp32(np.array([[float(number)]])), []


def drawn_stage(
    session: Session, index: int, partitions: int
) -> tuple[dict[str, Any], Callable[[Array], tuple[Array, Array]], list[Operand]]:
    """An operator with its operand: parameters, function of the values so far, tiles that it reads."""
    if session.chance(4):
        name = session.sample(UNARY)

        def single(x: Array) -> tuple[Array, Array]:
            with np.errstate(all="ignore"):
                return formats.fp32(UNARY[name](x)), np.zeros(x.shape, np.bool_)

        return {f"op{index}": f"nl.{name}", f"operand{index}": session.sample(("None", "0"))}, single, []
    name = session.sample(operators_of(session))
    shown, values, tiles = scalar_operand(session, partitions)
    reverse = session.chance(3)

    def pair(x: Array) -> tuple[Array, Array]:
        return applied(name, values(), x) if reverse else applied(name, x, values())

    return {f"op{index}": f"nl.{name}", f"operand{index}": shown, f"reverse{index}": repr(reverse)}, pair, tiles
