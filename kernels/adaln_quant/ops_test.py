"""The custom ops: torch's own checks of schema and fakes, and a compiled call."""

import pytest
import torch

from kernels.adaln_quant import cases, ops, shim
from kernels.adaln_quant.cases import BATCH, TOKEN, Case

CHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")


def operands(modulation=BATCH):
    return cases.normal_operands(Case("ops", 6, 132, batch=2, modulation=modulation)).tensors


def same_bits(one, other):
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("modulation", [BATCH, TOKEN])
@pytest.mark.parametrize("quant", ["row", None])
def test_modulate(modulation, quant):
    call = operands(modulation)
    torch.library.opcheck(ops.modulate, call, {"quant": quant, "lnc": 1}, test_utils=CHECKS)
    found = torch.ops.adaln_quant.modulate(*call, 0.5, quant, lnc=1)
    assert same_bits(found, shim.adaln_modulate(*call, 0.5, quant, lnc=1))


def test_row_quantize_packed():
    x = operands()[0]
    torch.library.opcheck(ops.row_quantize_packed, (x,), test_utils=CHECKS)
    assert same_bits(torch.ops.adaln_quant.row_quantize_packed(x), shim.row_quantize_packed(x))


def test_a_compiled_layer_calls_the_ops():
    @torch.compile(backend="aot_eager", fullgraph=True)
    def layer(x, scale, shift):
        modulated = torch.ops.adaln_quant.modulate(x, scale, shift)
        return torch.ops.adaln_quant.row_quantize_packed(torch.nn.functional.gelu(modulated))

    call = operands()
    expected = shim.row_quantize_packed(torch.nn.functional.gelu(shim.adaln_modulate(*call)))
    assert same_bits(layer(*call), expected)


def test_bad_input_is_refused_by_name():
    x, scale, shift = operands()
    with pytest.raises(ValueError, match=r"scale is \[2, 128\]; accepted: \[2, 132\]"):
        torch.ops.adaln_quant.modulate(x, scale[:, :128], shift)
