"""The custom ops: torch's own checks of schema, mutation and fakes, and a compiled call."""

import dataclasses

import pytest
import torch

from kernels.mla_decode.host import front_shim, ops, shim
from kernels.mla_decode.oracle.cases import Case, normal_operands
from kernels.mla_decode.oracle.front_cases import FrontCase, front_operands

CASE = Case("ops", 2, 2, 130, hidden=128, context=200)
CHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")


def attention_arguments(case=CASE):
    operands = normal_operands(case)
    return (
        *(operands.q_absorbed, operands.q_pe, operands.kv_cache, operands.kv_row_cur, *operands.index(CASE.n_prior)),
        *(operands.positions, operands.out_absorb_w, operands.o_proj_w, CASE.n_prior, CASE.softmax_scale),
    )


def front_arguments(input_norm, case=None):
    operands = front_operands(case or FrontCase(CASE, input_norm=input_norm))
    names = ("hidden_states", "wq_a", "q_norm_w", "wq_b", "wkv_a", "kv_norm_w", "cos", "sin", "q_absorb_w")
    front = (*(getattr(operands, name) for name in names), operands.step.kv_cache, operands.slot_mapping)
    return front, attention_arguments()[4:], (operands.input_norm_w, 1e-6)


def test_attention():
    torch.library.opcheck(ops.attention, attention_arguments(), test_utils=CHECKS)
    expected = shim.mla_decode_attention(*attention_arguments(), target="trn3", dma_transposed_chunks=1)
    found = torch.ops.mla_decode.attention(*attention_arguments(), target="trn3", dma_transposed_chunks=1)
    assert torch.equal(found, expected)


def test_attention_over_an_fp8_cache():
    """The result is of the queries' type, not of the cache's bytes."""
    case = dataclasses.replace(CASE, fp8_cache=True, target="trn3")
    call = attention_arguments(case)
    torch.library.opcheck(ops.attention, call, {"target": "trn3"}, test_utils=CHECKS)
    assert torch.ops.mla_decode.attention(*call, target="trn3").dtype is torch.bfloat16


@pytest.mark.parametrize("input_norm", [False, True])
def test_qkv_writes_the_cache_and_says_so(input_norm):
    front, _, norm = front_arguments(input_norm)
    torch.library.opcheck(ops.qkv, (*front, *norm), test_utils=CHECKS)
    (front, _, norm), (same, _, _) = front_arguments(input_norm), front_arguments(input_norm)
    found = torch.ops.mla_decode.qkv(*front, *norm)
    expected = front_shim.mla_decode_qkv(*same, *norm)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert torch.equal(front[9], same[9])
    assert "Tensor(a9!) kv_cache" in str(ops.qkv._opoverload._schema)


def test_a_step_into_an_fp8_cache():
    case = FrontCase(dataclasses.replace(CASE, fp8_cache=True, target="trn3"))
    front, rest, norm = front_arguments(False, case)
    torch.library.opcheck(ops.step, (*front, *rest, *norm), {"target": "trn3"}, test_utils=CHECKS)
    torch.library.opcheck(ops.qkv, (*front, *norm), {"target": "trn3"}, test_utils=CHECKS)


@pytest.mark.parametrize("input_norm", [False, True])
def test_step_writes_the_cache_and_says_so(input_norm):
    front, rest, norm = front_arguments(input_norm)
    torch.library.opcheck(ops.step, (*front, *rest, *norm), test_utils=CHECKS)
    (front, rest, norm), (same, _, _) = front_arguments(input_norm), front_arguments(input_norm)
    found = torch.ops.mla_decode.step(*front, *rest, *norm)
    expected = front_shim.mla_decode(*same, *rest, *norm)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert torch.equal(front[9], same[9])


def test_a_compiled_layer_calls_the_op():
    @torch.compile(backend="aot_eager", fullgraph=True)
    def layer(front, rest):
        output, row = torch.ops.mla_decode.step(*front, *rest)
        return output * 2, row

    front, rest, _ = front_arguments(False)
    same, _, _ = front_arguments(False)
    output, row = layer(front, rest)
    expected, expected_row = front_shim.mla_decode(*same, *rest)
    assert torch.equal(output, expected * 2)
    assert torch.equal(row, expected_row)
    assert torch.equal(front[9], same[9])


def test_bad_input_is_refused_by_name():
    call = list(attention_arguments())
    call[10] = 300
    with pytest.raises(ValueError, match=r"prior_rows is .* accepted: \[128, 2, 3\]"):
        torch.ops.mla_decode.attention(*call)
