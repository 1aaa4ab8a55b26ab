"""The max8 family: values by plain Python, the documented examples, and each documented constraint in a pair."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim.errors import ArgumentError, DtypeError, ShapeError
from nkisim.isa.testing import Given, Tile, values

RNG = np.random.default_rng(31)
BF16 = ml_dtypes.bfloat16


@pytest.mark.parametrize("shape", [(70, 8), (128, 3, 9), (5, 16384)])
@pytest.mark.parametrize("dtype", [nl.float32, nl.bfloat16])
def test_max8(shape, dtype):
    x = RNG.normal(size=shape).astype(BF16)
    result = values(lambda o, a: nisa.max8(o, a), [x], Tile((shape[0], 8), dtype))
    wanted = np.sort(x.astype(np.float32).reshape(shape[0], -1), axis=1)[:, :-9:-1]
    np.testing.assert_array_equal(result, wanted)


def find(data, vals):
    """The k-th of several equal values takes the k-th place it occurs at."""
    taken, places = [], []
    for value in vals:
        free = [i for i, v in enumerate(data) if v == value and i not in taken]
        places.append(free[0] if free else -1)
        taken += free[:1]
    return places


@pytest.mark.parametrize("dtype", [nl.uint16, nl.uint32])
def test_find_index8(dtype):
    x = RNG.integers(0, 12, (50, 4, 10)).astype(np.float32)
    vals = RNG.integers(0, 13, (50, 2, 4)).astype(BF16)
    result = values(lambda o, a, v: nisa.nc_find_index8(o, a, v), [Given(x, nl.psum), vals], Tile((50, 8), dtype))
    wanted = [
        find(row, v)
        for row, v in zip(x.reshape(50, 40).tolist(), vals.astype(np.float32).reshape(50, 8).tolist(), strict=True)
    ]
    np.testing.assert_array_equal(result, np.array(wanted).astype(dtype.storage))
    assert (result == np.iinfo(dtype.storage).max).any()


def test_match_replace8_on_the_documented_example():
    x = np.array([[1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    vals = np.array([[3, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    result, index = values(
        lambda o, i, a, v: nisa.nc_match_replace8(o, a, v, -1.0, i), [x, vals], Tile((1, 11)), Tile((1, 8), nl.uint32)
    )
    np.testing.assert_array_equal(result, [[1, 2, -1, 4, *[-1] * 7]])
    np.testing.assert_array_equal(index, [[2, 10, 9, 8, 7, 6, 5, 4]])


def test_match_replace8_in_place_and_without_indices():
    x = RNG.integers(0, 6, (60, 20)).astype(BF16)
    vals = RNG.integers(0, 7, (60, 8)).astype(np.float32)

    def body(o, a, v):
        nisa.nc_match_replace8(a, a, v, 99.0)
        nisa.tensor_copy(o, a)

    result = values(body, [x, vals], Tile((60, 20), nl.bfloat16)).astype(np.float32)
    for row, v, got in zip(x.astype(np.float32).tolist(), vals.tolist(), result, strict=True):
        for place in find(row, v[::-1]):
            if place >= 0:
                row[place] = 99.0
        np.testing.assert_array_equal(got, row)


def test_top_16_by_repetition():
    x = RNG.permutation(300).reshape(3, 100).astype(np.float32)

    def body(o, index, a):
        for half in range(2):
            part = slice(8 * half, 8 * half + 8)
            nisa.max8(o[:, part], a)
            nisa.nc_match_replace8(a, a, o[:, part], -1.0, index[:, part])

    top, index = values(body, [x], Tile((3, 16)), Tile((3, 16), nl.uint16))
    order = np.argsort(-x, axis=1)[:, :16]
    np.testing.assert_array_equal(index, order)
    np.testing.assert_array_equal(top, np.take_along_axis(x, order, axis=1))


def test_constraints():
    def data(*shape):
        return np.ones(shape, np.float32)

    index = Tile((4, 8), nl.uint32)
    no_number: Any = None
    find8, replace8 = nisa.nc_find_index8, lambda o, a, v: nisa.nc_match_replace8(o, a, v, 0.0)
    cases: list[tuple[Any, ...]] = [
        (ShapeError, "7 elements per partition", lambda o, a: nisa.max8(o, a), [data(4, 7)], Tile((4, 8))),
        (ShapeError, "16385 elements", lambda o, a: nisa.max8(o, a), [data(4, 16385)], Tile((4, 8))),
        (ShapeError, "4 dimensions", lambda o, a: nisa.max8(o, a), [data(4, 2, 2, 2)], Tile((4, 8))),
        (ShapeError, r"dst \[4, 9\]; accepted: \(4, 8\)", lambda o, a: nisa.max8(o, a), [data(4, 9)], Tile((4, 9))),
        (ShapeError, r"accepted: \(4, 8\)", lambda o, a: nisa.max8(o, a), [data(4, 9)], Tile((4, 2, 4))),
        (ShapeError, r"accepted: \(4, 8\)", lambda o, a: nisa.max8(o, a), [data(4, 9)], Tile((3, 8))),
        (DtypeError, "dst .* accepted: uint16, uint32", find8, [data(4, 9), data(4, 8)], Tile((4, 8), nl.int32)),
        (ShapeError, "vals .* 8 elements", find8, [data(4, 9), data(4, 9)], index),
        (ShapeError, "vals has 3 partitions", find8, [data(4, 9), data(3, 8)], index),
        (ShapeError, "vals .* up to 3", find8, [data(4, 9), data(4, 2, 2, 2)], index),
        (ShapeError, "data .* 7 elements", find8, [data(4, 7), data(4, 8)], index),
        (ShapeError, "dst", replace8, [data(4, 9), data(4, 8)], Tile((4, 8))),
        (ArgumentError, "imm is None", lambda o, a, v: nisa.nc_match_replace8(o, a, v, no_number),
         [data(4, 9), data(4, 8)], Tile((4, 9))),
        (DtypeError, "dst_idx", lambda o, a, v: nisa.nc_match_replace8(o, a, v, 0.0, nl.ndarray((4, 8), nl.int16)),
         [data(4, 9), data(4, 8)], Tile((4, 9))),
    ]  # fmt: skip
    for error, message, body, inputs, tile in cases:
        with pytest.raises(error, match=message):
            values(body, inputs, tile)
    values(lambda o, a: nisa.max8(o, a), [data(4, 2, 4)], Tile((4, 8)))
    values(find8, [data(4, 9), data(4, 2, 4)], index)
    values(replace8, [data(4, 9), data(4, 8)], Tile((4, 9)))
