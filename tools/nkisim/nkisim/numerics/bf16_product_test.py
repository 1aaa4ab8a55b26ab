"""The bf16 product loses nothing that fp32 keeps."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkisim import dtypes
from nkisim.numerics import bf16_product, decode, product

_KINDS = dtypes.MX_DATA
pytestmark = pytest.mark.skipif(not bf16_product.available(), reason="this CPU has no bf16 dot products")


def _words(kind: Any, partitions, columns, seed=0, limit=None):
    """Random finite codes; with `limit`, small integers."""
    random = np.random.default_rng((seed, partitions, columns))
    if limit is not None:
        values = random.integers(-limit, limit + 1, (partitions, columns, 4)).astype(kind.lane.storage)
    else:
        codes = np.arange(16 if kind is dtypes.float4_e2m1fn_x4 else 256, dtype=np.uint8).view(kind.lane.storage)
        values = random.choice(codes[np.isfinite(codes.astype(np.float32))], (partitions, columns, 4))
    bits = values.view(np.uint8).astype(np.uint32)
    width = 4 if kind is dtypes.float4_e2m1fn_x4 else 8
    words = np.bitwise_or.reduce([(bits[..., i] & ((1 << width) - 1)) << width * i for i in range(4)])
    return words.astype(kind.storage)


def _numbers(pairs):
    """bf16 pairs [2 * partitions, columns] as fp32 [4 * partitions, columns], lane by lane as `decode` has them."""
    values = pairs.view(ml_dtypes.bfloat16).astype(np.float32).reshape(len(pairs) // 2, 2, -1, 2)
    return values.transpose(1, 3, 0, 2).reshape(2 * len(pairs), -1)


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("neutral", [True, False])
def test_operands_are_the_fp32_ones_bit_for_bit(kind, neutral):
    words = _words(kind, 64, 50)
    exponents = np.random.default_rng(1).integers(81, 160, (8, 50)).astype(np.uint8)
    if neutral:
        exponents[:] = 127
    expected = decode.scaled(words, kind, exponents)
    np.testing.assert_array_equal(_numbers(bf16_product.moving(words, kind, exponents)), expected)
    left = bf16_product.stationary(words, kind, exponents)
    np.testing.assert_array_equal(_numbers(np.ascontiguousarray(left.T)), expected)


@pytest.mark.parametrize("kinds", [(a, b) for a in _KINDS for b in _KINDS])
def test_sums_that_fp32_holds_are_exact(kinds):
    left_words, right_words = (
        _words(kind, 128, n, seed, limit=2) for seed, (kind, n) in enumerate(zip(kinds, (128, 512), strict=True))
    )
    scales = [np.random.default_rng(n).integers(125, 130, (16, n)).astype(np.uint8) for n in (128, 512)]
    a, b = (
        decode.scaled(w, k, s).astype(np.float64)
        for w, k, s in zip((left_words, right_words), kinds, scales, strict=True)
    )
    target = np.empty((128, 512), np.float32)
    operands = (
        bf16_product.stationary(left_words, kinds[0], scales[0]),
        bf16_product.moving(right_words, kinds[1], scales[1]),
    )
    for onto in (False, True):
        bf16_product.accumulate(*operands, target, onto)
        np.testing.assert_array_equal(target, (2 if onto else 1) * (a.T @ b))


def test_one_product_at_a_time_is_exact_for_every_pair_of_codes():
    """A contraction with one term that is not zero: nothing is rounded, so that every pair must come out exactly."""
    pairs: Any = ((dtypes.float8_e4m3fn_x4, dtypes.float8_e5m2_x4), (dtypes.float8_e5m2_x4, dtypes.float8_e5m2_x4))
    for kinds in pairs:
        codes = np.arange(256, dtype=np.uint32)
        words = np.zeros((2, 32, 256), np.uint32)
        words[:, 5] = codes << 8
        exponents = np.full((4, 256), 81, np.uint8)
        left, right = (
            bf16_product.stationary(words[0], kinds[0], exponents),
            bf16_product.moving(words[1], kinds[1], exponents),
        )
        got = np.empty((256, 256), np.float32)
        bf16_product.accumulate(left, right, got, False)
        values = [codes.astype(np.uint8).view(k.lane.storage).astype(np.float64) * 2.0 ** (81 - 127) for k in kinds]
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(got, np.multiply.outer(*values))


@pytest.mark.parametrize(
    ("rows", "columns", "partitions"), [(128, 512, 128), (2, 1, 32), (34, 77, 96), (128, 1000, 64)]
)
@pytest.mark.parametrize("strided", [False, True])
def test_random_products_are_as_close_as_fp32(rows, columns, partitions, strided):
    kind = dtypes.float8_e4m3fn_x4
    words = [_words(kind, partitions, n, n) for n in (rows, columns)]
    scales = [
        np.random.default_rng(n).integers(110, 140, (partitions // 8, n)).astype(np.uint8) for n in (rows, columns)
    ]
    a, b = (decode.scaled(w, kind, s) for w, s in zip(words, scales, strict=True))
    ground = np.zeros((rows, 3 * columns), np.float32)
    target = ground[:, 1::3] if strided else ground[:, columns : 2 * columns]
    left, right = bf16_product.stationary(words[0], kind, scales[0]), bf16_product.moving(words[1], kind, scales[1])
    bf16_product.accumulate(left, right, target, False)
    plain = np.empty((rows, columns), np.float32)
    product.accumulate(a, b, plain, False)
    exact, magnitude = a.T.astype(np.float64) @ b, np.abs(a.T).astype(np.float64) @ np.abs(b)
    bound = magnitude * len(a) * 2.0**-24
    assert (np.abs(target - exact) <= bound).all()
    assert (np.abs(plain - exact) <= bound).all()
    target[:] = 0
    assert not ground.any()


def test_scales_that_bf16_cannot_take_leave_the_operand_to_fp32_unless_their_blocks_are_zero():
    kind = dtypes.float8_e5m2_x4
    words, exponents = _words(kind, 32, 16), np.full((4, 16), 127, np.uint8)
    assert bf16_product.moving(words, kind, exponents).size
    exponents[2, 3] = 80
    assert not bf16_product.moving(words, kind, exponents).size
    words[16:24, 3] = 0
    assert bf16_product.moving(words, kind, exponents).size
    exponents[:, 4] = 255
    assert np.isnan(_numbers(bf16_product.moving(words, kind, exponents)).reshape(4, 32, 16)[:, :, 4]).all()
