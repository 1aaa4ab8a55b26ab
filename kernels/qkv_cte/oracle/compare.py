"""How far a result is from the exact one: bf16 ulps, relative RMS, and whether NaN and infinity are where they belong.

The unit is one ulp of bf16 at the exact value. A result rounded once to nearest is at most 0.5 away.

Floor. Outputs near zero are differences of large terms: what fp32 accumulation loses there depends on the terms, not
on the output, and may be any number of the output's own ulps. The terms of an output are bounded by
    M = row_scale * channel_scale * |x|_2 * |w|_2 + |bias|,
since sum |x_h w_h| <= |x|_2 |w|_2. An output of uncorrelated terms is about M / sqrt(H), and so are its partial sums;
H additions that each lose up to 2**-24 of a partial sum add up, as a random walk, to about
    sqrt(H) * 2**-24 * M / sqrt(H) = 2**-24 * M,
whatever H is. So an ulp is never counted smaller than 2**-22 * M, a quarter of which the accumulation may cost. This
concerns outputs below 2**-14 M: at H = 5120 one in a few hundred. M is the output's own, so that columns and rows of
small scale are measured as finely as those of large scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kernels.qkv_cte.oracle import reference

FLOOR = 2.0**-22
"""Smallest ulp, as a share of the magnitude M."""

MAX_ULPS = 0.75
"""What the kernel must keep: half an ulp of rounding, a quarter of accumulation."""

BF16_FRACTION_BITS = 7
BF16_MIN_EXPONENT = -126
BF16_OVERFLOW = (2 - 2.0**-8) * 2.0**127
"""Half an ulp above the largest bf16: from here on nearest rounding gives infinity."""

TOKENS_AT_ONCE = 2048
"""Rows compared at a time, which bounds the fp64 copies."""


@dataclass(frozen=True)
class Errors:
    """Distance of a result from the exact one.

    Attributes:
        max_ulps: largest error of an output that is finite in both.
        worst: token (of B * S) and column of that output.
        relative_rms: RMS of the errors over RMS of the exact outputs; infinite where only these are all 0.
        wrong_nonfinite: outputs that are NaN, +inf or -inf in one and not in the other.
    """

    max_ulps: float
    worst: tuple[int, int]
    relative_rms: float
    wrong_nonfinite: int


def compare(
    result: torch.Tensor,
    packed_hidden: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None,
) -> Errors:
    """Computes the exact projection in fp64 and measures a result that exists already.

    Args:
        result: [B, S, I] bfloat16.
        packed_hidden, weight, weight_scales, bias: what it was made from, as the kernel takes them.

    Raises:
        ValueError: the result has another shape or dtype.
    """
    batch, seqlen, row = packed_hidden.shape
    expected = (batch, seqlen, weight.shape[1])
    if tuple(result.shape) != expected or result.dtype != torch.bfloat16:
        raise ValueError(f"result is {list(result.shape)} {result.dtype}; accepted: {list(expected)} torch.bfloat16")
    rows = packed_hidden.reshape(1, batch * seqlen, row)
    results = result.reshape(batch * seqlen, -1)
    max_ulps, worst, wrong, error_squares, exact_squares = 0.0, (0, 0), 0, 0.0, 0.0
    for first in range(0, batch * seqlen, TOKENS_AT_ONCE):
        part = rows[:, first : first + TOKENS_AT_ONCE]
        exact = reference.row_mx_qkv_proj(part, weight, weight_scales, bias)[0]
        smallest_ulp = FLOOR * magnitude(part, weight, weight_scales, bias)[0]
        got = results[first : first + TOKENS_AT_ONCE].to(torch.float64)
        rounded = torch.where(exact.abs() < BF16_OVERFLOW, exact, exact * torch.inf)
        finite = got.isfinite() & rounded.isfinite()
        wrong += int((~finite & ~((got == rounded) | (got.isnan() & rounded.isnan()))).sum())
        errors = torch.where(finite, (got - exact).abs(), 0.0)
        ulps = errors / torch.maximum(bf16_ulp(exact), smallest_ulp).nan_to_num(nan=1.0)
        place = int(ulps.argmax())
        if ulps.flatten()[place] > max_ulps:
            max_ulps = float(ulps.flatten()[place])
            worst = (first + place // ulps.shape[1], place % ulps.shape[1])
        error_squares += float((errors**2).sum())
        exact_squares += float((torch.where(finite, exact, 0.0) ** 2).sum())
    return Errors(max_ulps, worst, _root_of_ratio(error_squares, exact_squares), wrong)


def _root_of_ratio(errors: float, exact: float) -> float:
    if errors == 0.0:
        return 0.0
    return math.sqrt(errors / exact) if exact else math.inf


def bf16_ulp(values: torch.Tensor) -> torch.Tensor:
    """Spacing of bf16 at fp64 values: `2 ** (floor(log2 |v|) - 7)`; at 0 and subnormal ones that of the subnormals."""
    _, exponents = torch.frexp(values)
    leading = torch.where(values == 0, BF16_MIN_EXPONENT, exponents - 1).clamp(min=BF16_MIN_EXPONENT)
    return torch.ldexp(torch.ones_like(values), leading - BF16_FRACTION_BITS)


def magnitude(
    packed_hidden: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """M of the module's text, [B, S, I] float64."""
    codes = packed_hidden[..., :-4].to(torch.float64)
    row_scales = packed_hidden[..., -4:].contiguous().view(torch.float32).to(torch.float64)
    rows = codes.norm(dim=-1, keepdim=True) * row_scales
    columns = weight.to(torch.float64).norm(dim=(0, 2)) * weight_scales.to(torch.float64)
    return rows * columns + (0.0 if bias is None else bias.to(torch.float64).abs())
