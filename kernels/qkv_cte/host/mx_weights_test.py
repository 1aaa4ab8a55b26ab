"""MXFP8 weights against torchao, and through the kernel."""

import dataclasses

import pytest
import torch
from torchao.prototype.mx_formats import config as mx_config
from torchao.prototype.mx_formats import mx_tensor

from common import row_mx
from kernels.qkv_cte.host.entry import qkv
from kernels.qkv_cte.host.interface import QuantizationType
from kernels.qkv_cte.host.mx_weights import mx_quantise_weight
from kernels.qkv_cte.oracle import qkv_reference
from kernels.qkv_cte.oracle.qkv_cases import QKVCase, random_call

E4M3 = torch.float8_e4m3fn


def weight_of_all_sizes():
    generator = torch.Generator().manual_seed(3)
    w = torch.randn(256, 96, generator=generator)
    return (w * torch.exp2(torch.randint(-100, 100, (8, 96), generator=generator)).repeat_interleave(32, 0)).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_codes_and_scales_are_torchaos(dtype):
    w = weight_of_all_sizes().to(dtype)
    w[:32, 0] = 0.0
    packed, scales = mx_quantise_weight(w)
    theirs = mx_tensor.MXTensor.to_mx(
        w.T.contiguous(), E4M3, block_size=32, scaling_mode=mx_config.ScaleCalculationMode.FLOOR
    )
    assert torch.equal(row_mx.unpack_weight(packed).T.float(), theirs.qdata.float())
    assert torch.equal(scales.view(torch.uint8).T, theirs.scale.view(torch.uint8))


def test_blocks_too_small_for_a_scale_of_their_own_take_the_smallest():
    """2**-127: below 2**-119, where torchao stops at fp32's smallest normal number instead."""
    w = torch.linspace(-1, 1, 256).reshape(128, 2) * torch.tensor([2.0**-120, 2.0**-124])
    packed, scales = mx_quantise_weight(w)
    assert not scales.view(torch.uint8).any()
    expected = (w.double() * 2.0**127).float().to(E4M3)
    assert torch.equal(row_mx.unpack_weight(packed).float(), expected.float())
    assert expected.float().abs().max() == 128


def test_a_call_multiplies_what_was_quantised():
    """The exact product with the matrix itself differs by what fp8 takes: 2**-4 of a value at most, each."""
    case = QKVCase("weights", 100, 256, 3, 1, 64, quantization=QuantizationType.MXFP8)
    w = torch.randn(256, case.width, generator=torch.Generator().manual_seed(1)) / 16
    codes, scales = mx_quantise_weight(w)
    call = dataclasses.replace(random_call(case), fused_qkv_weights=codes, qkv_w_scale=scales)
    exact = qkv_reference.block_quantised(call.input.double()) @ w.double()
    result = qkv(**vars(call), lnc=1)
    assert (result.double() - exact).norm() <= 2.0**-4 * exact.norm()
    # The largest of a block may saturate: 448 stands for anything below 512.
    assert (qkv_reference.weights(call) - w.double()).abs().max() <= 2.0**-3 * w.abs().max()


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        (None, TypeError, "weight is NoneType; accepted: a tensor of torch.bfloat16, torch.float16, torch.float32"),
        (torch.zeros(128, 2, dtype=torch.int8), TypeError, "weight is torch.int8; accepted: a tensor of"),
        (torch.zeros(96, 2), ValueError, "weight is \\[96, 2\\]; accepted: .* H a multiple of 128"),
        (torch.zeros(128), ValueError, "weight is \\[128\\]; accepted"),
        (torch.zeros(0, 4), ValueError, "weight is \\[0, 4\\]; accepted"),
        (torch.zeros(128, 3).index_fill(1, torch.tensor([2]), torch.inf), ValueError, "inf at row 0, column 2"),
    ],
)
def test_bad_weights_are_refused(weight, error, message):
    with pytest.raises(error, match=message):
        mx_quantise_weight(weight)
