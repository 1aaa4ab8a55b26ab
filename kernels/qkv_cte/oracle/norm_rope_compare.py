"""How far a call with norm and RoPE is from the exact one, in bf16 ulps."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch

from kernels.qkv_cte.oracle import reference
from kernels.qkv_cte.oracle.compare import FLOOR, bf16_ulp, magnitude
from kernels.qkv_cte.oracle.norm_rope_cases import NormRopeCase, NormRopeOperands

MAX_ULPS = 2.0
"""From the packed operands. See `magnitudes`: 1.5 for the two roundings, the rest for fp32 accumulation."""


@dataclass(frozen=True)
class SegmentErrors:
    """Distance of a segment from the exact one.

    Attributes:
        name: "Q", "K" or "V"; "Q" of a call of one segment, whatever it is to the caller.
        max_ulps: largest error in ulps of bf16, none counted smaller than its row's rounding floor (`compare`).
        relative_rms: RMS of the errors over RMS of the exact values.
    """

    name: str
    max_ulps: float
    relative_rms: float


def as_bsd(call: NormRopeCase, result: torch.Tensor) -> torch.Tensor:
    """[B, S, I] of a result in either layout."""
    return result.permute(1, 2, 0, 3).flatten(2) if call.nbsd else result


def segments(call: NormRopeCase, projected: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Q, K and V of [B, S, I]; K and V are empty in a call of one segment."""
    q, kv = call.case.num_heads * call.case.head_dim, call.case.num_kv_heads * call.case.head_dim
    return tuple(projected.split([q, kv, kv], dim=-1))


def expected_of(call: NormRopeCase, operands: NormRopeOperands, projected: torch.Tensor) -> torch.Tensor:
    """The pass in fp64 on a projection [B, S, I]."""
    q, k, v = (part.double() for part in segments(call, projected))
    if operands.q_gamma is not None:
        q = reference.rms_norm(q, operands.q_gamma, call.eps)
    if operands.k_gamma is not None:
        k = reference.rms_norm(k, operands.k_gamma, call.eps)
    if operands.cos is not None and operands.sin is not None:
        q, k = (reference.rope(part, operands.cos, operands.sin) for part in (q, k))
    return torch.cat([q, k, v], dim=-1)


def magnitudes(
    call: NormRopeCase, operands: NormRopeOperands, projected: torch.Tensor, of: torch.Tensor
) -> torch.Tensor:
    """What bounds the rounding errors of an output of the pass: its terms without their signs.

    With RoPE an output is a difference of two terms, each carrying the rounding of the projection, up to an ulp of
    the larger when they cancel. An ulp is therefore never counted smaller than that of |a cos| + |b sin|; without
    RoPE that is the output itself. `of` is the magnitude that goes through the same factors as `projected`.
    """
    normed = expected_of(call, dataclasses.replace(operands, cos=None, sin=None), projected)
    sizes = of * torch.where(projected == 0, 0.0, normed / projected).abs()
    if operands.cos is None or operands.sin is None:
        return sizes
    low, high = operands.sin.abs().chunk(2, dim=-1)
    adding = {"cos": operands.cos.abs(), "sin": torch.cat([-low, high], dim=-1)}
    return expected_of(call, dataclasses.replace(operands, q_gamma=None, k_gamma=None, **adding), sizes)


def worst_ulps(result: torch.Tensor, exact: torch.Tensor, smallest_ulp: torch.Tensor) -> float:
    """Largest error, in ulps of bf16; infinite where the result is not finite."""
    if not result.isfinite().all():
        return math.inf
    ulps = torch.maximum(bf16_ulp(exact), smallest_ulp)
    return float(((result.double() - exact).abs() / ulps).max())


def end_to_end_ulps(call: NormRopeCase, operands: NormRopeOperands, result: torch.Tensor) -> float:
    """Largest error of a whole call from its packed operands."""
    return max(errors.max_ulps for errors in segment_errors(call, operands, result))


def segment_errors(call: NormRopeCase, operands: NormRopeOperands, result: torch.Tensor) -> list[SegmentErrors]:
    """Errors of a whole call from its packed operands, by segment."""
    exact_projection = reference.row_mx_qkv_proj(*operands.projection.tensors)
    exact = expected_of(call, operands, exact_projection)
    floor = FLOOR * magnitudes(call, operands, exact_projection, magnitude(*operands.projection.tensors))
    smallest = torch.maximum(floor, bf16_ulp(magnitudes(call, operands, exact_projection, exact_projection.abs())))
    parts = zip("QKV", *(segments(call, values) for values in (as_bsd(call, result), exact, smallest)), strict=True)
    return [
        SegmentErrors(name, worst_ulps(got, wanted, least), float((got.double() - wanted).norm() / wanted.norm()))
        for name, got, wanted, least in parts
        if wanted.numel()
    ]
