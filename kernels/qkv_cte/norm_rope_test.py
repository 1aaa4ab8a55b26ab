"""Across-heads norm, RoPE and NBSd on the simulator against the fp64 reference."""

import dataclasses

import pytest
import torch

import nki
from kernels.qkv_cte import compare, reference
from kernels.qkv_cte.kernel import row_mx_projection
from kernels.qkv_cte.norm_rope_cases import CALLS, normal_operands

PASS_ULPS = 0.51
"""From the projection as the kernel stores it: one rounding, and fp32 steps that are worth less than a hundredth."""

MAX_ULPS = 2.0
"""From the packed operands. See `magnitudes`: 1.5 for the two roundings, the rest for fp32 accumulation."""


def run(call, operands):
    return nki.simulate(row_mx_projection[call.case.lnc])(*operands.arguments(call.plan))


def as_bsd(call, result):
    """[B, S, I] of a result in either layout."""
    return result.permute(1, 2, 0, 3).flatten(2) if call.nbsd else result


def segments(call, projected):
    """Q, K and V of [B, S, I]; K and V are empty in a call of one segment."""
    q, kv = call.case.num_heads * call.case.head_dim, call.case.num_kv_heads * call.case.head_dim
    return projected.split([q, kv, kv], dim=-1)


def expected_of(call, operands, projected):
    """The pass in fp64 on a projection [B, S, I]."""
    q, k, v = (part.double() for part in segments(call, projected))
    if operands.q_gamma is not None:
        q = reference.rms_norm(q, operands.q_gamma, call.eps)
    if operands.k_gamma is not None:
        k = reference.rms_norm(k, operands.k_gamma, call.eps)
    if operands.cos is not None:
        q, k = (reference.rope(part, operands.cos, operands.sin) for part in (q, k))
    return torch.cat([q, k, v], dim=-1)


def magnitudes(call, operands, projected, of):
    """What bounds the rounding errors of an output of the pass: its terms without their signs.

    With RoPE an output is a difference of two terms, each carrying the rounding of the projection, up to an ulp of
    the larger when they cancel. An ulp is therefore never counted smaller than that of |a cos| + |b sin|; without
    RoPE that is the output itself. `of` is the magnitude that goes through the same factors as `projected`.
    """
    normed = expected_of(call, dataclasses.replace(operands, cos=None, sin=None), projected)
    sizes = of * torch.where(projected == 0, 0.0, normed / projected).abs()
    if operands.cos is None:
        return sizes
    low, high = operands.sin.abs().chunk(2, dim=-1)
    adding = {"cos": operands.cos.abs(), "sin": torch.cat([-low, high], dim=-1)}
    return expected_of(call, dataclasses.replace(operands, q_gamma=None, k_gamma=None, **adding), sizes)


def worst_ulps(result, exact, smallest_ulp):
    """Largest error, in ulps of bf16."""
    assert result.isfinite().all()
    ulps = torch.maximum(compare.bf16_ulp(exact), smallest_ulp)
    return float(((result.double() - exact).abs() / ulps).max())


def end_to_end_ulps(call, operands, result):
    """Errors of a whole call from its packed operands."""
    exact_projection = reference.row_mx_qkv_proj(*operands.projection.tensors)
    exact = expected_of(call, operands, exact_projection)
    floor = compare.FLOOR * magnitudes(
        call, operands, exact_projection, compare.magnitude(*operands.projection.tensors)
    )
    smallest = torch.maximum(
        floor, compare.bf16_ulp(magnitudes(call, operands, exact_projection, exact_projection.abs()))
    )
    return worst_ulps(as_bsd(call, result), exact, smallest)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_call(call):
    operands = normal_operands(call)
    result = run(call, operands)
    ulps = end_to_end_ulps(call, operands, result)
    print(f"{call.name}: {ulps:.3f} ulps from the operands")
    assert ulps <= MAX_ULPS


def plain(call):
    """The same projection without the pass, in BSD."""
    return dataclasses.replace(call, q_norm=False, k_norm=False, rope=False, nbsd=False, groups=None)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_pass_alone_rounds_once(call):
    """The stored projection is the pass's input, bit for bit: what it adds is one rounding."""
    operands = normal_operands(call)
    result = as_bsd(call, run(call, operands))
    without = dataclasses.replace(operands, q_gamma=None, k_gamma=None, cos=None, sin=None)
    projected = run(plain(call), without)
    exact = expected_of(call, operands, projected)
    # fp32 steps lose up to 2**-24 of each term, which is an ulp's hundredth unless terms cancel by more than 2**10.
    floor = 2.0**-16 * magnitudes(call, operands, projected.double(), projected.double().abs())
    ulps = worst_ulps(result, exact, floor)
    print(f"{call.name}: {ulps:.4f} ulps from the stored projection")
    assert ulps <= PASS_ULPS
    kept = [2] if call.case.num_kv_heads else []
    kept += [0] if not call.q_norm and not call.rope else []
    kept += [1] if not call.k_norm and not call.rope and call.case.num_kv_heads else []
    for index in kept:
        assert torch.equal(segments(call, result)[index], segments(call, projected)[index])
