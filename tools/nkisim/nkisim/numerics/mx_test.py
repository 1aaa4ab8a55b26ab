"""quantize against torchao's FLOOR mode bit for bit, and against the field reports' values."""

import numpy as np
import pytest
import torch
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import to_mx

from nkisim import dtypes
from nkisim.numerics import decode, mx

_KINDS = {dtypes.float8_e4m3fn_x4: torch.float8_e4m3fn, dtypes.float8_e5m2_x4: torch.float8_e5m2}
_LARGEST_BF16 = float.fromhex("0x1.fep127")


def _by_torchao(values, kind):
    """torchao quantises rows of 32; a block here is 8 partitions x 4 elements."""
    partitions, free = values.shape
    blocks = values.reshape(partitions // 8, 8, free // 4, 4).transpose(0, 2, 1, 3)
    rows = torch.from_numpy(np.ascontiguousarray(blocks).reshape(-1, 32))
    scales, codes = to_mx(rows, _KINDS[kind], 32, ScaleCalculationMode.FLOOR)
    codes = codes.view(torch.uint8).numpy().reshape(partitions // 8, free // 4, 8, 4).transpose(0, 2, 1, 3)
    return codes.reshape(partitions, free), scales.view(torch.uint8).numpy().reshape(partitions // 8, free // 4)


def _codes(words):
    return np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1)


def _assert_equal_to_torchao(values, kind):
    words, scales = mx.quantize(values, kind)
    codes, expected_scales = _by_torchao(values, kind)
    np.testing.assert_array_equal(scales, expected_scales)
    mine, theirs = (c.view(kind.lane.storage).astype(np.float32) for c in (_codes(words), codes))
    np.testing.assert_array_equal(np.isnan(mine), np.isnan(theirs))
    numbers = ~np.isnan(mine)
    np.testing.assert_array_equal(_codes(words)[numbers], codes[numbers])


def _bf16(values):
    return torch.from_numpy(np.float32(values)).bfloat16().float().numpy()


def _block(*values):
    block = np.zeros((32, 4), np.float32)
    block.reshape(4, 8, 4)[0].reshape(-1)[: len(values)] = values
    return block


@pytest.mark.parametrize("kind", list(_KINDS))
@pytest.mark.parametrize("spread", [0.0, 3.0, 30.0])
def test_random_values_match_torchao(kind, spread):
    random = np.random.default_rng(3)
    values = random.standard_normal((128, 212)) * 2 ** (spread * random.standard_normal((128, 212)))
    with np.errstate(over="ignore"):
        _assert_equal_to_torchao(_bf16(values.astype(np.float32)), kind)


@pytest.mark.parametrize("kind", list(_KINDS))
def test_every_bit_pattern_of_bf16_and_of_fp16_matches_torchao(kind):
    random = np.random.default_rng(4)
    patterns = random.permutation(np.arange(65536, dtype=np.uint16))
    bf16 = torch.from_numpy(patterns.view(np.int16)).view(torch.bfloat16).float().numpy()
    fp16 = patterns.view(np.float16).astype(np.float32)
    for values in (bf16, fp16, np.sort(np.abs(bf16)), np.sort(fp16)):
        _assert_equal_to_torchao(values.reshape(128, 512), kind)


@pytest.mark.parametrize("kind", list(_KINDS))
def test_zeros_subnormals_and_the_largest_numbers_match_torchao(kind):
    smallest = float(torch.finfo(torch.bfloat16).smallest_normal)
    for value in (0.0, smallest, smallest / 2, smallest / 128, smallest * 256, _LARGEST_BF16, -_LARGEST_BF16):
        _assert_equal_to_torchao(_bf16(_block(value, value / 2, value / 64)), kind)


def test_zeros_get_the_smallest_scale():
    words, scales = mx.quantize(np.zeros((32, 8), np.float32), dtypes.float8_e4m3fn_x4)
    assert not words.any()
    assert not scales.any()


@pytest.mark.parametrize("kind", list(_KINDS))
def test_nan_marks_its_block_only_and_infinity_saturates(kind):
    values = np.ones((32, 8), np.float32)
    values[3, 1] = np.nan
    values[9, 5] = -np.inf
    _assert_equal_to_torchao(values, kind)
    words, scales = mx.quantize(values, kind)
    assert (scales == 255).tolist() == [[True, False], [False, False], [False, False], [False, False]]
    lanes = decode.lanes(words, kind).reshape(4, 32, 2)
    assert lanes[1, 9, 1] == {dtypes.float8_e4m3fn_x4: -448, dtypes.float8_e5m2_x4: -57344}[kind]
    decoded = decode.apply_scales(lanes.reshape(128, 2), scales).reshape(4, 32, 2)
    assert np.isnan(decoded[:, :8, 0]).all()
    assert not np.isnan(decoded[:, 8:]).any()
    assert (decoded[:, 16:] == 1).all()


def test_amax_957_gets_byte_128_and_largest_code_448():
    words, scales = mx.quantize(_block(956, 3), dtypes.float8_e4m3fn_x4)
    exact, exact_scales = mx.quantize(_block(957, 3), dtypes.float8_e4m3fn_x4)
    assert scales[0, 0] == exact_scales[0, 0] == 128
    assert (
        decode.lanes(words, dtypes.float8_e4m3fn_x4).max() == decode.lanes(exact, dtypes.float8_e4m3fn_x4).max() == 448
    )
    assert decode.apply_scales(decode.lanes(exact, dtypes.float8_e4m3fn_x4), exact_scales).max() == 896


def test_amax_511_9_in_e5m2_gives_448():
    words, scales = mx.quantize(_block(511.9), dtypes.float8_e5m2_x4)
    assert decode.apply_scales(decode.lanes(words, dtypes.float8_e5m2_x4), scales).max() == 448


def test_quantised_values_are_within_half_a_step_unless_saturated():
    values = _bf16(np.random.default_rng(5).standard_normal((64, 96)))
    for kind, mantissa_bits, largest in ((dtypes.float8_e4m3fn_x4, 3, 1.75), (dtypes.float8_e5m2_x4, 2, 1.75)):
        words, scales = mx.quantize(values, kind)
        decoded = decode.apply_scales(decode.lanes(words, kind), scales).reshape(4, 64, 24)
        back = decoded.transpose(1, 2, 0).reshape(64, 96)
        blocks = np.abs(values).reshape(8, 8, 24, 4).max(axis=(1, 3))
        top = 2.0 ** np.floor(np.log2(blocks))
        step = np.repeat(np.repeat(top, 8, 0), 4, 1) * 2.0**-mantissa_bits
        limit = np.repeat(np.repeat(top, 8, 0), 4, 1) * largest
        assert (np.abs(back - values.clip(-limit, limit)) <= step / 2).all()
