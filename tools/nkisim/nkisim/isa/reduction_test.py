"""Reductions: values against numpy, and each documented constraint in a pair."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim.errors import ArgumentError, DtypeError, ShapeError, WrongBufferError
from nkisim.isa.testing import Given, Tile, compute, values

RNG = np.random.default_rng(9)
BF16 = ml_dtypes.bfloat16


def normal(*shape, dtype=np.float32):
    return RNG.normal(0, 1, shape).astype(dtype)


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        (nl.add, lambda x: x.sum(axis=-1, dtype=np.float64)),
        (nl.subtract, lambda x: 2.0 * x[..., 0] - x.sum(axis=-1, dtype=np.float64)),
        (nl.multiply, lambda x: x.prod(axis=-1, dtype=np.float64)),
        (nl.maximum, lambda x: x.max(axis=-1)),
        (nl.max, lambda x: x.max(axis=-1)),
        (nl.minimum, lambda x: x.min(axis=-1)),
        (nl.logical_and, lambda x: (x != 0).all(axis=-1)),
        (nl.logical_or, lambda x: (x != 0).any(axis=-1)),
        (nl.logical_xor, lambda x: (x != 0).sum(axis=-1) % 2),
    ],
)
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_operators(op, wanted, buffer):
    x = normal(70, 5, 31)
    x[np.abs(x) < 0.03] = 0
    result = values(lambda o, a: nisa.tensor_reduce(o, op, a, axis=2), [Given(x, buffer)], Tile((70, 5), buffer=buffer))
    np.testing.assert_allclose(result, wanted(x).astype(np.float32), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("axis", "left"),
    [(3, (2, 3)), ((3,), (2, 3)), ([2, 3], (2,)), ((3, 2), (2,)), ((1, 2, 3), (1,)), (-1, (2, 3)), ((-2, -1), (2,))],
)
def test_axes(axis, left):
    x = normal(40, 2, 3, 4, dtype=BF16)
    result = values(lambda o, a: nisa.tensor_reduce(o, nl.add, a, axis), [x], Tile((40, *left), nl.bfloat16))
    wide = x.astype(np.float32).reshape(40, *left, -1).sum(axis=-1)
    np.testing.assert_array_equal(result, wide.reshape(40, *left).astype(BF16))


@pytest.mark.parametrize("axis", [0, (0, 1), 1, (1, 3), (1, 2), 4, -5, (), "x", 1.5, None])
def test_axes_are_the_last_free_ones(axis):
    with pytest.raises(ArgumentError, match=r"axis .* accepted: \(3,\), \(2, 3\), \(1, 2, 3\)"):
        values(lambda o, a: nisa.tensor_reduce(o, nl.add, a, axis), [normal(4, 2, 3, 4)], Tile((4, 24)))


def test_negate_keepdims_views_and_start_partitions():
    x = normal(30, 6, 5)
    result = values(
        lambda o, a: nisa.tensor_reduce(
            o, nl.maximum, a.permute((0, 2, 1))[:, ::2], axis=2, negate=True, keepdims=True
        ),
        [Given(x, start=96)],
        Tile((30, 3, 1), start=32),
    )
    np.testing.assert_array_equal(result[..., 0], -x.max(axis=1)[:, ::2])


def test_bits():
    x = RNG.integers(0, 1 << 16, (50, 9), np.uint16)
    for op, function in (
        (nl.bitwise_and, np.bitwise_and),
        (nl.bitwise_or, np.bitwise_or),
        (nl.bitwise_xor, np.bitwise_xor),
    ):
        result = values(lambda o, a, p=op: nisa.tensor_reduce(o, p, a, axis=1), [x], Tile((50, 1), nl.uint16))
        np.testing.assert_array_equal(result[:, 0], function.reduce(x, axis=1))


def test_words_reduce_in_fp32():
    x = np.array([[1 << 24, 1]], np.int32)
    result = values(lambda o, a: nisa.tensor_reduce(o, nl.add, a, axis=1), [x], Tile((1, 1), nl.int32))
    assert result == 1 << 24


def test_tensor_reduce_constraints():
    x, bits = normal(8, 4), RNG.integers(0, 9, (8, 4), np.int32)
    reduce = nisa.tensor_reduce
    cases = [
        (ArgumentError, "op is nl.divide", lambda o, a: reduce(o, nl.divide, a, 1), x, Tile((8, 1))),
        (ArgumentError, "op is nl.abs_max", lambda o, a: reduce(o, nl.abs_max, a, 1), x, Tile((8, 1))),
        (ArgumentError, "op is nl.left_shift", lambda o, a: reduce(o, nl.left_shift, a, 1), bits,
         Tile((8, 1), nl.int32)),
        (ArgumentError, "negate with nl.bitwise_or", lambda o, a: reduce(o, nl.bitwise_or, a, 1, negate=True), bits,
         Tile((8, 1), nl.int32)),
        (DtypeError, "accepted: integer", lambda o, a: reduce(o, nl.bitwise_or, a, 1), x, Tile((8, 1))),
        (ShapeError, "accepted: 1, what axis 1 leaves", lambda o, a: reduce(o, nl.add, a, 1), x, Tile((8, 4))),
        (ShapeError, "dst has 7 partitions", lambda o, a: reduce(o, nl.add, a, 1), x, Tile((7, 1))),
    ]  # fmt: skip
    for error, message, body, given, tile in cases:
        with pytest.raises(error, match=message):
            values(body, [given], tile)
    values(lambda o, a: reduce(o, nl.bitwise_or, a, 1), [bits], Tile((8, 1), nl.int32))


# tensor_partition_reduce


def test_partition_reduce():
    x = normal(77, 3, 4, dtype=BF16)
    wide = x.astype(np.float64)
    for op, wanted in ((nl.add, wide.sum(0)), (nl.average, wide.mean(0)), (nl.max, wide.max(0))):
        result = values(lambda o, a, p=op: nisa.tensor_partition_reduce(o, p, a), [x], Tile((1, 12)))
        np.testing.assert_allclose(result.reshape(3, 4), wanted, rtol=1e-5, atol=1e-6)
    bits = RNG.integers(0, 256, (100, 5), np.uint8)
    for op, function in ((nl.bitwise_or, np.bitwise_or), (nl.bitwise_and, np.bitwise_and)):
        result = values(lambda o, a, p=op: nisa.tensor_partition_reduce(o, p, a), [bits], Tile((1, 5), nl.uint8))
        np.testing.assert_array_equal(result[0], function.reduce(bits, axis=0))
    ran = compute(lambda o, a: nisa.tensor_partition_reduce(o, nl.add, a), [x], [Tile((1, 12))])
    assert ran.stream[0].engine is nisa.engine.gpsimd


def test_partition_reduce_constraints():
    x = normal(8, 4)
    reduce = nisa.tensor_partition_reduce
    cases = [
        (ArgumentError, "op is nl.multiply; accepted: add, average", nl.multiply, Given(x), Tile((1, 4))),
        (ShapeError, "accepted: 1 partition with the 4 elements", nl.add, Given(x), Tile((1, 3))),
        (ShapeError, "accepted: 1 partition", nl.add, Given(x), Tile((8, 4))),
        (WrongBufferError, "data .* lies in psum", nl.add, Given(x, nl.psum), Tile((1, 4))),
        (WrongBufferError, "dst .* lies in psum", nl.add, Given(x), Tile((1, 4), buffer=nl.psum)),
        (DtypeError, "accepted: integer", nl.bitwise_or, Given(x), Tile((1, 4))),
    ]
    for error, message, op, given, tile in cases:
        with pytest.raises(error, match=message):
            values(lambda o, a, p=op: reduce(o, p, a), [given], tile)
    values(lambda o, a: reduce(o, nl.add, a), [x], Tile((1, 4)))
