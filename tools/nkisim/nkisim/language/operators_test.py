"""Operators of nki.language against numpy, on ragged shapes, views and types; which instructions they stand for."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim import Options, run
from nkisim.errors import ArgumentError, DtypeError, ShapeError, TargetError, WrongBufferError
from nkisim.isa.testing import Given, Tile, compute, values

BF16 = ml_dtypes.bfloat16
_RNG = np.random.default_rng(7)


def _random(*shape, dtype=np.float32):
    if np.issubdtype(dtype, np.integer):
        return _RNG.integers(0, 100, shape).astype(dtype)
    return (_RNG.standard_normal(shape) * 4).astype(dtype)


def _apply(function, inputs, shape, dtype=nl.float32, **options):
    """The tile that `function` makes, as an array."""

    def body(out, *tiles):
        made = function(*tiles)
        assert made.shape == shape
        nisa.tensor_copy(out, made)

    return values(body, inputs, Tile(shape, dtype), **options)


def _larger(x, y):
    return np.where(np.abs(x) > np.abs(y), x, y)


def _smaller(x, y):
    return np.where(np.abs(x) < np.abs(y), x, y)


ARITHMETIC: dict[str, Any] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "maximum": np.maximum,
    "minimum": np.minimum, "abs_max": _larger, "abs_min": _smaller, "equal": np.equal, "not_equal": np.not_equal,
    "less": np.less, "less_equal": np.less_equal, "greater": np.greater, "greater_equal": np.greater_equal,
    "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
}  # fmt: skip
BITS = {
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift, "right_shift": np.right_shift,
}  # fmt: skip


@pytest.mark.parametrize("name", list(ARITHMETIC))
def test_two_tiles(name):
    x, y = _random(77, 5, 9), _random(77, 5, 9)
    x[::3], y[1::4] = y[::3], 0
    if name == "divide":
        y[y == 0] = 1
    result = _apply(getattr(nl, name), [x, y], (77, 5, 9))
    np.testing.assert_allclose(result, ARITHMETIC[name](x, y).astype(np.float32), rtol=3e-7)


@pytest.mark.parametrize("name", list(ARITHMETIC))
@pytest.mark.parametrize("swapped", [False, True])
def test_a_tile_and_a_number(name, swapped):
    x = _random(50, 13)
    x[0, :4] = 1.5
    x[x == 0] = 2
    function, expected = getattr(nl, name), ARITHMETIC[name]
    if swapped:
        result, wanted = _apply(lambda t: function(1.5, t), [x], (50, 13)), expected(np.float32(1.5), x)
    else:
        result, wanted = _apply(lambda t: function(t, 1.5), [x], (50, 13)), expected(x, np.float32(1.5))
    np.testing.assert_allclose(result, wanted.astype(np.float32), rtol=3e-7)


@pytest.mark.parametrize(
    ("x_shape", "y_shape"),
    [((128, 24), (128, 1)), ((128, 1), (128, 24)), ((100, 24), (1, 24)), ((1, 1), (100, 24)), ((128, 1), (1, 24)),
     ((60, 3, 8), (60, 1, 8)), ((60, 3, 1), (1, 1, 8))],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_sizes_of_one_stretch_over_partitions_too(x_shape, y_shape, dtype):
    x, y = _random(*x_shape, dtype=dtype), _random(*y_shape, dtype=dtype)
    shape = np.broadcast_shapes(x_shape, y_shape)
    result = _apply(nl.subtract, [x, y], shape, nl.bfloat16 if dtype is BF16 else nl.float32)
    np.testing.assert_array_equal(result, (x.astype(np.float32) - y.astype(np.float32)).astype(dtype))


@pytest.mark.parametrize("name", list(BITS))
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_bits(name, dtype):
    x, y = _random(40, 11, dtype=dtype), _RNG.integers(0, 7, (40, 11)).astype(dtype)
    kind = getattr(nl, np.dtype(dtype).name)
    np.testing.assert_array_equal(_apply(getattr(nl, name), [x, y], (40, 11), kind), BITS[name](x, y))
    np.testing.assert_array_equal(
        _apply(lambda t: getattr(nl, name)(t, 3), [x], (40, 11), kind), BITS[name](x, dtype(3))
    )


def test_power_of_positive_bases():
    x, y = np.abs(_random(30, 20)) + 0.1, _random(30, 20)
    np.testing.assert_allclose(_apply(nl.power, [x, y], (30, 20)), x**y, rtol=1e-5)


def test_views_that_start_on_partition_32_and_skip_columns():
    x, y = _random(30, 12), _random(30, 12)
    result = _apply(lambda a, b: nl.add(a[:, ::2], b[:, 6:]), [Given(x, start=32), Given(y, nl.psum)], (30, 6))
    np.testing.assert_array_equal(result, x[:, ::2] + y[:, 6:])


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [("float32", "bfloat16", "float32"), ("float16", "bfloat16", "float32"), ("int32", "bfloat16", "bfloat16"),
     ("uint8", "int32", "int32"), ("bfloat16", "bfloat16", "bfloat16")],
)  # fmt: skip
def test_the_result_has_the_type_that_holds_most(x, y, expected):
    def kernel():
        tiles: Any = [nl.full((4, 4), 1, getattr(nl, name)) for name in (x, y)]
        assert nl.add(*tiles).dtype == expected
        assert nl.add(tiles[0], tiles[1], dtype=nl.float16).dtype == "float16"
        assert nl.less(tiles[0], tiles[1], dtype=nl.uint8).dtype == "uint8"

    run(kernel)


def test_one_instruction_each():
    x = _random(64, 8)
    assert [r.op for r in compute(lambda a: nl.add(a, a), [x], []).stream] == ["tensor_tensor"]
    assert [r.op for r in compute(lambda a: nl.add(a, 2.0), [x], []).stream] == ["tensor_scalar"]
    assert [r.op for r in compute(lambda a: nl.add(a, a[:, 0:1]), [x], []).stream] == ["tensor_scalar"]
    assert [r.op for r in compute(lambda a: nl.divide(a, a), [x], []).stream] == ["reciprocal", "tensor_tensor"]
    stretched = compute(lambda a: nl.add(a, a[0:1]), [x], []).stream
    assert [r.op for r in stretched] == ["nc_stream_shuffle", "nc_stream_shuffle", "tensor_tensor"]


def test_a_timing_only_run_issues_the_same():
    x = _random(64, 8)
    runs = [compute(lambda a: nl.divide(a, a[0:1]), [x], [], numerics=n).stream for n in (True, False)]
    assert [r.op for r in runs[0]] == [r.op for r in runs[1]]


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (lambda a: nl.add(1.0, 2.0), ArgumentError, "nl.add: x is 1.0, y is 2.0; accepted: two tiles, or a tile"),
        (lambda a: nl.add(a, "two"), ArgumentError, "accepted: two tiles, or a tile and a number"),
        (lambda a: nl.add(a, a[:, :3]), ShapeError, r"nl.add: x \[20, 8\] and y \[20, 3\]"),
        (lambda a: nl.add(a, a.reshape((20, 2, 4))), ShapeError, "as many dimensions"),
        (lambda a: nl.bitwise_and(a, a), DtypeError, "float32 with nl.bitwise_and; accepted: integer types"),
        (lambda a: nl.add(a, nl.ndarray((20, 8), nl.float32, nl.shared_hbm)), WrongBufferError, "sbuf or psum"),
    ],
)
def test_refused(function, error, words):
    with pytest.raises(error, match=words):
        compute(function, [_random(20, 8)], [])


def test_abs_max_needs_trn3():
    with pytest.raises(TargetError, match="abs_max"):
        compute(lambda a: nl.abs_max(a, 1.0), [_random(4, 4)], [], target="trn2")


def test_assert_reads_a_comparison():
    def kernel(differing):
        a, b = nl.full((8, 4), 3.0, nl.float32), nl.full((8, 4), 3.0, nl.float32)
        nisa.memset(b[:, 0:1], 4.0 if differing else 3.0)
        assert nl.equal(a, b), "they differ"

    run(kernel, False)
    run(kernel, True, options=Options(numerics=False))
    with pytest.raises(AssertionError, match="they differ"):
        run(kernel, True)


def test_assert_reads_a_comparison_in_code_without_a_source():
    scope: dict[str, Any] = {"nl": nl}
    exec("def kernel():\n a = nl.ones((4, 4), nl.float32)\n assert nl.equal(a, 1.0)\n", scope)
    run(scope["kernel"])


def test_no_other_statement_reads_a_comparison():
    def branches():
        a = nl.ones((8, 4), nl.float32)
        if nl.equal(a, a):
            pass

    def asserts_a_tile():
        a = nl.ones((8, 4), nl.float32)
        assert a

    for kernel in (branches, asserts_a_tile):
        with pytest.raises(DtypeError, match="not known when the kernel is traced"):
            run(kernel)


@pytest.mark.parametrize("token", [nl.prelu, nl.bypass, nl.average])
def test_operators_that_cannot_be_called(token):
    with pytest.raises(ArgumentError, match=f"nl.{token.__name__} is called; accepted: as an operator"):
        token(1)


def test_questions_about_memories():
    assert [nl.is_hbm(b) for b in (nl.sbuf, nl.psum, nl.hbm, nl.private_hbm, nl.shared_hbm)] == [False] * 2 + [True] * 3
    assert [nl.is_on_chip(b) for b in (nl.sbuf, nl.psum, nl.hbm, nl.shared_hbm)] == [True, True, False, False]
    assert [nl.is_psum(b) for b in (nl.sbuf, nl.psum, nl.hbm)] == [False, True, False]
    assert [nl.is_sbuf(b) for b in (nl.sbuf, nl.psum, nl.hbm)] == [True, False, False]
    with pytest.raises(ArgumentError, match=r"nl.is_hbm: buffer 3; accepted: nl.sbuf"):
        nl.is_hbm(3)
