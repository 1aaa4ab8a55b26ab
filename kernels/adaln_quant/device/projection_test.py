"""Packed rows in the projection that reads them, unmodified, and against diffusers' own block."""

import pytest
import torch
from diffusers.models.transformers.transformer_wan import WanTransformerBlock

from common import row_mx
from kernels.adaln_quant import adaln_modulate, row_quantize_packed
from kernels.adaln_quant.oracle import cases
from kernels.adaln_quant.oracle.cases import BATCH, NONE, TOKEN, Case
from kernels.qkv_cte import row_mx_qkv_proj
from kernels.qkv_cte.oracle import compare as projection_compare

HIDDEN, HEADS, HEAD_DIM = 256, 2, 128


def projection(seed=5):
    """Weights of variance 1 / H and a bias, and the same packed."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(HIDDEN, HEADS * HEAD_DIM, generator=generator) / HIDDEN**0.5
    bias = torch.randn(1, HEADS * HEAD_DIM, generator=generator)
    codes, scales = row_mx.quantise_columns(weight)
    return weight, bias, (row_mx.pack_weight(codes), scales, bias)


def project(packed, operands, lnc):
    weight, weight_scales, bias = operands
    return row_mx_qkv_proj(
        packed, weight, weight_scales, bias, num_heads=HEADS, head_dim=HEAD_DIM, num_kv_heads=0, lnc=lnc
    )


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("modulation", [NONE, BATCH, TOKEN])
def test_the_projection_takes_the_rows(modulation, lnc):
    """Exact for the codes given, and near the unquantised projection of the exact rows."""
    case = Case("projection", 130, HIDDEN, batch=2, modulation=modulation)
    operands = cases.normal_operands(case)
    if modulation is NONE:
        packed = row_quantize_packed(operands.x, lnc=lnc)
    else:
        x, scale, shift = operands.tensors
        packed = adaln_modulate(x, scale, shift, quant="row", lnc=lnc)
    weight, bias, projected_by = projection()
    result = project(packed, projected_by, lnc)
    errors = projection_compare.compare(result, packed, *projected_by)
    assert errors.wrong_nonfinite == 0
    assert errors.max_ulps <= projection_compare.MAX_ULPS
    unquantised = operands.exact() @ weight.double() + bias.double()
    assert float((result.double() - unquantised).norm() / unquantised.norm()) <= 0.05


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("norm", ["norm1", "norm2", "norm3"])
def test_diffusers_block(norm, per_token):
    """Each norm of a WanTransformerBlock, as its forward computes it; norm2 has weights instead of a modulation."""
    torch.manual_seed(7)
    block = WanTransformerBlock(HIDDEN, 512, HEADS, cross_attn_norm=True)
    torch.nn.init.normal_(block.norm2.weight, mean=1.0, std=0.1)
    torch.nn.init.normal_(block.norm2.bias, std=0.1)
    batch, seqlen = 2, 34
    hidden_states = (torch.randn(batch, seqlen, HIDDEN) * 2 + 0.3).bfloat16()
    temb = torch.randn(batch, seqlen, 6, HIDDEN) if per_token else torch.randn(batch, 6, HIDDEN)
    with torch.no_grad():
        table = block.scale_shift_table.unsqueeze(0) if per_token else block.scale_shift_table
        shift_msa, scale_msa, _, c_shift_msa, c_scale_msa, _ = (table + temb).unbind(dim=-2)
        if norm == "norm2":
            expected = block.norm2(hidden_states.float())
            scale, shift = (v.expand(batch, HIDDEN) for v in (block.norm2.weight - 1, block.norm2.bias))
        else:
            scale, shift = (scale_msa, shift_msa) if norm == "norm1" else (c_scale_msa, c_shift_msa)
            gain, offset = (v if per_token else v[:, None] for v in (scale, shift))
            expected = getattr(block, norm)(hidden_states.float()) * (1 + gain) + offset
    result = adaln_modulate(hidden_states, scale, shift, block.norm1.eps)
    assert float((result != expected.bfloat16()).float().mean()) <= 1e-3
    torch.testing.assert_close(result.float(), expected, rtol=2.0**-8, atol=1e-6)
    codes, scales = row_mx.unpack_rows(adaln_modulate(hidden_states, scale, shift, block.norm1.eps, "row"))
    # Half a step of fp8: 2**-4 of a normal code, 2**-10 of a subnormal one.
    bound = torch.maximum(expected.abs() * 2.0**-4, scales * 2.0**-10)
    assert bool(((codes.float() * scales - expected).abs() <= bound * 1.0001).all())
