"""w4 and w5: roundings in ulps and per-head SNR of stressed calls at the width of Wan2.2."""

import dataclasses

import pytest
import torch

import nki
from kernels.qkv_cte.device.kernel import row_mx_projection
from kernels.qkv_cte.oracle import stress
from kernels.qkv_cte.oracle.norm_rope_cases import early
from kernels.qkv_cte.oracle.norm_rope_compare import MAX_ULPS, segment_errors

ROUNDING_DB = 49.9
"""Least SNR of what the kernel makes of its quantised operands: two roundings to bf16, each uniform within 2**-8 of a
value's power of two, 2**-8 / sqrt(3) of the value in RMS at most: 10 log10(3 * 2**16 / 2). RoPE keeps the power."""

QUANTISED_DB = 25.8
"""Least SNR against fp32 where no row is near zero: a code is uniform within 2**-4 of a value's power of two, 2**-4 /
sqrt(3) in RMS at most, of activations and of weights: 5.1 %. A bias adds no error, norm and RoPE keep the ratio."""


def run(stressed):
    operands = stressed.operands.arguments(stressed.call.plan)
    return nki.simulate(row_mx_projection[stressed.call.case.lnc])(*operands)


@pytest.mark.parametrize("flow", ["late", "early"])
@pytest.mark.parametrize("case", stress.STRESSES, ids=lambda case: case.name)
def test_heads_keep_what_quantisation_leaves(case, flow):
    stressed = stress.make(case)
    if flow == "early":
        stressed = dataclasses.replace(stressed, call=early(stressed.call, 1, 1))
    result = run(stressed)
    for errors in segment_errors(stressed.call, stressed.operands, result):
        print(f"{case.name}, {flow}, {errors.name}: {errors.max_ulps:.3f} ulps, relative RMS {errors.relative_rms:.2e}")
        assert errors.max_ulps <= MAX_ULPS
    parts = zip("QKV", result[0].chunk(3, -1), stressed.quantised, stressed.unquantised, strict=True)
    for name, got, quantised, unquantised in parts:
        snr, rounding = (stress.head_snr_db(got, wanted) for wanted in (unquantised, quantised))
        print(
            f"{case.name}, {flow}, {name}: heads have {snr.min():.2f} to {snr.max():.2f} dB against fp32, from "
            f"{rounding.min():.2f} dB against the quantised operands"
        )
        assert rounding.min() >= ROUNDING_DB
        if case.name != "near-zero rows":
            assert snr.min() >= QUANTISED_DB


def test_positions_are_those_of_the_video():
    """The first and the last of 75,600 positions, and neighbours along each axis turn by their own lanes only."""
    first, last = stress.angles(2)
    assert not first.any()
    assert torch.equal(last[[0, 22, 43]], torch.tensor([20.0, 44.0, 79.0], dtype=torch.float64))
    assert torch.equal(last[:64], last[64:])


def test_snr_of_a_known_error():
    wanted = torch.randn(50, 3 * 128, dtype=torch.float64)
    got = wanted * torch.tensor([1.1, 1.01, 0.5]).repeat_interleave(128)
    assert stress.head_snr_db(got, wanted) == pytest.approx([20.0, 40.0, 6.0206], abs=1e-3)


def test_near_zero_rows_reach_below_the_least_row_scale():
    from common import row_mx

    packed = stress.make(stress.STRESSES[2], tokens=64).operands.projection.packed_hidden
    _, scales = row_mx.unpack_rows(packed)
    assert (scales == row_mx.MIN_SCALE).sum() > 8
    assert (scales > row_mx.MIN_SCALE).sum() > 32
