"""Elementwise instructions: values against numpy, and each documented constraint in a pair."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim.errors import (
    ArgumentError,
    DtypeError,
    EngineError,
    PartitionError,
    ShapeError,
    TargetError,
    UninitializedReadError,
    WrongBufferError,
)
from nkisim.isa.testing import Given, Tile, compute, values

RNG = np.random.default_rng(11)
BF16 = ml_dtypes.bfloat16


def normal(*shape, dtype=np.float32):
    return RNG.normal(0, 2, shape).astype(dtype)


def words(*shape, dtype=np.int32):
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)


# tensor_tensor


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16, np.int8, np.uint16, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("out", [nl.float32, nl.bfloat16])
def test_tensor_tensor_calculates_in_fp32(dtype, out):
    x, y = normal(77, 33).astype(dtype), normal(77, 33).astype(dtype)
    result = values(lambda o, a, b: nisa.tensor_tensor(o, a, b, nl.multiply), [x, y], Tile((77, 33), out))
    np.testing.assert_array_equal(result, (x.astype(np.float32) * y.astype(np.float32)).astype(out.storage))


def test_tensor_tensor_on_views_and_other_start_partitions():
    x, y = normal(20, 4, 10), normal(20, 40)
    result = values(
        lambda o, a, b: nisa.tensor_tensor(
            o.permute((0, 2, 1)), a.permute((0, 2, 1)), b.reshape((20, 4, 10))[:, 1, 2:3].broadcast(1, 40), nl.subtract
        ),
        [Given(x, start=32), Given(y, start=64)],
        Tile((20, 4, 10), start=96),
    )
    np.testing.assert_array_equal(result, x - y.reshape(20, 4, 10)[:, 1:2, 2:3])


def test_float_results_in_integers_round_to_even_and_saturate():
    x = np.array([[0.5, 1.5, 2.5, -0.5, -1.5, 300, -300, 127.4]], np.float32)
    result = values(lambda o, a: nisa.tensor_tensor(o, a, a, nl.maximum), [x], Tile((1, 8), nl.int8))
    np.testing.assert_array_equal(result, [[0, 2, 2, 0, -2, 127, -128, 127]])


@pytest.mark.parametrize("op", [nl.add, nl.subtract, nl.multiply])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_words_are_exact_by_default(op, dtype):
    x, y = words(5, 9, dtype=dtype), words(5, 9, dtype=dtype)
    tile = Tile((5, 9), nl.int32 if dtype == np.int32 else nl.uint32)
    ran = compute(lambda o, a, b: nisa.tensor_tensor(o, a, b, op), [x, y], [tile])
    function = getattr(np, op.__name__)
    np.testing.assert_array_equal(ran.arrays[0], function(x, y))
    assert ran.stream[0].engine is nisa.engine.gpsimd


def test_words_of_both_signs_wrap_as_bits():
    x, y = words(5, 9), words(5, 9, dtype=np.uint32)
    for op in (nl.add, nl.subtract, nl.multiply):
        result = values(lambda o, a, b, p=op: nisa.tensor_tensor(o, a, b, p), [x, y], Tile((5, 9), nl.int32))
        exact = getattr(np, op.__name__)(x.astype(object), y.astype(object)) % (1 << 32)
        np.testing.assert_array_equal(result.view(np.uint32), exact.astype(np.uint32))
    result = values(lambda o, a, b: nisa.tensor_tensor(o, a, b, nl.less), [x, y], Tile((5, 9), nl.int32))
    np.testing.assert_array_equal(result, x.astype(object) < y.astype(object))


def test_power_of_words_is_that_of_fp32():
    x, y = np.array([[2, 3, 2]], np.int32), np.array([[-1, 2, 40]], np.int32)
    result = values(lambda o, a, b: nisa.tensor_tensor(o, a, b, nl.power), [x, y], Tile((1, 3), nl.int32))
    np.testing.assert_array_equal(result, [[0, 9, (1 << 31) - 1]])


def test_words_compare_exactly_on_gpsimd_and_in_fp32_on_vector():
    x = np.array([[(1 << 24) + 1]], np.int32)
    y = np.array([[1 << 24]], np.int32)
    for engine, equal in ((nisa.engine.unknown, 0), (nisa.engine.gpsimd, 0), (nisa.engine.vector, 1)):
        result = values(
            lambda o, a, b, e=engine: nisa.tensor_tensor(o, a, b, nl.equal, engine=e), [x, y], Tile((1, 1), nl.int32)
        )
        assert result == equal


def test_words_in_psum_fall_back_to_vector():
    x = words(4, 4)
    ran = compute(
        lambda o, a, b: nisa.tensor_tensor(o, a, b, nl.maximum), [Given(x, nl.psum), x], [Tile((4, 4), nl.int32)]
    )
    assert ran.stream[0].engine is nisa.engine.vector


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
@pytest.mark.parametrize(
    ("op", "function"),
    [
        (nl.bitwise_and, np.bitwise_and),
        (nl.bitwise_or, np.bitwise_or),
        (nl.bitwise_xor, np.bitwise_xor),
    ],
)
def test_bits_of_every_integer(dtype, op, function):
    x, y = words(6, 7, dtype=dtype), words(6, 7, dtype=dtype)
    tile = Tile((6, 7), getattr(nl, np.dtype(dtype).name))
    result = values(lambda o, a, b: nisa.tensor_tensor(o, a, b, op), [x, y], tile)
    np.testing.assert_array_equal(result, function(x, y))


def test_right_shift_of_signed_words_is_logical():
    x, count = np.array([[-1, -8, 8]], np.int32), np.array([[28, 1, 33]], np.int32)
    result = values(lambda o, a, b: nisa.tensor_tensor(o, a, b, nl.right_shift), [x, count], Tile((1, 3), nl.int32))
    np.testing.assert_array_equal(result, [[15, 0x7FFFFFFC, 0]])


def test_a_tile_of_another_rank_is_never_spread_over_partitions():
    """Field report h6."""
    x, y = normal(6, 3, 4), normal(6, 12)
    result = values(lambda o, a, b: nisa.tensor_tensor(o, a, b, nl.multiply), [x, y], Tile((6, 3, 4)))
    np.testing.assert_array_equal(result, x * y.reshape(6, 3, 4))
    for wrong in ((6, 4), (3, 4), (1, 4), (6, 3)):
        with pytest.raises(ShapeError, match="data2"):
            values(lambda o, a, b: nisa.tensor_tensor(o, a, b, nl.multiply), [x, normal(*wrong)], Tile((6, 3, 4)))


def test_tensor_tensor_inputs_not_both_in_psum():
    x = normal(8, 8)
    for first, second in ((nl.psum, nl.sbuf), (nl.sbuf, nl.psum)):
        result = values(
            lambda o, a, b: nisa.tensor_tensor(o, a, b, nl.add),
            [Given(x, first), Given(x, second)],
            Tile((8, 8), buffer=nl.psum),
        )
        np.testing.assert_array_equal(result, x + x)
    with pytest.raises(WrongBufferError, match="data1 and data2 both lie in psum"):
        values(
            lambda o, a, b: nisa.tensor_tensor(o, a, b, nl.add), [Given(x, nl.psum), Given(x, nl.psum)], Tile((8, 8))
        )


def test_power_runs_on_gpsimd_out_of_reach_of_psum():
    x = np.abs(normal(8, 8)) + 1
    ran = compute(lambda o, a: nisa.tensor_tensor(o, a, a, nl.power), [x], [Tile((8, 8))])
    np.testing.assert_allclose(ran.arrays[0], np.power(x.astype(np.float64), x), rtol=1e-5)
    assert ran.stream[0].engine is nisa.engine.gpsimd
    with pytest.raises(WrongBufferError, match="gpsimd cannot reach"):
        values(lambda o, a: nisa.tensor_tensor(o, a, a, nl.power), [x], Tile((8, 8), buffer=nl.psum))
    with pytest.raises(EngineError, match="accepted: gpsimd"):
        values(lambda o, a: nisa.tensor_tensor(o, a, a, nl.power, engine=nisa.engine.vector), [x], Tile((8, 8)))


def test_tensor_tensor_does_not_run_on_the_scalar_engine():
    with pytest.raises(EngineError, match="'scalar'; accepted: vector, gpsimd"):
        values(
            lambda o, a: nisa.tensor_tensor(o, a, a, nl.add, engine=nisa.engine.scalar), [normal(4, 4)], Tile((4, 4))
        )


def test_bit_operators_take_integers_of_one_width():
    x, y = words(4, 4), words(4, 4, dtype=np.int16)
    for inputs, tile in (([x, normal(4, 4)], nl.int32), ([x, y], nl.int32), ([x, x], nl.float32), ([y, y], nl.int32)):
        with pytest.raises(DtypeError, match="accepted: integer"):
            values(lambda o, a, b: nisa.tensor_tensor(o, a, b, nl.bitwise_and), inputs, Tile((4, 4), tile))
    values(lambda o, a: nisa.tensor_tensor(o, a, a, nl.bitwise_and), [x], Tile((4, 4), nl.uint32))


def test_magnitude_operators_are_for_trn3():
    x, y = normal(4, 4), normal(4, 4)
    result = values(lambda o, a, b: nisa.tensor_tensor(o, a, b, nl.abs_max), [x, y], Tile((4, 4)))
    np.testing.assert_array_equal(result, np.where(np.abs(x) > np.abs(y), x, y))
    with pytest.raises(TargetError, match=r"nl.abs_max: target trn2"):
        values(lambda o, a, b: nisa.tensor_tensor(o, a, b, nl.abs_max), [x, y], Tile((4, 4)), target="trn2")


@pytest.mark.parametrize("op", [nl.abs, nl.invert, nl.exp, np.add, "add", None])
def test_tensor_tensor_takes_binary_operators_of_the_language(op):
    with pytest.raises(ArgumentError, match="op is"):
        values(lambda o, a: nisa.tensor_tensor(o, a, a, op), [normal(4, 4)], Tile((4, 4)))


def test_operands_are_written_tiles_on_chip():
    x = normal(4, 4)
    number: Any = 1.0
    with pytest.raises(UninitializedReadError, match="data2"):
        values(lambda o, a: nisa.tensor_tensor(o, a, nl.ndarray((4, 4), nl.float32), nl.add), [x], Tile((4, 4)))
    with pytest.raises(WrongBufferError, match=r"data1 .* lies in shared_hbm"):
        values(
            lambda o, a: nisa.tensor_tensor(o, nl.ndarray((4, 4), nl.float32, nl.shared_hbm), a, nl.add),
            [x],
            Tile((4, 4)),
        )
    with pytest.raises(ArgumentError, match="data2 is float"):
        values(lambda o, a: nisa.tensor_tensor(o, a, number, nl.add), [x], Tile((4, 4)))
    with pytest.raises(PartitionError, match="start partition 1"):
        values(lambda o, a: nisa.tensor_tensor(o[0:2], a[1:3], a[0:2], nl.add), [x], Tile((2, 4)))
    with pytest.raises(ShapeError, match="broadcast view"):
        values(lambda o, a: nisa.tensor_tensor(o.broadcast(1, 4), a, a, nl.add), [x], Tile((4, 1)))


def test_packed_types_have_no_arithmetic():
    x = words(32, 4, dtype=np.uint32)
    with pytest.raises(DtypeError, match="accepted: any type but packed"):
        values(
            lambda o, a: nisa.tensor_tensor(o, a, a, nl.add),
            [Given(x, dtype=nl.float8_e4m3fn_x4)],
            Tile((32, 4)),
        )


# tensor_scalar


def test_tensor_scalar_chain_with_constants_columns_and_reversed_sides():
    x, column = normal(50, 3, 7, dtype=BF16), normal(50, 1)
    wide = x.astype(np.float32)
    result = values(
        lambda o, a, c: nisa.tensor_scalar(o, a, nl.subtract, c, True, nl.multiply, 0.3), [x, column], Tile((50, 3, 7))
    )
    np.testing.assert_array_equal(result, (column[:, :, None] - wide) * np.float32(0.3))
    result = values(
        lambda o, a, c: nisa.tensor_scalar(o, a, nl.add, 2, op1=nl.subtract, operand1=c, reverse1=True),
        [Given(x, nl.psum), Given(column, nl.psum)],
        Tile((50, 21), nl.bfloat16),
    )
    np.testing.assert_array_equal(result, (column[:, :, None] - (wide + 2)).astype(BF16).reshape(50, 21))


def test_tensor_scalar_unary_operators():
    x = np.abs(normal(9, 9)) + 1
    for op, wanted in ((nl.square, x * x), (nl.reciprocal, 1 / x), (nl.abs, x), (nl.relu, x)):
        for operand in (None, 0, 0.0):
            result = values(lambda o, a, p=op, q=operand: nisa.tensor_scalar(o, a, p, q), [x], Tile((9, 9)))
            np.testing.assert_array_equal(result, wanted)
    with pytest.raises(ArgumentError, match=r"operand0 is 1.0 with nl.abs; accepted: None or 0"):
        values(lambda o, a: nisa.tensor_scalar(o, a, nl.abs, 1.0), [x], Tile((9, 9)))
    for unused in (2, 0):
        with pytest.raises(ArgumentError, match="without an operator; accepted: None"):
            values(lambda o, a, u=unused: nisa.tensor_scalar(o, a, nl.add, 1.0, operand1=u), [x], Tile((9, 9)))
    with pytest.raises(ArgumentError, match="operand0 is None"):
        values(lambda o, a: nisa.tensor_scalar(o, a, nl.add, None), [x], Tile((9, 9)))


def test_tensor_scalar_on_bits():
    x, mask = words(6, 8, dtype=np.int16), words(6, 1, dtype=np.uint16)
    result = values(
        lambda o, a, m: nisa.tensor_scalar(o, a, nl.bitwise_xor, m, op1=nl.right_shift, operand1=3),
        [x, mask],
        Tile((6, 8), nl.int16),
    )
    np.testing.assert_array_equal(result.view(np.uint16), (x.view(np.uint16) ^ mask) >> 3)
    result = values(lambda o, a: nisa.tensor_scalar(o, a, nl.invert, None), [x], Tile((6, 8), nl.int16))
    np.testing.assert_array_equal(result, ~x)
    result = values(lambda o, a: nisa.tensor_scalar(o, a, nl.bitwise_and, -2), [x], Tile((6, 8), nl.int16))
    np.testing.assert_array_equal(result, x & -2)
    result = values(lambda o, a: nisa.tensor_scalar(o, a, nl.left_shift, 1, True), [x], Tile((6, 8), nl.int16))
    np.testing.assert_array_equal(
        result.view(np.uint16), [[1 << v if v < 16 else 0 for v in row] for row in x.view(np.uint16).tolist()]
    )


@pytest.mark.parametrize("constant", [0.5, 1 << 16, -(1 << 15) - 1])
def test_constants_of_bit_operators_are_integers_of_the_width(constant):
    with pytest.raises(ArgumentError, match="accepted: an integer of 16 bits"):
        values(
            lambda o, a: nisa.tensor_scalar(o, a, nl.bitwise_and, constant),
            [words(4, 4, dtype=np.int16)],
            Tile((4, 4), nl.int16),
        )


def test_tensor_scalar_operators_are_both_bits_or_both_arithmetic():
    with pytest.raises(ArgumentError, match="both bits or both arithmetic"):
        values(
            lambda o, a: nisa.tensor_scalar(o, a, nl.bitwise_and, 1, op1=nl.add, operand1=1),
            [words(4, 4)],
            Tile((4, 4), nl.int32),
        )


def test_tensor_scalar_operands_are_fp32_columns():
    x = normal(8, 4)
    with pytest.raises(DtypeError, match=r"operand0 .* is bfloat16; accepted: float32"):
        values(lambda o, a, c: nisa.tensor_scalar(o, a, nl.add, c), [x, normal(8, 1, dtype=BF16)], Tile((8, 4)))
    with pytest.raises(ShapeError, match=r"operand0 \[8, 4\]; accepted: one element per partition"):
        values(lambda o, a: nisa.tensor_scalar(o, a, nl.add, a), [x], Tile((8, 4)))
    with pytest.raises(ShapeError, match="operand0 has 4 partitions, data 8"):
        values(lambda o, a, c: nisa.tensor_scalar(o, a, nl.add, c), [x, normal(4, 1)], Tile((8, 4)))
    values(lambda o, a, c: nisa.tensor_scalar(o, a, nl.add, c), [x, normal(8, 1)], Tile((8, 4)))


@pytest.mark.parametrize(
    ("op0", "op1", "fits"),
    [
        (nl.multiply, nl.add, True),
        (nl.multiply, None, True),
        (nl.add, None, True),
        (nl.add, nl.multiply, False),
        (nl.subtract, None, False),
    ],
)
def test_scalar_engine_pairs_on_trn2(op0, op1, fits):
    def body(o, a):
        operand1 = None if op1 is None else 2.0
        nisa.tensor_scalar(o, a, op0, 1.0, op1=op1, operand1=operand1, engine=nisa.engine.scalar)

    x = normal(4, 4)
    assert compute(body, [x], [Tile((4, 4))]).stream[0].engine is nisa.engine.scalar
    if fits:
        compute(body, [x], [Tile((4, 4))], target="trn2")
    else:
        with pytest.raises(EngineError, match="scalar on trn2"):
            compute(body, [x], [Tile((4, 4))], target="trn2")


def test_gpsimd_runs_rsqrt_only_and_bits_run_on_vector_only():
    x = np.abs(normal(4, 4)) + 1
    ran = compute(lambda o, a: nisa.tensor_scalar(o, a, nl.rsqrt, 0.0), [x], [Tile((4, 4))])
    assert ran.stream[0].engine is nisa.engine.gpsimd
    np.testing.assert_allclose(ran.arrays[0], 1 / np.sqrt(x), rtol=1e-6)
    with pytest.raises(EngineError, match=r"gpsimd with nl.add"):
        values(lambda o, a: nisa.tensor_scalar(o, a, nl.add, 1, engine=nisa.engine.gpsimd), [x], Tile((4, 4)))
    with pytest.raises(EngineError, match="accepted: vector"):
        values(
            lambda o, a: nisa.tensor_scalar(o, a, nl.bitwise_or, 1, engine=nisa.engine.scalar),
            [words(4, 4)],
            Tile((4, 4), nl.int32),
        )


# scalar_tensor_tensor and reciprocal


def test_scalar_tensor_tensor_rounds_once():
    x, y, column = normal(40, 5, 6, dtype=BF16), normal(40, 30), normal(40, 1, dtype=BF16)
    result = values(
        lambda o, a, b, c: nisa.scalar_tensor_tensor(o, a, nl.multiply, c, nl.subtract, b, reverse1=True),
        [x, y, column],
        Tile((40, 5, 6), nl.bfloat16),
    )
    wide = y.reshape(40, 5, 6) - x.astype(np.float32) * column.astype(np.float32)[:, :, None]
    np.testing.assert_array_equal(result, wide.astype(BF16))
    result = values(
        lambda o, a, b: nisa.scalar_tensor_tensor(o, a, nl.subtract, 1.5, nl.maximum, b, reverse0=True),
        [Given(x, nl.psum), y],
        Tile((40, 30)),
    )
    np.testing.assert_array_equal(result, np.maximum(1.5 - x.astype(np.float32).reshape(40, 30), y))


def test_scalar_tensor_tensor_constraints():
    x, y = normal(8, 4), normal(8, 4)
    cases = [
        (WrongBufferError, "data and operand1 both lie in psum", [Given(x, nl.psum), Given(y, nl.psum)], nl.add),
        (ArgumentError, "op1 is nl.bitwise_and", [x, y], nl.bitwise_and),
        (ArgumentError, "op1 is nl.abs", [x, y], nl.abs),
        (ShapeError, "operand1", [x, normal(8, 1)], nl.add),
    ]
    for error, message, inputs, op1 in cases:
        with pytest.raises(error, match=message):
            values(lambda o, a, b, p=op1: nisa.scalar_tensor_tensor(o, a, nl.add, 1.0, p, b), inputs, Tile((8, 4)))
    values(lambda o, a, b: nisa.scalar_tensor_tensor(o, a, nl.add, 1.0, nl.add, b), [x, y], Tile((8, 4)))


def test_reciprocal():
    x = normal(100, 13, dtype=np.float16)
    for buffer in (nl.sbuf, nl.psum):
        result = values(lambda o, a: nisa.reciprocal(o, a), [Given(x, buffer)], Tile((100, 13), nl.bfloat16, buffer))
        with np.errstate(divide="ignore"):
            np.testing.assert_array_equal(result, (1 / x.astype(np.float32)).astype(BF16))
    with pytest.raises(ShapeError, match="accepted: the same number"):
        values(lambda o, a: nisa.reciprocal(o, a), [x], Tile((100, 12)))


def test_timing_only_runs_record_the_same():
    x = normal(8, 4)

    def body(o, a):
        nisa.tensor_tensor(o, a, a, nl.add)
        nisa.tensor_scalar(o, a, nl.add, 1.0)
        nisa.scalar_tensor_tensor(o, a, nl.add, 1.0, nl.add, a)
        nisa.reciprocal(o, a)

    full, timing = (compute(body, [x], [Tile((8, 4))], numerics=n).stream for n in (True, False))
    assert [(r.op, r.engine, r.detail) for r in full] == [(r.op, r.engine, r.detail) for r in timing]
    assert [r.op for r in full] == ["tensor_tensor", "tensor_scalar", "scalar_tensor_tensor", "reciprocal"]
