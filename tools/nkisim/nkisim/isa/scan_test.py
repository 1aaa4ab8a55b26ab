"""tensor_tensor_scan by the documented loop, and its constraints in pairs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim.errors import ArgumentError, ShapeError, WrongBufferError
from nkisim.isa.testing import Given, Tile, values

RNG = np.random.default_rng(23)
BF16 = ml_dtypes.bfloat16


def normal(*shape, dtype=np.float32):
    return RNG.normal(0, 1, shape).astype(dtype)


@pytest.mark.parametrize(
    ("op0", "op1"), [(nl.multiply, nl.add), (nl.add, nl.maximum), (nl.subtract, nl.subtract), (nl.maximum, nl.add)]
)
@pytest.mark.parametrize("reverse", [(False, False), (True, True)])
@pytest.mark.parametrize("column", [False, True])
def test_scan_by_the_documented_loop(op0, op1, reverse, column):
    x, y, initial = normal(40, 3, 5, dtype=BF16), normal(40, 15), normal(40, 1, dtype=BF16)
    result = values(
        lambda o, a, b, i: nisa.tensor_tensor_scan(o, a, b, i if column else 0.5, op0, op1, *reverse),
        [Given(x, nl.psum), y, initial],
        Tile((40, 15)),
    )
    first, second = (getattr(np, op.__name__) for op in (op0, op1))
    state = initial[:, 0].astype(np.float32) if column else np.full(40, 0.5, np.float32)
    for i in range(15):
        left, right = x.reshape(40, 15)[:, i].astype(np.float32), y[:, i]
        middle = first(state, left) if reverse[0] else first(left, state)
        state = second(right, middle) if reverse[1] else second(middle, right)
        np.testing.assert_array_equal(result[:, i], state)


def test_cumulative_sum_rounds_to_the_output_only():
    x = normal(128, 200)
    result = values(
        lambda o, a: nisa.tensor_tensor_scan(o, a, a, 0.0, nl.multiply, nl.add),
        [np.zeros_like(x)],
        Tile((128, 200), nl.bfloat16),
    )
    assert (result == 0).all()
    ones = np.ones_like(x)
    result = values(
        lambda o, a, b: nisa.tensor_tensor_scan(o, a, b, 0.0, nl.multiply, nl.add),
        [ones, x],
        Tile((128, 200), nl.bfloat16),
    )
    np.testing.assert_array_equal(result, np.cumsum(x, axis=1, dtype=np.float32).astype(BF16))


def test_scan_constraints():
    x = normal(8, 4)
    cases: list[tuple[Any, ...]] = [
        (
            WrongBufferError,
            "data0 and data1 both lie in psum",
            [Given(x, nl.psum), Given(x, nl.psum)],
            Tile((8, 4)),
            {},
        ),
        (ShapeError, "data1", [x, normal(8, 3)], Tile((8, 4)), {}),
        (ShapeError, "dst", [x, x], Tile((8, 5)), {}),
        (ShapeError, "dst has 7 partitions", [x, x], Tile((7, 4)), {}),
        (ArgumentError, "op0 is nl.bitwise_and", [x, x], Tile((8, 4)), {"op0": nl.bitwise_and}),
        (ArgumentError, "op1 is nl.abs", [x, x], Tile((8, 4)), {"op1": nl.abs}),
        (ArgumentError, "initial is None", [x, x], Tile((8, 4)), {"initial": None}),
    ]
    for error, message, inputs, tile, arguments in cases:
        chosen = {"initial": 0.0, "op0": nl.add, "op1": nl.add} | arguments
        with pytest.raises(error, match=message):
            values(lambda o, a, b, c=chosen: nisa.tensor_tensor_scan(o, a, b, **c), inputs, tile)
    with pytest.raises(ShapeError, match=r"initial .* one element per partition"):
        values(lambda o, a: nisa.tensor_tensor_scan(o, a, a, a, nl.add, nl.add), [x], Tile((8, 4)))
    values(lambda o, a, b: nisa.tensor_tensor_scan(o, a, b, 0, nl.add, nl.add), [x, Given(x, nl.psum)], Tile((8, 4)))
