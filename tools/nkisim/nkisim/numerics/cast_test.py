"""Casts against definitions written out in float64 and exact integers, not against the libraries that cast uses."""

import functools
import math
import warnings

import ml_dtypes
import numpy as np
import pytest

from nkisim import dtypes
from nkisim.numerics import cast, decode

# exponent bits, mantissa bits, bias, largest finite number, whether there is an infinity
_FORMATS = {
    dtypes.float8_e4m3: (4, 3, 7, 240.0, True),
    dtypes.float8_e4m3fn: (4, 3, 7, 448.0, False),
    dtypes.float8_e5m2: (5, 2, 15, 57344.0, True),
    dtypes.float16: (5, 10, 15, 65504.0, True),
    dtypes.bfloat16: (8, 7, 127, float.fromhex("0x1.fep127"), True),
}
_f32, _i32, _i64 = (functools.partial(np.array, dtype=t) for t in (np.float32, np.int32, np.int64))
_EIGHT_BITS = (dtypes.float8_e4m3, dtypes.float8_e4m3fn, dtypes.float8_e5m2)


def _stored(values, dtype):
    target = np.empty(np.shape(values), dtype.storage)
    cast.store(target, np.asarray(values), dtype)
    return target


def _decode(code: int, kind) -> float:
    """The value of a code by the definition of IEEE 754 formats; e4m3fn has numbers in its last binade."""
    exponent_bits, mantissa_bits, bias, largest, has_infinity = _FORMATS[kind]
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    value = (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)
    if exponent == (1 << exponent_bits) - 1 and (has_infinity or mantissa == (1 << mantissa_bits) - 1):
        return sign * math.inf if has_infinity and mantissa == 0 else math.nan
    assert value <= largest
    return sign * value


def _nearest(value: float, kind) -> float:
    """`value` rounded to nearest even on an unbounded grid of the type's step, then bounded by the type."""
    _, mantissa_bits, bias, largest, has_infinity = _FORMATS[kind]
    if math.isnan(value):
        return math.nan
    if math.isinf(value):
        return value if has_infinity else math.nan
    exponent = max(math.frexp(value)[1] - 1 if value else 1 - bias, 1 - bias)
    step = 2.0 ** (exponent - mantissa_bits)
    rounded = round(value / step) * step
    if abs(rounded) > largest:
        return math.copysign(math.inf, value) if has_infinity else math.nan
    return math.copysign(rounded, value)


@pytest.mark.parametrize("kind", _EIGHT_BITS)
def test_every_code_of_8_bits_decodes_to_its_definition(kind):
    codes = np.arange(256, dtype=np.uint8)
    expected = np.array([_decode(int(c), kind) for c in codes], np.float32)
    np.testing.assert_array_equal(cast.to_fp32(codes.view(kind.storage)), expected)


@pytest.mark.parametrize("kind", [*_EIGHT_BITS, dtypes.float16, dtypes.bfloat16])
def test_every_code_decodes_and_encodes_to_itself(kind):
    bits = np.arange(256 if kind.itemsize == 1 else 65536, dtype=f"u{kind.itemsize}")
    values = cast.to_fp32(bits.view(kind.storage))
    again = _stored(values, kind)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(again.view(bits.dtype)[numbers], bits[numbers])
    assert np.isnan(cast.to_fp32(again)[~numbers]).all()


@pytest.mark.parametrize("kind", list(_FORMATS))
def test_rounding_is_to_nearest_even_over_the_whole_range(kind):
    random = np.random.default_rng(1)
    _, mantissa_bits, bias, largest, _ = _FORMATS[kind]
    exponents = random.integers(-bias - mantissa_bits - 2, math.frexp(largest)[1] + 1, 4000)
    values = np.ldexp(random.uniform(-1, 1, 4000), exponents).astype(np.float32)
    codes = np.arange(256, dtype=np.uint8) if kind.itemsize == 1 else random.integers(0, 65536, 4000).astype(np.uint16)
    numbers = np.unique(np.nan_to_num(cast.to_fp32(codes.view(kind.storage)), posinf=0, neginf=0))
    ties = ((numbers[1:].astype(np.float64) + numbers[:-1]) / 2).astype(np.float32)
    edges = _f32([0, -0.0, np.inf, -np.inf, np.nan, largest, -largest])
    values = np.concatenate([values, numbers, ties, edges])
    expected = np.array([_nearest(float(v), kind) for v in values], np.float32)
    np.testing.assert_array_equal(cast.to_fp32(_stored(values, kind)), expected)


def test_beyond_448_e4m3fn_is_nan_unless_it_rounds_down():
    values = _f32([448, 464, 464.00003, 465, -465, np.inf, -np.inf])
    nan = np.nan
    np.testing.assert_array_equal(
        cast.to_fp32(_stored(values, dtypes.float8_e4m3fn)), _f32([448, 448, nan, nan, nan, nan, nan])
    )
    clipped = values.clip(-448, 448)
    np.testing.assert_array_equal(
        cast.to_fp32(_stored(clipped, dtypes.float8_e4m3fn)), _f32([448, 448, 448, 448, -448, 448, -448])
    )


def test_beyond_240_e4m3_and_beyond_57344_e5m2_are_infinite():
    np.testing.assert_array_equal(
        cast.to_fp32(_stored(_f32([240, 247, 248, -1e9]), dtypes.float8_e4m3)), [240, 240, np.inf, -np.inf]
    )
    np.testing.assert_array_equal(
        cast.to_fp32(_stored(_f32([57344, 61439, 61440, -1e9]), dtypes.float8_e5m2)),
        [57344, 57344, np.inf, -np.inf],
    )


def test_all_256_bytes_of_e8m0_round_trip_and_127_is_one():
    codes = np.arange(256, dtype=np.uint8)
    values = cast.to_fp32(codes.view(ml_dtypes.float8_e8m0fnu))
    expected = [2.0 ** (int(c) - 127) for c in codes[:255]]
    np.testing.assert_array_equal(values[:255].astype(np.float64), expected)
    assert values[127] == 1
    assert np.isnan(values[255])
    np.testing.assert_array_equal(_stored(values, dtypes.float8_e8m0fnu).view(np.uint8), codes)


def test_fp4_lanes_are_the_16_numbers_of_e2m1_low_nibble_first():
    numbers = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
    words = np.arange(65536, dtype=np.uint16).reshape(1, -1)
    lanes = decode.lanes(words, dtypes.float4_e2m1fn_x4)
    for lane in range(4):
        np.testing.assert_array_equal(lanes[lane], _f32(numbers)[words[0] >> 4 * lane & 15])


@pytest.mark.parametrize("kind", [dtypes.float8_e4m3fn_x4, dtypes.float8_e5m2_x4])
def test_fp8_lanes_are_the_four_bytes_lowest_first(kind):
    words = np.random.default_rng(2).integers(0, 2**32, (3, 50), dtype=np.uint32)
    lanes = decode.lanes(words, kind).reshape(4, 3, 50)
    for lane in range(4):
        expected = [[_decode(int(w) >> 8 * lane & 255, kind.lane) for w in row] for row in words]
        np.testing.assert_array_equal(lanes[lane], _f32(expected))


def test_tf32_keeps_10_bits_of_mantissa_rounded_to_nearest_even():
    unit = 2.0**-10
    values = _f32([1 + unit / 2, 1 + 3 * unit / 2, 1 + unit * 0.51, 1 - unit / 4, 3.0e38, np.inf, -np.inf])
    expected = _f32([1, 1 + 2 * unit, 1 + unit, 1, 3.0e38, np.inf, -np.inf])
    stored = _stored(values, dtypes.tfloat32)
    np.testing.assert_array_equal(stored[:4], expected[:4])
    np.testing.assert_array_equal(stored[5:], expected[5:])
    assert (stored.view(np.uint32) & 0x1FFF == 0).all()
    assert np.isnan(_stored(_f32([np.nan]), dtypes.tfloat32)).all()


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        (dtypes.int8, [0.5, 1.5, -0.5, -2.5, 127.4, 300, -300, np.nan], [0, 2, 0, -2, 127, 127, -128, 0]),
        (dtypes.uint8, [-1, 254.5, 255.5, np.inf, -np.inf], [0, 254, 255, 255, 0]),
        (dtypes.int16, [32767.6, -32768.6], [32767, -32768]),
        (dtypes.uint16, [65535.4, 65536, -0.4], [65535, 65535, 0]),
        (dtypes.int32, [2147483647, 1e20, -1e20, 16777217.0], [2147483647, 2147483647, -2147483648, 16777216]),
        (dtypes.uint32, [4294967295.0, -5, 4294967040.0], [4294967295, 0, 4294967040]),
    ],
)
def test_floats_to_integers_round_to_nearest_even_and_saturate(dtype, values, expected):
    np.testing.assert_array_equal(_stored(_f32(values), dtype), np.array(expected, dtype.storage))


def test_integers_to_integers_are_exact_and_saturate():
    values = _i32([-5, 0, 127, 128, 16777217, -(2**31), 2**31 - 1])
    np.testing.assert_array_equal(_stored(values, dtypes.int8), np.clip(values, -128, 127))
    np.testing.assert_array_equal(_stored(values, dtypes.uint32), np.maximum(values, 0))
    np.testing.assert_array_equal(_stored(_i64([2**32 - 1, 2**40, -1]), dtypes.uint32), [2**32 - 1, 2**32 - 1, 0])


def test_wide_integers_become_the_nearest_fp32_first():
    values = _i32([16777217, 2**31 - 1, -16777219])
    expected = np.array([16777216, 2147483648, -16777220], np.float64)
    np.testing.assert_array_equal(_stored(values, dtypes.float32), expected)
    np.testing.assert_array_equal(_stored(_i32([8191]), dtypes.bfloat16).astype(np.float32), [8192])


def test_booleans_are_one_and_zero_and_everything_but_zero_is_true():
    flags = np.array([True, False])
    for dtype in dtypes.ALL:
        if dtype.kind in ("float", "integer"):
            np.testing.assert_array_equal(cast.to_fp32(_stored(flags, dtype)), [1, 0])
    np.testing.assert_array_equal(
        _stored(_f32([0, -0.0, 0.25, np.nan, -3]), dtypes.bool_), [False, False, True, True, True]
    )
    np.testing.assert_array_equal(_stored(_i32([0, 7]), dtypes.bool_), [False, True])


def test_every_pair_of_types_agrees_with_a_cast_through_fp32_and_warns_of_nothing():
    kinds = [d for d in dtypes.ALL if d.kind in ("float", "integer", "boolean")]
    small = _f32([0, 1, 2, 3, 100])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for source in kinds:
            values = _stored(small, source)
            for target in kinds:
                expected = _stored(cast.to_fp32(values), target)
                np.testing.assert_array_equal(_stored(values, target), expected, err_msg=f"{source} to {target}")


@pytest.mark.parametrize("kind", [d for d in dtypes.ALL if d.kind in ("float", "integer", "boolean")])
def test_strided_targets_and_read_only_sources_keep_what_lies_between(kind):
    ground = np.zeros((4, 12), kind.storage)
    values = np.broadcast_to(_f32([[1], [0], [2], [3]]), (4, 4))
    cast.store(ground[:, 1::3], values, kind)
    np.testing.assert_array_equal(cast.to_fp32(ground[:, 1::3]), np.minimum(values, 1) if kind == "bool" else values)
    assert not cast.to_fp32(ground[:, ::3]).any()
    assert not cast.to_fp32(ground[:, 2::3]).any()
