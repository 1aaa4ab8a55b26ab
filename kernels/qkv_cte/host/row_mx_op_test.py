"""The custom op: torch's own checks of schema and fakes, compiled and exported calls."""

import dataclasses

import pytest
import torch

from kernels.qkv_cte import Choice, NormType, QKNormConfig, QKVOutputLayout, row_mx_qkv_proj
from kernels.qkv_cte.device.config import Flow
from kernels.qkv_cte.oracle.cases import Case
from kernels.qkv_cte.oracle.norm_rope_cases import NormRopeCase, normal_operands

CHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
ACROSS_HEADS = NormType.RMS_NORM_ACROSS_HEADS
CALLS = (
    NormRopeCase(Case("plain", 6, 256, 2, "full", num_kv_heads=1, lnc=2), q_norm=False, k_norm=False, rope=False),
    NormRopeCase(Case("all", 130, 128, 2, "full", num_kv_heads=1, head_dim=64, batch=2, lnc=2)),
    NormRopeCase(Case("nbsd", 6, 128, 3, "full", lnc=2), k_norm=False, rope=False, nbsd=True),
)


def shim_call(call):
    """Positional and named arguments of the public function."""
    operands, case = normal_operands(call), call.case
    norms = None
    if call.q_norm:
        norms = QKNormConfig(ACROSS_HEADS, ACROSS_HEADS if operands.k_gamma is not None else None, eps=call.eps)
    return (*operands.projection.tensors, case.num_heads, case.head_dim, case.num_kv_heads), {
        "fused_rope": call.rope,
        "cos_cache": operands.cos,
        "sin_cache": operands.sin,
        "qk_norm_pre_rope": norms,
        "qk_norm_pre_rope_q_gamma": operands.q_gamma,
        "qk_norm_pre_rope_k_gamma": operands.k_gamma,
        "output_layout": QKVOutputLayout.NBSd if call.nbsd else QKVOutputLayout.BSD,
        "lnc": case.lnc,
    }


def op_call(call):
    """The same for the op."""
    operands, case = normal_operands(call), call.case
    return (*operands.projection.tensors, case.num_heads, case.head_dim, case.num_kv_heads), {
        "fused_rope": call.rope,
        "cos_cache": operands.cos,
        "sin_cache": operands.sin,
        "qk_norm_pre_rope_q": "RMS_NORM_ACROSS_HEADS" if call.q_norm else None,
        "qk_norm_pre_rope_k": "RMS_NORM_ACROSS_HEADS" if operands.k_gamma is not None else None,
        "qk_norm_pre_rope_eps": call.eps,
        "qk_norm_pre_rope_q_gamma": operands.q_gamma,
        "qk_norm_pre_rope_k_gamma": operands.k_gamma,
        "output_layout": "NBSd" if call.nbsd else "BSD",
        "lnc": case.lnc,
    }


@pytest.fixture
def allclose_of_fp8(monkeypatch):
    """opcheck compares inputs before and after with torch.allclose, which does not know fp8: bits are stricter."""
    plain = torch.allclose

    def allclose(before, after, **tolerances):
        if before.dtype is torch.float8_e4m3fn:
            return torch.equal(before.view(torch.uint8), after.view(torch.uint8))
        return plain(before, after, **tolerances)

    monkeypatch.setattr(torch, "allclose", allclose)


@pytest.mark.usefixtures("allclose_of_fp8")
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.case.name)
def test_opcheck(call):
    arguments, named = op_call(call)
    torch.library.opcheck(torch.ops.qkv_cte.row_mx_qkv_proj.default, arguments, named, test_utils=CHECKS)
    expected_arguments, expected_named = shim_call(call)
    expected = row_mx_qkv_proj(*expected_arguments, **expected_named)
    assert torch.equal(torch.ops.qkv_cte.row_mx_qkv_proj(*arguments, **named), expected)


class Layer(torch.nn.Module):
    """A caller: the projection between two operations of torch."""

    def __init__(self, call):
        super().__init__()
        (self.x, *self.positional), self.named = shim_call(call)

    def forward(self, x):
        return row_mx_qkv_proj(x, *self.positional, **self.named) * 2


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.case.name)
def test_a_compiled_layer_calls_the_op(call):
    layer = Layer(call)
    seen: list[str] = []

    def backend(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes if "qkv_cte" in str(node.target))
        return graph

    found = torch.compile(layer, backend=backend, fullgraph=True)(layer.x)
    assert seen == ["qkv_cte.row_mx_qkv_proj"]
    assert torch.equal(found, layer(layer.x))
    assert torch.equal(torch.compile(layer, backend="aot_eager", fullgraph=True)(layer.x), found)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.case.name)
def test_export(call, strict):
    layer = Layer(call)
    exported = torch.export.export(layer, (layer.x,), strict=strict)
    assert [str(n.target) for n in exported.graph.nodes if "qkv_cte" in str(n.target)] == [
        "qkv_cte.row_mx_qkv_proj.default"
    ]
    assert torch.equal(exported.module()(layer.x), layer(layer.x))


def test_a_sequence_length_may_stay_open():
    """Exported once, run at another length."""
    layer, longer = Layer(CALLS[0]), normal_operands(norm_rope_at(CALLS[0], 130))
    tokens = torch.export.Dim("tokens", min=2, max=512)
    exported = torch.export.export(layer, (layer.x,), dynamic_shapes={"x": {1: tokens}})
    x = longer.projection.packed_hidden
    assert torch.equal(exported.module()(x), layer(x))


def norm_rope_at(call, seqlen):
    return dataclasses.replace(call, case=dataclasses.replace(call.case, seqlen=seqlen))


def test_a_choice_survives_tracing():
    layer = Layer(CALLS[1])
    plain = layer(layer.x)
    layer.named["choice"] = Choice(2, 1, Flow(early=True, kept_tiles=2, scalar_every=2))
    found = torch.compile(layer, backend="aot_eager", fullgraph=True)(layer.x)
    assert torch.equal(found, layer(layer.x))
    assert not torch.equal(found, plain)


def test_parameters_that_want_gradients_are_taken():
    layer = Layer(CALLS[0])
    layer.positional[2] = torch.nn.Parameter(layer.positional[2])
    assert not torch.compile(layer, backend="aot_eager", fullgraph=True)(layer.x).requires_grad


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qk_norm_pre_rope_q": "RMS_NORM_ACROSS"}, "NormType has no 'RMS_NORM_ACROSS'; accepted: NO_NORM, "),
        ({"output_layout": "BDS"}, "QKVOutputLayout has no 'BDS'; accepted: BSD, NBSd"),
        (
            {"replica_ranks": [0, 1, 2], "ranks_per_group": 2},
            "ranks_per_group is 2 of 3 replica_ranks; accepted: a div",
        ),
        ({"replica_ranks": [0, 1]}, "ranks_per_group is 0 of 2 replica_ranks; accepted"),
        ({"qk_norm_pre_rope_k_gamma": None}, "qk_norm_pre_rope_k_gamma is None; accepted with"),
        ({"norm_eps": 0.0}, "norm_eps is 0.0; accepted: a finite number above 0"),
        ({"lnc": 3}, "lnc is 3; accepted: 1 or 2"),
        ({"choice": [1, 2]}, "choice has 2 integers; accepted: 8, of"),
        ({"target": "trn2"}, "target is 'trn2'; accepted: 'trn3'"),
    ],
)
def test_bad_input_is_refused_by_name(changes, message):
    arguments, named = op_call(CALLS[1])
    with pytest.raises(ValueError, match=f"^{message}"):
        torch.ops.qkv_cte.row_mx_qkv_proj(*arguments, **(named | changes))


def test_groups_of_ranks_survive_tracing():
    """Traced, two groups of two come out as they went in: the run then asks for a process group."""
    call = dataclasses.replace(CALLS[1])
    layer = Layer(call)
    layer.named["replica_groups"] = ((0, 2), (1, 3))
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with pytest.raises(ValueError, match=r"replica_groups is \(\(0, 2\), \(1, 3\)\) and torch.distributed is not init"):
        compiled(layer.x)
