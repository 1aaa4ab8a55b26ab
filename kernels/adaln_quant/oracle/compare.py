"""How far a result is from the exact one, beyond the one rounding that its type costs.

A result rounded to nearest is at most half a step of its type from what was rounded. What the fp32 arithmetic before
adds is counted in roundings: units of 2**-24 of the terms that make up the element,
    M = (|x| + |mean|) / deviation * |1 + scale| + |shift|,
since each operator costs up to one of its own result. Of rows quantised as they are, M is |x|: their arithmetic is a
division, a reciprocal and a product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.adaln_quant.oracle import reference
from kernels.adaln_quant.oracle.cases import Operands

MAX_ROUNDINGS = 8.0
"""Accepted: one each of mean, difference, variance, sum, root, two products and a sum, and those of the scale."""

BF16_FRACTION_BITS, BF16_MIN_EXPONENT = 7, -126
FP8_FRACTION_BITS, FP8_MIN_EXPONENT = 3, -6
FP32_ROUNDING = 2.0**-24


@dataclass(frozen=True)
class Errors:
    """Distance of a result from the exact one.

    Attributes:
        roundings: largest error beyond half a step of the result's type, in fp32 roundings of the element's terms.
        scale_roundings: the same of the row scales, in roundings of the row's largest terms; 0 for bfloat16.
        relative_rms: RMS of the errors over RMS of the exact rows.
        nonfinite: elements and scales that are NaN or infinite.
    """

    roundings: float
    scale_roundings: float
    relative_rms: float
    nonfinite: int

    @property
    def accepted(self) -> bool:
        """Whether the result is as exact as its type and fp32 arithmetic allow."""
        return self.nonfinite == 0 and max(self.roundings, self.scale_roundings) <= MAX_ROUNDINGS


def compare(result: torch.Tensor, operands: Operands, eps: float = 1e-6) -> Errors:
    """Measures a result that exists already.

    Args:
        result: [B, S, H + 4] float8_e4m3fn, or [B, S, H] bfloat16.
        operands: what it was made from.
        eps: as the kernel was given.

    Raises:
        ValueError: the result has another shape or type.
    """
    batch, seqlen, hidden = operands.x.shape
    accepted = (((batch, seqlen, hidden + 4), torch.float8_e4m3fn), ((batch, seqlen, hidden), torch.bfloat16))
    if (tuple(result.shape), result.dtype) not in accepted:
        raise ValueError(f"result is {list(result.shape)} {result.dtype}; accepted: {accepted}")
    exact, terms = operands.exact(eps), magnitude(operands, eps)
    if result.dtype == torch.bfloat16:
        got, scales = result.to(torch.float64), None
        half_steps = step(exact, BF16_FRACTION_BITS, BF16_MIN_EXPONENT) / 2
        scale_roundings = 0.0
    else:
        codes, scales = reference.unpack(result)
        got = codes * scales
        # Of what was rounded, which may be on the other side of a power of two than the code.
        half_steps = step(exact / scales, FP8_FRACTION_BITS, FP8_MIN_EXPONENT) * scales / 2
        unit = FP32_ROUNDING * terms.amax(dim=-1, keepdim=True) / reference.LARGEST_CODE
        scale_roundings = float(((scales - reference.row_scales(exact)).abs() / unit.clamp(min=1e-12)).max())
    errors = (got - exact).abs()
    excess = (errors - half_steps) / (FP32_ROUNDING * terms.clamp(min=torch.finfo(torch.float32).tiny))
    squares = float((exact**2).sum())
    return Errors(
        roundings=max(0.0, float(excess.max())),
        scale_roundings=scale_roundings,
        relative_rms=(float((errors**2).sum()) / squares) ** 0.5 if squares else float(errors.max()),
        nonfinite=int((~got.isfinite()).sum()) + (0 if scales is None else int((~scales.isfinite()).sum())),
    )


def magnitude(operands: Operands, eps: float) -> torch.Tensor:
    """M of the module's text, [B, S, H] float64."""
    x = operands.x.to(torch.float64)
    if operands.scale is None or operands.shift is None:
        return x.abs()
    mean = x.mean(dim=-1, keepdim=True)
    deviation = torch.sqrt(x.var(dim=-1, keepdim=True, unbiased=False) + eps)
    gain, offset = (v.to(torch.float64).reshape(x.shape[0], -1, x.shape[-1]) for v in (operands.scale, operands.shift))
    return (x.abs() + mean.abs()) / deviation * (1 + gain).abs() + offset.abs()


def step(values: torch.Tensor, fraction_bits: int, min_exponent: int) -> torch.Tensor:
    """Spacing of a type at fp64 values."""
    _, exponents = torch.frexp(values)
    leading = torch.where(values == 0, min_exponent, exponents - 1).clamp(min=min_exponent)
    return torch.ldexp(torch.ones_like(values), leading - fraction_bits)
