"""The comparison against numbers worked out by hand and against plain Python."""

import math

import pytest
import torch

from common import row_mx
from kernels.qkv_cte.oracle import cases, compare, reference
from kernels.qkv_cte.oracle.cases import Case

FP8 = torch.float8_e4m3fn


def single(terms, scale=1.0, bias=None):
    """Operands of one token and one column whose exact output is `scale * sum(terms) + bias`."""
    codes = torch.zeros(1, 1, 128)
    codes[0, 0, : len(terms)] = torch.tensor(terms)
    packed = row_mx.pack_rows(codes.to(FP8), torch.tensor([[[scale]]]))
    weight = row_mx.pack_weight(torch.ones(128, 1).to(FP8))
    return packed, weight, torch.ones(1, 1), None if bias is None else torch.tensor([[bias]])


def result(value):
    return torch.tensor([[[value]]], dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("got", "terms", "bias", "ulps"),
    [
        (1.0, [1.0], None, 0.0),
        (1.0078125, [1.0], None, 1.0),  # one ulp above 1 is 2**-7
        (0.99609375, [1.0], None, 0.5),  # one below is 2**-8, half an ulp of [1, 2)
        (-1.0078125, [-1.0], None, 1.0),
        (3.0, [2.0, 1.0], None, 0.0),
        (3.03125, [2.0, 1.0], None, 2.0),
        (1.0, [0.5], 0.50390625, 0.5),  # a tie: 1 + 2**-8
        (1.0078125, [0.5], 0.50390625, 0.5),
    ],
)
def test_ulps(got, terms, bias, ulps):
    errors = compare.compare(result(got), *single(terms, bias=bias))
    assert errors.max_ulps == ulps
    assert errors.wrong_nonfinite == 0
    assert errors.worst == (0, 0)


@pytest.mark.parametrize("value", [1.0, 1.5, 1.9921875, 0.75, 448.0, 2.0**-100, 2.0**-130, 3e38, 5e-324, 0.0])
def test_ulp_is_the_distance_of_neighbours(value):
    """For bf16 values: the next 16-bit pattern is an ulp away. Others have that of the bf16 below."""
    below = torch.tensor([int.from_bytes(memoryview(bytearray(torch.tensor(value).numpy().tobytes())[2:4]), "little")])
    spacing = 2.0 ** max(math.frexp(value)[1] - 1 - 7, -133) if value else 2.0**-133
    assert compare.bf16_ulp(torch.tensor(value, dtype=torch.float64)).item() == spacing
    low, high = ((below + step).to(torch.int16).view(torch.bfloat16).double().item() for step in (0, 1))
    assert high - low == spacing


@pytest.mark.parametrize("scale", [1.0, 2.0**-20])
def test_near_zero_is_measured_by_its_products(scale):
    """448 - 448 + 2**-9: M = scale * |x| * sqrt(128), so the smallest ulp is 2**-22 of that."""
    operands = single([448.0, -448.0, 2.0**-9], scale)
    smallest = 2.0**-22 * scale * math.sqrt(2 * 448.0**2 + 2.0**-18) * math.sqrt(128)
    assert smallest > scale * 2.0**-9 / 128
    errors = compare.compare(result(1.5 * 2.0**-9 * scale), *operands)
    assert errors.max_ulps == pytest.approx(0.5 * 2.0**-9 * scale / smallest)


def test_near_zero_is_measured_by_its_bias():
    """448 - 448, of which the second is the bias: M = 448 * sqrt(128) + 448."""
    smallest = 2.0**-22 * 448 * (math.sqrt(128) + 1)
    errors = compare.compare(result(2.0**-9), *single([448.0], bias=-448.0))
    assert errors.max_ulps == pytest.approx(2.0**-9 / smallest)
    assert errors.relative_rms == math.inf


def test_the_floor_is_each_outputs_own():
    """A column of tiny scale beside one of large scale is measured as if it were alone."""
    case = Case("columns", 1, 128, 2, "full", head_dim=1, bias_dtype=None)
    operands = cases.normal_operands(case)
    operands.weight_scales[0, 1] *= 2.0**-30
    exact = reference.row_mx_qkv_proj(*operands.tensors)
    got = exact.bfloat16()
    got[0, 0, 1] *= 1 + 2.0**-4
    errors = compare.compare(got, *operands.tensors)
    assert errors.worst == (0, 1)
    assert errors.max_ulps > 7


def test_nearest_rounding_is_at_most_half_an_ulp_and_other_rounding_is_not():
    case = Case("rounding", 300, 256, 2, "full")
    operands = cases.normal_operands(case)
    exact = reference.row_mx_qkv_proj(*operands.tensors)
    nearest = compare.compare(exact.bfloat16(), *operands.tensors)
    assert 0.49 < nearest.max_ulps <= 0.5
    assert 2.0**-10 < nearest.relative_rms < 2.0**-9
    truncated = (exact.float().view(torch.int32) & -65536).view(torch.float32).bfloat16()
    assert 0.9 < compare.compare(truncated, *operands.tensors).max_ulps < 1.01
    without_bias = reference.row_mx_qkv_proj(*operands.tensors[:3]).bfloat16()
    twice = (without_bias.double() + operands.bias).bfloat16()
    assert compare.compare(twice, *operands.tensors).max_ulps > compare.MAX_ULPS


def test_relative_rms():
    packed, weight, scales, _ = single([1.0])
    both = torch.cat([packed, packed], dim=1)
    got = torch.tensor([[[1.0], [1.25]]], dtype=torch.bfloat16)
    errors = compare.compare(got, both, weight, scales, None)
    assert errors.relative_rms == pytest.approx(math.sqrt(0.25**2 / 2))
    assert errors.worst == (1, 0)
    assert errors.max_ulps == 32


def test_places_are_tokens_over_all_batches_and_chunks(monkeypatch):
    monkeypatch.setattr(compare, "TOKENS_AT_ONCE", 4)
    case = Case("chunks", 5, 128, 3, "full", head_dim=3, batch=2)
    operands = cases.normal_operands(case)
    got = reference.row_mx_qkv_proj(*operands.tensors).bfloat16()
    whole = compare.compare(got, *operands.tensors)
    assert whole.max_ulps <= 0.5
    got[1, 2, 5] += 1
    got[0, 4, 1] = torch.nan
    errors = compare.compare(got, *operands.tensors)
    assert errors.worst == (7, 5)
    assert errors.wrong_nonfinite == 1


@pytest.mark.parametrize(
    ("got", "bias", "wrong"),
    [
        (math.nan, math.nan, 0),
        (math.inf, math.inf, 0),
        (-math.inf, -math.inf, 0),
        (math.inf, -math.inf, 1),
        (math.nan, math.inf, 1),
        (math.inf, math.nan, 1),
        (math.nan, 1.0, 1),
        (1.0, math.nan, 1),
        (-math.inf, 1.0, 1),
        (math.inf, 3.4e38, 0),  # beyond the largest bf16 by more than half an ulp
        (3.3895313892515355e38, 3.4e38, 1),
        (3.3895313892515355e38, 3.39e38, 0),
        (math.inf, 3.39e38, 1),
    ],
)
def test_nonfinite_values_must_be_where_they_belong(got, bias, wrong):
    errors = compare.compare(result(got), *single([0.0], bias=bias))
    assert errors.wrong_nonfinite == wrong
    assert math.isfinite(errors.max_ulps)
    assert math.isfinite(errors.relative_rms)


@pytest.mark.parametrize("got", [torch.zeros(1, 1, 1), torch.zeros(1, 1).bfloat16(), torch.zeros(1, 1, 2).bfloat16()])
def test_a_result_of_another_form_is_refused(got):
    with pytest.raises(ValueError, match=r"result is .*; accepted: \[1, 1, 1\] torch.bfloat16"):
        compare.compare(got, *single([1.0]))
