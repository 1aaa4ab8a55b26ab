"""Across-heads norm, RoPE and NBSd on the simulator against the fp64 reference."""

import dataclasses

import pytest
import torch

import nki
from kernels.qkv_cte.device.config import SEED_FLOW
from kernels.qkv_cte.device.kernel import row_mx_projection
from kernels.qkv_cte.oracle import cases
from kernels.qkv_cte.oracle.cases import Case
from kernels.qkv_cte.oracle.norm_rope_cases import CALLS, EARLY_CALLS, NormRopeCase, normal_operands
from kernels.qkv_cte.oracle.norm_rope_compare import (
    MAX_ULPS,
    as_bsd,
    end_to_end_ulps,
    expected_of,
    magnitudes,
    segments,
    worst_ulps,
)

PASS_ULPS = 0.51
"""From the projection as the kernel stores it: one rounding, and fp32 steps that are worth less than a hundredth."""


def run(call, operands):
    return nki.simulate(row_mx_projection[call.case.lnc])(*operands.arguments(call.plan))


@pytest.mark.parametrize("call", [*CALLS, *EARLY_CALLS], ids=lambda call: call.name)
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


@pytest.mark.parametrize("call", EARLY_CALLS, ids=lambda call: call.name)
def test_early_evictions_round_what_they_finish_as_others_do(call):
    """Segments without a norm or RoPE are those of the plain projection, bit for bit; others differ from the late pass
    by the roundings that either has."""
    operands = normal_operands(call)
    result, late = (as_bsd(each, run(each, operands)) for each in (call, dataclasses.replace(call, flow=SEED_FLOW)))
    touched = [call.q_norm or call.rope, bool(call.case.num_kv_heads) and (call.k_norm or call.rope), False]
    for done, mine, other in zip(touched, segments(call, result), segments(call, late), strict=True):
        if done:
            assert (mine.double() - other.double()).norm() <= 2.0**-8 * other.double().norm()
        else:
            assert torch.equal(mine, other)


@pytest.mark.parametrize("rope", [False, True])
def test_head_h_scaled_by_2_to_the_h(rope):
    """w1: the norm spans all 5,120 channels, so the largest head sets it; V does not notice norm or RoPE."""
    call = NormRopeCase(Case("w1", 3, 128, 40, "chunked", num_kv_heads=40), rope=rope)
    operands = normal_operands(call)
    powers = 2.0 ** torch.arange(40).repeat_interleave(128).repeat(3)
    projection = operands.projection
    projection = dataclasses.replace(
        projection, weight_scales=projection.weight_scales * powers, bias=projection.bias * powers
    )
    operands = dataclasses.replace(operands, projection=projection)
    if rope:  # Both halves alike, so that a rotation it is.
        caches = {name: torch.cat([getattr(operands, name)[..., :64]] * 2, -1) for name in ("cos", "sin")}
        operands = dataclasses.replace(operands, **caches)
    result = run(call, operands)
    assert end_to_end_ulps(call, operands, result) <= MAX_ULPS
    flat = dataclasses.replace(operands, q_gamma=torch.ones(1, 5120), k_gamma=torch.ones(1, 5120))
    for part in segments(call, run(call, flat))[:2]:
        mean_square = part.double().square().mean(-1)
        assert (mean_square - 1).abs().max() < 2.0**-8
        head_rms = part.double().unflatten(-1, (40, 128)).square().mean(-1).sqrt()
        assert (head_rms[..., 1:] / head_rms[..., :-1]).log2().sub(1).abs().max() < 1.0
        assert head_rms[..., 0].max() < 2.0**-34
    without = dataclasses.replace(operands, q_gamma=None, k_gamma=None, cos=None, sin=None)
    projected = run(plain(call), without)
    assert torch.equal(segments(call, result)[2].view(torch.int16), segments(call, projected)[2].view(torch.int16))


def angles(seqlen, head_dim):
    """Angle of each position and lane of a half, base 10,000, fp64."""
    lanes = torch.arange(head_dim // 2, dtype=torch.float64)
    return torch.arange(seqlen, dtype=torch.float64)[:, None] * 10_000 ** (-2 * lanes / head_dim)


def rotated_constants(rows, head_dim, seqlen):
    """RoPE of the same Q and K rows at every position, from a projection whose bias alone gives them."""
    call = NormRopeCase(
        Case("w3", seqlen, 128, 1, "full", num_kv_heads=1, head_dim=head_dim), q_norm=False, k_norm=False
    )
    operands = normal_operands(call)
    weight = torch.zeros(32, 3 * head_dim, 4).to(torch.float8_e4m3fn)
    projection = dataclasses.replace(operands.projection, weight=weight, bias=rows)
    theta = angles(seqlen, head_dim)
    cos, sin = (torch.cat([f(theta)] * 2, -1)[None].float() for f in (torch.cos, torch.sin))
    result = run(call, dataclasses.replace(operands, projection=projection, cos=cos, sin=sin))
    return theta, result[0].split(head_dim, -1)


def test_rope_of_the_first_lane():
    """w3: of x = [1, 0, 0, ...] lanes (0, d/2) become (cos t0, sin t0)."""
    rows = torch.zeros(1, 3 * 64)
    rows[0, [0, 64, 128]] = 1.0
    theta, (q, k, v) = rotated_constants(rows, 64, 130)
    expected = torch.zeros(130, 64)
    expected[:, 0] = theta[:, 0].cos().float()
    expected[:, 32] = theta[:, 0].sin().float()
    assert torch.equal(q, expected.to(torch.bfloat16))
    assert torch.equal(k, expected.to(torch.bfloat16))
    assert torch.equal(v.float(), rows[:, 128:].expand(130, 64))


def test_rope_depends_on_distance_only():
    """w3: dot(R_m q, R_n k) is a function of m - n, up to the roundings of both results."""
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(1, 3 * 128, generator=generator).bfloat16().float()
    _, (q, k, _) = rotated_constants(rows, 128, 130)
    q, k = q.double(), k.double()
    dots = q @ k.T
    # Each result is within 2**-8 of itself: an ulp at most, half of it twice.
    bound = 2.0**-8 * (q.abs() @ k.abs().T).max()
    for distance in range(-129, 130):
        same = torch.diagonal(dots, distance)
        assert same.max() - same.min() <= 2 * bound
    assert dots.max() - dots.min() > 20 * bound


@pytest.mark.parametrize("rope", [False, True])
def test_every_gamma_is_in_its_place(rope):
    """n5: gammas whose exponents all differ, in Q and in K; any two swapped would show.

    With RoPE the two lanes of a pair get about the same gamma: the larger of two far apart would hide the other.
    """
    call = NormRopeCase(Case("n5", 129, 128, 5, "full", num_kv_heads=4), rope=rope)
    operands = normal_operands(call)
    if rope:
        pairs = cases.distinct_scales(5 * 64, 256).reshape(5, 64), cases.distinct_scales(4 * 64, 64).reshape(4, 64)
        q_gamma, k_gamma = (torch.cat([scales, 1.5 * scales], -1).reshape(1, -1) for scales in pairs)
    else:
        q_gamma = cases.distinct_scales(5 * 128, 512)[None]
        k_gamma = cases.distinct_scales(4 * 128, 128)[None].flip(1)
    operands = dataclasses.replace(operands, q_gamma=q_gamma, k_gamma=k_gamma)
    result = run(call, operands)
    assert end_to_end_ulps(call, operands, result) <= MAX_ULPS
    for name, gamma in (("q_gamma", q_gamma), ("k_gamma", k_gamma)):
        for i, j in [(0, 1), (0, 29), (5, 133), (1, 30), (2, 66), (64, 300)]:
            order = torch.arange(gamma.shape[1])
            order[[i, j]] = order[[j, i]]
            swapped = dataclasses.replace(operands, **{name: gamma[:, order]})
            assert end_to_end_ulps(call, swapped, result) > MAX_ULPS, (name, i, j)


def test_inputs_are_left_as_they_are():
    call = CALLS[1]
    operands = normal_operands(call)
    tensors = [value for value in operands.arguments(call.plan) if torch.is_tensor(value)]
    before = [tensor.clone() for tensor in tensors]
    run(call, operands)
    assert len(tensors) == 8
    for was, tensor in zip(before, tensors, strict=True):
        assert torch.equal(was.view(torch.uint8), tensor.view(torch.uint8))


def test_nan_stays_in_its_token():
    call = NormRopeCase(Case("nan", 130, 128, 3, "full", num_kv_heads=2, head_dim=64))
    operands = normal_operands(call)
    operands.projection.packed_hidden[0, 7, 3] = torch.nan
    nan = run(call, operands).isnan()[0].all(-1)
    assert nan[7]
    assert int(nan.sum()) == 1


def test_zero_tokens_stay_zero():
    """Rows that a caller pads with: eps keeps their inv_rms finite."""
    call = NormRopeCase(Case("zero", 130, 128, 3, "full", num_kv_heads=2, head_dim=64, bias_dtype=None))
    operands = normal_operands(call)
    operands.projection.packed_hidden[0, 100:, :128] = 0.0
    result = run(call, operands)
    assert not result[0, 100:].any()
    assert result[0, :100].abs().double().mean() > 0.1
