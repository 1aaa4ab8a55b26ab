"""Production shapes with values: minutes, so not part of a usual run."""

import dataclasses

import pytest
import torch

import nki
from kernels.qkv_cte.device.kernel import row_mx_projection
from kernels.qkv_cte.oracle import cases, compare, norm_rope_cases, norm_rope_compare
from kernels.qkv_cte.oracle.cases import WAN22, Case

TOKENS_AT_ONCE = 1024
"""Tokens compared at a time, which bounds the fp64 copies."""

LARGE = (*WAN22, Case("tp1", 3, 5120, 40, "chunked", num_kv_heads=40, bias_dtype=torch.bfloat16))


@pytest.mark.parametrize("case", LARGE, ids=lambda case: case.name)
def test_values(case):
    operands = cases.normal_operands(case)
    result = nki.simulate(row_mx_projection[case.lnc])(*operands.tensors, case.plan.config)
    errors = compare.compare(result, *operands.tensors)
    print(case.name, errors)
    assert errors.wrong_nonfinite == 0
    assert errors.max_ulps <= compare.MAX_ULPS


@pytest.mark.parametrize("kept_tiles", [None, 0, 1, 2], ids=["late", "early_0", "early_1", "early_2"])
@pytest.mark.parametrize("call", norm_rope_cases.WAN22, ids=lambda call: call.name)
def test_values_with_norm_and_rope(call, kept_tiles):
    """One rank's norm over its own heads, on 258 tokens: a ragged S-tile on each core."""
    call = dataclasses.replace(call, case=dataclasses.replace(call.case, seqlen=258), groups=None)
    if kept_tiles is not None and call.norm_rope is not None:
        call = norm_rope_cases.early(call, kept_tiles)
    operands = norm_rope_cases.normal_operands(call)
    result = nki.simulate(row_mx_projection[call.case.lnc])(*operands.arguments(call.plan))
    ulps = norm_rope_compare.end_to_end_ulps(call, operands, result)
    print(f"{call.name}: {ulps:.3f} ulps")
    assert ulps <= norm_rope_compare.MAX_ULPS


@pytest.mark.parametrize("early", [False, True], ids=["late", "early"])
@pytest.mark.parametrize("call", norm_rope_cases.WAN22, ids=lambda call: call.case.name)
def test_all_tokens_with_norm_and_rope(call, early):
    """The same on every token of the shape."""
    call = dataclasses.replace(call, groups=None)
    if early and call.norm_rope is not None:
        call = norm_rope_cases.early(call, 2)
    operands = norm_rope_cases.normal_operands(call)
    result = nki.simulate(row_mx_projection[call.case.lnc])(*operands.arguments(call.plan))
    result = norm_rope_compare.as_bsd(call, result)
    worst = 0.0
    for first in range(0, call.case.seqlen, TOKENS_AT_ONCE):
        tokens = slice(first, min(first + TOKENS_AT_ONCE, call.case.seqlen))
        part = dataclasses.replace(call, case=dataclasses.replace(call.case, seqlen=tokens.stop - first), nbsd=False)
        worst = max(worst, norm_rope_compare.end_to_end_ulps(part, of_tokens(operands, tokens), result[:, tokens]))
    print(f"{call.name}, {call.case.seqlen} tokens: {worst:.3f} ulps")
    assert worst <= norm_rope_compare.MAX_ULPS


def of_tokens(operands, tokens):
    """The operands of some of the tokens."""
    rest = operands.projection
    projection = dataclasses.replace(rest, packed_hidden=rest.packed_hidden[:, tokens])
    cos, sin = (cache if cache is None else cache[:, tokens] for cache in (operands.cos, operands.sin))
    return dataclasses.replace(operands, projection=projection, cos=cos, sin=sin)
