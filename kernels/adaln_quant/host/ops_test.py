"""The custom ops: torch's own checks of schema and fakes, and a compiled call."""

import pytest
import torch

from kernels.adaln_quant import adaln_modulate, row_quantize_packed
from kernels.adaln_quant.host import ops
from kernels.adaln_quant.oracle import cases
from kernels.adaln_quant.oracle.cases import BATCH, TOKEN, Case

CHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")


def operands(modulation=BATCH):
    return cases.normal_operands(Case("ops", 6, 132, batch=2, modulation=modulation)).tensors


def same_bits(one, other):
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("modulation", [BATCH, TOKEN])
@pytest.mark.parametrize("quant", ["row", None])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_modulate(modulation, quant, dtype):
    x, scale, shift = operands(modulation)
    x = x.to(dtype)
    torch.library.opcheck(ops.modulate, (x, scale, shift), {"quant": quant, "lnc": 1}, test_utils=CHECKS)
    found = torch.ops.adaln_quant.modulate(x, scale, shift, 0.5, quant, lnc=1)
    assert same_bits(found, adaln_modulate(x, scale, shift, 0.5, quant, lnc=1))


def test_row_quantize_packed():
    x = operands()[0]
    torch.library.opcheck(ops.row_quantize_packed, (x,), test_utils=CHECKS)
    assert same_bits(torch.ops.adaln_quant.row_quantize_packed(x), row_quantize_packed(x))


class Layer(torch.nn.Module):
    """A caller: both kernels with an operation of torch between them."""

    def __init__(self, scale, shift):
        super().__init__()
        self.scale, self.shift = torch.nn.Parameter(scale), shift

    def forward(self, x):
        modulated = adaln_modulate(x, self.scale, self.shift)
        return row_quantize_packed(torch.nn.functional.gelu(modulated))


def called(graph):
    return [str(node.target).removesuffix(".default") for node in graph.nodes if "adaln_quant" in str(node.target)]


def test_a_compiled_layer_calls_the_ops():
    x, scale, shift = operands()
    layer = Layer(scale, shift)
    seen: list[str] = []

    def backend(graph, _):
        seen.extend(called(graph.graph))
        return graph

    found = torch.compile(layer, backend=backend, fullgraph=True)(x)
    assert seen == ["adaln_quant.modulate", "adaln_quant.row_quantize_packed"]
    assert same_bits(found, layer(x))
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)(x)
    assert same_bits(compiled, found)
    assert not compiled.requires_grad


@pytest.mark.parametrize("of_rows", [False, True])
def test_what_is_compiled_has_no_gradient_either(of_rows):
    """As eagerly; the op alone would ask for its gradient's formula."""
    x, scale, shift = operands()

    def layer(x):
        return row_quantize_packed(x) if of_rows else adaln_modulate(x, scale, shift)

    traced = torch.compile(layer, backend="aot_eager", fullgraph=True)(x.clone().requires_grad_())
    assert same_bits(traced, layer(x))
    assert not traced.requires_grad


@pytest.mark.parametrize("strict", [False, True])
def test_export_with_a_sequence_length_that_stays_open(strict):
    x, scale, shift = operands()
    layer = Layer(scale, shift)
    tokens = torch.export.Dim("tokens", min=2, max=512)
    exported = torch.export.export(layer, (x,), dynamic_shapes={"x": {1: tokens}}, strict=strict)
    assert called(exported.graph) == ["adaln_quant.modulate", "adaln_quant.row_quantize_packed"]
    longer = cases.normal_operands(Case("longer", 130, 132, batch=2)).x
    for rows in (x, longer):
        assert same_bits(exported.module()(rows), layer(rows))


def test_bad_input_is_refused_by_name():
    x, scale, shift = operands()
    with pytest.raises(ValueError, match=r"scale is \[2, 128\]; accepted: \[2, 132\]"):
        torch.ops.adaln_quant.modulate(x, scale[:, :128], shift)
