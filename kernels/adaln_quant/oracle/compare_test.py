"""The measure of errors sees what it should: whoever passes has every byte in its place."""

import dataclasses

import pytest
import torch

from common import row_mx
from kernels.adaln_quant.oracle import cases, compare
from kernels.adaln_quant.oracle.cases import NONE, Case, Operands

CASE = Case("compare", 6, 132, batch=2)


def packed_of(operands):
    return row_mx.row_quantise_packed(operands.exact().float())


def test_packed_exact_rows_pass():
    operands = cases.normal_operands(CASE)
    errors = compare.compare(packed_of(operands), operands)
    assert errors.accepted
    assert errors.roundings <= 1.5
    assert errors.scale_roundings <= 1.5


def test_rounded_exact_rows_pass():
    operands = cases.normal_operands(CASE)
    errors = compare.compare(operands.exact().bfloat16(), operands)
    assert errors.accepted
    assert errors.roundings == 0.0


@pytest.mark.parametrize("place", [(0, 0, 0), (1, 5, 131), (0, 3, 64)])
def test_a_code_one_step_off_fails(place):
    operands = cases.normal_operands(CASE)
    packed = packed_of(operands)
    packed.view(torch.uint8)[place] ^= 1
    assert not compare.compare(packed, operands).accepted


@pytest.mark.parametrize("place", [(0, 0, 0), (1, 5, 131)])
def test_a_bf16_one_step_off_fails(place):
    operands = cases.normal_operands(CASE)
    result = operands.exact().bfloat16()
    result.view(torch.int16)[place] ^= 1
    assert not compare.compare(result, operands).accepted


def test_a_scale_off_by_little_fails():
    """2**-19 of it is 32 roundings."""
    operands = cases.normal_operands(dataclasses.replace(CASE, modulation=NONE))
    codes, scales = row_mx.unpack_rows(packed_of(operands))
    scales[1, 4] *= 1 + 2.0**-19
    assert not compare.compare(row_mx.pack_rows(codes, scales), operands).accepted


def test_swapped_rows_and_columns_fail():
    operands = cases.normal_operands(CASE)
    packed = packed_of(operands)
    for axis, pair in ((0, (0, 1)), (1, (2, 3)), (2, (7, 8))):
        order = torch.arange(packed.shape[axis])
        order[list(pair)] = order[list(pair)].flip(0)
        swapped = packed.view(torch.uint8).index_select(axis, order).view(torch.float8_e4m3fn)
        assert not compare.compare(swapped, operands).accepted, axis


@pytest.mark.parametrize("byte", [(0, 2, 5), (0, 2, 135)])
def test_nan_fails(byte):
    """A NaN code, and the top byte of a scale that makes it one with what is below."""
    operands = cases.normal_operands(CASE)
    packed = packed_of(operands)
    packed.view(torch.uint8)[byte] = 0x7F
    packed.view(torch.uint8)[0, 2, 134] |= 0x81 if byte[2] == 135 else 0
    errors = compare.compare(packed, operands)
    assert errors.nonfinite > 0
    assert not errors.accepted


def test_wrong_eps_fails():
    operands = cases.normal_operands(CASE)
    operands = Operands((operands.x.float() * 1e-3).bfloat16(), operands.scale, operands.shift)
    assert not compare.compare(packed_of(operands), operands, eps=1e-5).accepted


def test_another_shape_or_type_is_refused():
    operands = cases.normal_operands(CASE)
    for result in (packed_of(operands)[:, :5], operands.exact().float()):
        with pytest.raises(ValueError, match=r"^result is \[2, \d, \d+\] torch\..*; accepted: "):
            compare.compare(result, operands)
