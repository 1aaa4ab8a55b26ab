"""ROW_MX packing against plain Python and numpy, written from the description of the layouts."""

import itertools
import re
import struct

import ml_dtypes
import numpy as np
import pytest
import torch

from common import row_mx

FP8 = torch.float8_e4m3fn


def fp8_value(code):
    """OCP e4m3fn: sign, 4 exponent bits (bias 7), 3 mantissa bits; S.1111.111 is NaN, no infinity."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 0xF, code & 0x7
    if (exponent, mantissa) == (0xF, 0x7):
        return float("nan")
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (8 + mantissa) * 2.0 ** (exponent - 10)


FINITE_CODES = [code for code in range(256) if code & 0x7F != 0x7F]


def fp8_code(value):
    """Nearest finite code; on a tie the one with an even mantissa. The sign bit is that of the value."""
    sign = 0x80 if struct.pack("<d", value)[7] & 0x80 else 0
    magnitudes = range(0x7F)
    return sign | min(magnitudes, key=lambda code: (abs(fp8_value(code) - abs(value)), code & 1))


def quantised_row(row):
    """Codes and scale of one row of np.float32, step by step in fp32 as the rule says."""
    f32 = np.float32
    scale = max(f32(max(abs(value) for value in row)) / f32(448), f32(1e-6))
    inverse = f32(1) / scale
    return [fp8_code(float(f32(value) * inverse)) for value in row], scale


def as_bytes(tensor):
    return tensor.contiguous().view(torch.uint8).numpy()


def random_rows(seed, *shape):
    generator = np.random.default_rng(seed)
    magnitude = 10.0 ** generator.uniform(-9, 9, size=(*shape[:-1], 1))
    return (generator.standard_normal(shape) * magnitude).astype(np.float32)


@pytest.mark.parametrize("shape", [(4,), (1, 4), (7, 12), (2, 3, 20), (1, 1, 1, 8), (5, 516)])
def test_rows_match_the_description_bit_for_bit(shape):
    x = random_rows(sum(shape), *shape)
    codes, scales = row_mx.quantise_rows(torch.from_numpy(x))
    packed = row_mx.row_quantise_packed(torch.from_numpy(x))
    assert (codes.dtype, codes.shape) == (FP8, shape)
    assert (scales.dtype, scales.shape) == (torch.float32, (*shape[:-1], 1))
    assert (packed.dtype, packed.shape) == (FP8, (*shape[:-1], shape[-1] + 4))
    for index in itertools.product(*map(range, shape[:-1])):
        expected_codes, expected_scale = quantised_row(x[index])
        assert as_bytes(codes[index]).tolist() == expected_codes
        assert scales[index].item() == expected_scale
        assert as_bytes(packed[index]).tobytes() == bytes(expected_codes) + struct.pack("<f", expected_scale)


def test_columns_match_the_description_bit_for_bit():
    w = random_rows(3, 9, 12).T.copy()
    codes, scales = row_mx.quantise_columns(torch.from_numpy(w))
    assert (codes.shape, scales.shape) == ((12, 9), (1, 9))
    for column in range(9):
        expected_codes, expected_scale = quantised_row(w[:, column])
        assert as_bytes(codes[:, column]).tolist() == expected_codes
        assert scales[0, column].item() == expected_scale


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_inputs_are_quantised_in_fp32(dtype):
    x = torch.from_numpy(np.random.default_rng(4).standard_normal((6, 32)).astype(np.float32)).to(dtype)
    for narrow, wide in zip(row_mx.quantise_rows(x), row_mx.quantise_rows(x.float()), strict=True):
        assert np.array_equal(as_bytes(narrow), as_bytes(wide))


def test_codes_come_from_a_multiplication_by_the_reciprocal():
    """bf16 inputs often lie half way between two codes, where dividing by the scale rounds the other way."""
    values = np.random.default_rng(9).standard_normal((1000, 512)).astype(ml_dtypes.bfloat16).astype(np.float32)
    amax = np.abs(values).max(axis=1, keepdims=True)
    scales = np.maximum(amax / np.float32(448), np.float32(1e-6))
    product = values * (np.float32(1) / scales)
    expected = product.clip(-448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    quotient = (values / scales).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert (expected != quotient).any()
    found_codes, found_scales = row_mx.quantise_rows(torch.from_numpy(values))
    assert np.array_equal(as_bytes(found_codes), expected)
    assert np.array_equal(found_scales.numpy(), scales)


def test_casts_agree_with_ml_dtypes():
    generator = np.random.default_rng(5)
    values = np.concatenate(
        [
            generator.uniform(-448, 448, 20_000),
            generator.standard_normal(20_000) * 2.0 ** generator.integers(-14, 6, 20_000),
            [fp8_value(code) for code in FINITE_CODES],
            [(fp8_value(code) + fp8_value(code + 1)) / 2 for code in range(0x7E)],
        ]
    ).astype(np.float32)
    expected = values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert np.array_equal(as_bytes(row_mx.to_float8(torch.from_numpy(values))), expected)


@pytest.mark.parametrize(("value", "expected"), [(465.0, 448.0), (-465.0, -448.0), (1e30, 448.0), (448.0, 448.0)])
def test_casts_saturate(value, expected):
    assert row_mx.to_float8(torch.tensor([value])).float().item() == expected


def test_finite_codes_survive_decode_and_encode():
    codes = torch.tensor(FINITE_CODES, dtype=torch.uint8)
    values = codes.view(FP8).float()
    assert values.tolist() == [fp8_value(code) for code in FINITE_CODES]
    assert torch.equal(row_mx.to_float8(values).view(torch.uint8), codes)


def test_all_finite_codes_survive_packing_of_rows():
    codes = torch.tensor([*FINITE_CODES, 0, 0], dtype=torch.uint8).view(FP8).reshape(4, 64)
    scales = torch.tensor([[1.0], [2.0**-100], [3.4e38], [1e-6]])
    unpacked_codes, unpacked_scales = row_mx.unpack_rows(row_mx.pack_rows(codes, scales))
    assert torch.equal(unpacked_codes.view(torch.uint8), codes.view(torch.uint8))
    assert torch.equal(unpacked_scales, scales)


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_rows_with_nan_codes_are_not_packed(code):
    codes = torch.zeros(2, 3, 8, dtype=torch.uint8)
    codes[1, 0, 6] = codes[1, 2, 3] = code
    with pytest.raises(ValueError, match=re.escape("codes must be finite, got nan at index [1, 0, 6] (2 such of 48)")):
        row_mx.pack_rows(codes.view(FP8), torch.ones(2, 3, 1))


def test_all_256_codes_survive_packing_of_weights():
    codes = torch.arange(256, dtype=torch.uint8).view(FP8).reshape(4, 64)
    assert torch.equal(row_mx.unpack_weight(row_mx.pack_weight(codes)).view(torch.uint8), codes.view(torch.uint8))


def test_rows_of_zeros_and_tiny_rows_get_the_smallest_scale():
    x = torch.zeros(3, 8)
    x[1, 3] = 1e-30
    x[2, 3] = 3e-4
    codes, scales = row_mx.quantise_rows(x)
    assert scales.flatten().tolist() == [np.float32(1e-6)] * 3
    assert codes[:2].float().abs().max() == 0
    assert codes[2, 3].float() == 288
    assert torch.isfinite(codes.float()).all()


def test_huge_rows_stay_finite():
    largest = torch.finfo(torch.float32).max
    x = torch.tensor([[largest, -largest, largest / 2, 0.0]])
    codes, scales = row_mx.quantise_rows(x)
    assert codes.float().tolist() == [[448.0, -448.0, 224.0, 0.0]]
    assert torch.isfinite(codes.float() * scales).all()


def test_error_of_a_round_trip_is_that_of_three_mantissa_bits():
    x = torch.from_numpy(random_rows(6, 40, 256)) + 0.1
    codes, scales = row_mx.quantise_rows(x)
    error = (codes.float() * scales - x).abs()
    half_ulp_of_subnormals = scales * 2.0**-10
    assert (error <= torch.maximum(x.abs() * 2.0**-4, half_ulp_of_subnormals) * (1 + 1e-5)).all()


def distinct_scales(count, row):
    """Scales whose exponents all differ within any 29 neighbours: swapping two of them shows."""
    return torch.tensor([2.0 ** ((k + 7 * row) % 29 - 14) for k in range(count)], dtype=torch.float32)


def test_each_row_keeps_its_own_scale():
    codes = torch.ones(4, 29, 8).to(FP8)
    scales = torch.stack([distinct_scales(29, row) for row in range(4)]).unsqueeze(-1)
    packed = row_mx.pack_rows(codes, scales)
    for batch, row in itertools.product(range(4), range(29)):
        tail = as_bytes(packed[batch, row])[-4:].tobytes()
        assert struct.unpack("<f", tail) == (2.0 ** ((row + 7 * batch) % 29 - 14),)
    first = as_bytes(packed[0])
    for one, other in itertools.combinations(range(29), 2):
        swapped = scales[0].clone()
        swapped[[one, other]] = swapped[[other, one]]
        assert not np.array_equal(as_bytes(row_mx.pack_rows(codes[0], swapped)), first)
        assert torch.equal(row_mx.unpack_rows(row_mx.pack_rows(codes[0], swapped))[1], swapped)


def test_each_column_keeps_its_own_scale():
    scales = distinct_scales(29, row=3)
    w = torch.ones(8, 29) * 448 * scales
    _, found = row_mx.quantise_columns(w)
    assert torch.equal(found, scales.clamp(min=1e-6).unsqueeze(0))


@pytest.mark.parametrize(("h", "i"), [(4, 1), (8, 3), (512, 5), (1028, 7)])
def test_weight_layout(h, i):
    """`w[r, i, c] = W[4 r + c, i]`; in H-tile t, partition p, lane c lies row 512 t + 4 p + c."""
    codes = torch.from_numpy(np.random.default_rng(h).integers(0, 256, (h, i), dtype=np.uint8)).view(FP8)
    packed = row_mx.pack_weight(codes)
    assert (packed.dtype, packed.shape) == (FP8, (h // 4, i, 4))
    assert packed.is_contiguous()
    flat, unpacked = as_bytes(packed).reshape(-1), as_bytes(codes)
    for row, column in itertools.product(range(h), range(i)):
        h_tile, partition, lane = row // 512, row % 512 // 4, row % 4
        assert flat[((128 * h_tile + partition) * i + column) * 4 + lane] == unpacked[row, column]
    assert np.array_equal(as_bytes(row_mx.unpack_weight(packed)), unpacked)


def test_inputs_need_not_be_contiguous():
    x = torch.from_numpy(random_rows(7, 8, 12))
    assert np.array_equal(
        as_bytes(row_mx.row_quantise_packed(x.T.contiguous().T)), as_bytes(row_mx.row_quantise_packed(x))
    )
    codes, scales = row_mx.quantise_rows(x)
    wide_codes, wide_scales = codes.repeat(1, 2)[:, :12], scales.repeat(1, 2)[:, :1]
    expected = as_bytes(row_mx.pack_rows(codes, scales))
    assert np.array_equal(as_bytes(row_mx.pack_rows(wide_codes, wide_scales)), expected)
    view = row_mx.pack_rows(codes, scales).repeat(1, 2)[:, :16]
    assert np.array_equal(as_bytes(row_mx.unpack_rows(view)[0]), as_bytes(codes))
    transposed = codes.view(torch.uint8).T.contiguous().T.view(FP8)
    assert np.array_equal(as_bytes(row_mx.pack_weight(transposed)), as_bytes(row_mx.pack_weight(codes)))


def test_inputs_are_left_alone_and_carry_no_gradient():
    x = torch.from_numpy(random_rows(8, 3, 8)).requires_grad_()
    before = x.detach().clone()
    outputs = (row_mx.row_quantise_packed(x), *row_mx.quantise_rows(x), *row_mx.quantise_columns(x.reshape(4, 6)))
    assert torch.equal(x.detach(), before)
    assert not any(output.requires_grad for output in outputs)


CODES = torch.ones(2, 8).to(FP8)
SCALES = torch.ones(2, 1)


def with_entry(tensor, index, value):
    changed = tensor.clone()
    changed[index] = value
    return changed


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: row_mx.quantise_rows(np.ones((2, 8))), TypeError, "x must be .* got ndarray"),
        (
            lambda: row_mx.quantise_rows(torch.ones(2, 8, dtype=torch.float64)),
            TypeError,
            "x must be .* got torch.float64",
        ),
        (
            lambda: row_mx.quantise_rows(torch.ones(2, 8, dtype=torch.int32)),
            TypeError,
            "x must be .* got torch.int32",
        ),
        (lambda: row_mx.quantise_rows(CODES), TypeError, "x must be .* got torch.float8_e4m3fn"),
        (lambda: row_mx.quantise_rows(torch.tensor(1.0)), ValueError, r"x must be \[..., H\], got \[\]"),
        (lambda: row_mx.quantise_rows(torch.ones(0, 8)), ValueError, r"x must not be empty, got \[0, 8\]"),
        (
            lambda: row_mx.quantise_rows(torch.ones(2, 6)),
            ValueError,
            "x must have H a multiple of 4, got H = 6",
        ),
        (
            lambda: row_mx.quantise_rows(with_entry(torch.ones(3, 8), (2, 5), float("nan"))),
            ValueError,
            r"x must be finite, got nan at index \[2, 5\]",
        ),
        (
            lambda: row_mx.row_quantise_packed(with_entry(torch.ones(3, 8), (1, 0), float("-inf"))),
            ValueError,
            r"x must be finite, got -inf at index \[1, 0\]",
        ),
        (lambda: row_mx.quantise_columns(torch.ones(8)), ValueError, r"w must be \[H, I\], got \[8\]"),
        (
            lambda: row_mx.quantise_columns(torch.ones(6, 8)),
            ValueError,
            "w must have H a multiple of 4, got H = 6",
        ),
        (lambda: row_mx.quantise_columns(torch.ones(8, 0)), ValueError, "w must not be empty"),
        (
            lambda: row_mx.quantise_columns(with_entry(torch.ones(4, 3), (3, 1), float("inf"))),
            ValueError,
            r"w must be finite, got inf at index \[3, 1\]",
        ),
        (
            lambda: row_mx.pack_rows(torch.ones(2, 8), SCALES),
            TypeError,
            "codes must be torch.float8_e4m3fn, got",
        ),
        (
            lambda: row_mx.pack_rows(CODES[:, :6], SCALES),
            ValueError,
            "codes must have H a multiple of 4, got H = 6",
        ),
        (lambda: row_mx.pack_rows(CODES, SCALES.bfloat16()), TypeError, "scales must be torch.float32, got"),
        (
            lambda: row_mx.pack_rows(CODES, SCALES.flatten()),
            ValueError,
            r"scales must be \[2, 1\] for codes \[2, 8\], got \[2\]",
        ),
        (
            lambda: row_mx.unpack_rows(CODES.view(torch.uint8)),
            TypeError,
            "packed must be torch.float8_e4m3fn, got",
        ),
        (
            lambda: row_mx.unpack_rows(CODES[:, :4]),
            ValueError,
            r"packed must be \[..., H \+ 4\], .* got \[2, 4\]",
        ),
        (
            lambda: row_mx.unpack_rows(CODES[:, :7]),
            ValueError,
            r"packed must be \[..., H \+ 4\], .* got \[2, 7\]",
        ),
        (lambda: row_mx.pack_weight(CODES), ValueError, "codes must have H a multiple of 4, got H = 2"),
        (
            lambda: row_mx.pack_weight(CODES.reshape(2, 4, 2)),
            ValueError,
            r"codes must be \[H, I\], got \[2, 4, 2\]",
        ),
        (lambda: row_mx.unpack_weight(CODES), ValueError, r"packed must be \[H // 4, I, 4\], got \[2, 8\]"),
        (
            lambda: row_mx.unpack_weight(CODES.reshape(2, 4, 2)),
            ValueError,
            r"packed must be \[H // 4, I, 4\], got \[2, 4, 2\]",
        ),
    ],
)
def test_bad_input_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, -1.0])
def test_scales_must_be_finite_and_positive(value):
    scales = with_entry(torch.ones(1, 7), (0, 5), value)
    message = f"weight_scales must be finite and positive, got {value} at index [0, 5] (1 such of 7)"
    with pytest.raises(ValueError, match=re.escape(message)):
        row_mx.require_scales("weight_scales", scales)
    with pytest.raises(ValueError, match="scales must be finite and positive"):
        row_mx.pack_rows(CODES, with_entry(SCALES, (1, 0), value))
    row_mx.require_scales("weight_scales", torch.tensor([1e-45, 3.4e38]))
