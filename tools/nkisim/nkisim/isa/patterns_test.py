"""iota and affine_select: values by the documented loops, and each documented constraint in a pair."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim.errors import ArgumentError, DtypeError, ShapeError, WrongBufferError
from nkisim.isa.testing import Given, Tile, compute, values

RNG = np.random.default_rng(4)
PATTERNS = [
    ([[1, 12]], 0, 0),
    ([[-1, 12]], 5, 3),
    ([[2, 3], [-7, 4]], -100, 12),
    ([[100, 2], [0, 1], [1, 6]], 7, -1),
    ([[1000, 2], [-50, 3], [3, 1], [1, 2]], 1 << 20, 1 << 16),
]


def by_loops(partitions, pattern, offset, multiplier):
    rows = []
    for partition in range(partitions):
        indices = itertools.product(*[range(size) for _, size in pattern])
        rows.append([offset + partition * multiplier + sum(i * s for i, (s, _) in zip(index, pattern, strict=True))
                     for index in indices])  # fmt: skip
    return np.array(rows)


@pytest.mark.parametrize(("pattern", "offset", "multiplier"), PATTERNS)
@pytest.mark.parametrize("start", [0, 32])
def test_iota(pattern, offset, multiplier, start):
    result = values(lambda o: nisa.iota(o, pattern, offset, multiplier), [], Tile((20, 3, 4), nl.int32, start=start))
    np.testing.assert_array_equal(result.reshape(20, 12), by_loops(20, pattern, offset, multiplier))


def test_iota_casts_to_any_type():
    wanted = by_loops(9, [[3, 8]], 0, 24)
    for name in ("float32", "bfloat16", "float16", "uint8", "int16", "uint32", "float8_e5m2"):
        kind = getattr(nl, name)
        result = values(lambda o: nisa.iota(o, [[3, 8]], channel_multiplier=24), [], Tile((9, 8), kind))
        np.testing.assert_array_equal(result, wanted.astype(np.float32).astype(kind.storage))
    assert compute(lambda o: nisa.iota(o, [[1, 8]]), [], [Tile((9, 8))]).stream[0].engine is nisa.engine.gpsimd


def test_iota_constraints():
    cases = [
        (ShapeError, "makes 7 values per partition; accepted: 8", Tile((4, 8), nl.int32), ([[1, 7]],)),
        (WrongBufferError, "dst .* lies in psum; accepted: sbuf", Tile((4, 8), nl.int32, nl.psum), ([[1, 8]],)),
        (ArgumentError, "accepted: one to four", Tile((4, 8), nl.int32), ([[1, 2]] * 3 + [[1, 1]] * 2,)),
        (ArgumentError, "accepted: one to four", Tile((4, 8), nl.int32), ([],)),
        (ArgumentError, "accepted: one to four", Tile((4, 8), nl.int32), (5,)),
        (ArgumentError, "accepted: one to four", Tile((4, 8), nl.int32), ([[1, 0]],)),
        (ArgumentError, "offset is 1.5", Tile((4, 8), nl.int32), ([[1, 8]], 1.5)),
        (ArgumentError, "offset is 2147483648", Tile((4, 8), nl.int32), ([[1, 8]], 1 << 31)),
        (ArgumentError, "channel_multiplier is None", Tile((4, 8), nl.int32), ([[1, 8]], 0, None)),
        (ArgumentError, "values from .* accepted: 32-bit", Tile((4, 8), nl.float32), ([[1, 8]], (1 << 31) - 1)),
        (DtypeError, "values from 0 to 280 in uint8", Tile((4, 8), nl.uint8), ([[40, 8]],)),
        (DtypeError, "packed", Tile((4, 8), nl.float8_e5m2_x4), ([[1, 8]],)),
    ]
    for error, message, tile, arguments in cases:
        with pytest.raises(error, match=message):
            values(lambda o, a=arguments: nisa.iota(o, *a), [], tile)
    values(lambda o: nisa.iota(o, [[1, 2]] * 3 + [[1, 1]]), [], Tile((4, 8), nl.int32))


@pytest.mark.parametrize(
    ("op", "function"),
    [
        (nl.equal, np.equal), (nl.not_equal, np.not_equal), (nl.greater, np.greater), (nl.less, np.less),
        (nl.greater_equal, np.greater_equal), (nl.less_equal, np.less_equal),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("pattern", "offset", "multiplier"), PATTERNS[:3])
def test_affine_select(op, function, pattern, offset, multiplier):
    x = RNG.normal(size=(20, 12)).astype(ml_dtypes.bfloat16)
    chosen = function(by_loops(20, pattern, offset, multiplier), 0)
    for tile in (Tile((20, 2, 6), nl.bfloat16), Tile((20, 12), nl.float32)):
        result = values(
            lambda o, a: nisa.affine_select(o, pattern, multiplier, a, -9984.5, op, offset), [Given(x, start=64)], tile
        )
        fill = np.float32(-9984.5).astype(tile.dtype.storage)
        np.testing.assert_array_equal(result.reshape(20, 12), np.where(chosen, x.astype(tile.dtype.storage), fill))


def test_affine_select_is_a_causal_mask_and_compares_with_equal_by_default():
    x = RNG.normal(size=(16, 16)).astype(np.float32)
    mask = values(lambda o, a: nisa.affine_select(o, [[-1, 16]], 1, a, 0.0, nl.greater_equal), [x], Tile((16, 16)))
    np.testing.assert_array_equal(mask, np.tril(x))
    diagonal = values(lambda o, a: nisa.affine_select(o, [[-1, 16]], 1, a, 0.0), [x], Tile((16, 16)))
    np.testing.assert_array_equal(diagonal, np.diag(np.diag(x)))
    np.testing.assert_array_equal(
        values(
            lambda o, a: nisa.affine_select(a, [[-1, 16]], 1, a, 0.0) and nisa.tensor_copy(o, a), [x], Tile((16, 16))
        ),
        diagonal,
    )


def test_affine_select_copies_words_exactly():
    x = np.array([[(1 << 24) + 1, 3]], np.int32)
    result = values(lambda o, a: nisa.affine_select(o, [[1, 2]], 0, a, -1.0), [x], Tile((1, 2), nl.int32))
    np.testing.assert_array_equal(result, [[(1 << 24) + 1, -1]])


def test_affine_select_constraints():
    x = RNG.normal(size=(4, 8)).astype(np.float32)
    select = nisa.affine_select
    cases: list[tuple[Any, ...]] = [
        (WrongBufferError, "on_true_tile .* lies in psum", Given(x, nl.psum), Tile((4, 8)), {}),
        (WrongBufferError, "dst .* lies in psum", Given(x), Tile((4, 8), buffer=nl.psum), {}),
        (ShapeError, "on_true_tile", Given(x[:, :4]), Tile((4, 8)), {}),
        (ShapeError, "on_true_tile has 3 partitions", Given(x[:3]), Tile((4, 8)), {}),
        (ShapeError, "makes 4 values", Given(x), Tile((4, 8)), {"pattern": [[1, 4]]}),
        (ArgumentError, "cmp_op is nl.add", Given(x), Tile((4, 8)), {"cmp_op": nl.add}),
        (ArgumentError, "on_false_value is None", Given(x), Tile((4, 8)), {"on_false_value": None}),
        (ArgumentError, "values from", Given(x), Tile((4, 8)), {"offset": (1 << 31) - 2}),
    ]
    for error, message, given, tile, arguments in cases:
        chosen = {"pattern": [[1, 8]], "channel_multiplier": 1, "on_false_value": 0.0} | arguments
        with pytest.raises(error, match=message):
            values(lambda o, a, c=chosen: select(o, on_true_tile=a, **c), [given], tile)
    values(lambda o, a: select(o, [[1, 8]], 1, a, 0.0), [x], Tile((4, 8)))
