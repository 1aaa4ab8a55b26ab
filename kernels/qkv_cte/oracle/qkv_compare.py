"""How far the results of a general call are from the exact ones, in ulps of their type.

The unit is one ulp of the output's type at the exact value, fp32 outputs are counted in ulps of bf16. Outputs near
zero are differences of large terms, so that an ulp is never counted smaller than that of FLOOR times the RMS of the
output's head: fp32 sums lose there what depends on the terms. Where a value is rounded on the way, which is an
activation before it is multiplied or a stored projection before a norm across heads, that is ROUNDED_FLOOR, the RMS
itself: fp32 and fp64 disagree about a tie once in some ten thousand activations. RoPE after it mixes two roundings,
each as large as its term.
"""

from __future__ import annotations

import dataclasses

import torch

from kernels.qkv_cte.host.interface import NormType, QKVOutputLayout, QuantizationType
from kernels.qkv_cte.host.qkv_arguments import QKVArguments
from kernels.qkv_cte.oracle import qkv_reference, reference
from kernels.qkv_cte.oracle.compare import BF16_FRACTION_BITS, bf16_ulp

FLOOR = 2.0**-6
ROUNDED_FLOOR = 1.0

MAX_ULPS = 0.75
"""One rounding, and a quarter for fp32 sums."""

MAX_ULPS_TWICE = 2.0
"""Of norms across heads, whose input is a stored output; and where activations are rounded twice before they are
multiplied, to bf16 and to fp8: a tie of the first that falls the other way may cost a step of the second."""

FRACTION_BITS = {torch.bfloat16: BF16_FRACTION_BITS, torch.float16: 10, torch.float32: BF16_FRACTION_BITS}

MAX_SUM_ERROR = 2.0**-16
"""Relative, of a sum of squares: 256 times what fp32 costs, a hundredth of what a column of 1,280 is."""


def as_bsd(call: QKVArguments, result: torch.Tensor) -> torch.Tensor:
    """[B, S, I] of a result in either layout."""
    return result.permute(1, 2, 0, 3).flatten(2) if call.output_layout is QKVOutputLayout.NBSd else result


def across_heads(call: QKVArguments) -> bool:
    """Whether Q or K is normalised across heads."""
    config = call.qk_norm_pre_rope
    return config is not None and NormType.RMS_NORM_ACROSS_HEADS in (config.q_norm, config.k_norm)


def rounds_activations(call: QKVArguments) -> bool:
    """Whether activations are rounded to a type of two bytes or more before they are multiplied, or quantised."""
    if call.quantization_type is QuantizationType.ROW_MX:
        return False
    added = call.mlp_prev is not None or call.attention_prev is not None
    multiplied = call.fused_qkv_weights.dtype
    if call.quantization_type is QuantizationType.MXFP8:
        multiplied = torch.float16 if call.input.dtype == torch.float16 else torch.bfloat16
    return added or call.input.dtype != multiplied or call.fused_norm_type is not NormType.NO_NORM


def limit_of(call: QKVArguments) -> float:
    """The largest error that a call may show, in ulps."""
    twice = rounds_activations(call) and call.quantization_type is QuantizationType.MXFP8
    return MAX_ULPS_TWICE if twice or across_heads(call) else MAX_ULPS


def floor_of(call: QKVArguments) -> float:
    """FLOOR of a call."""
    return ROUNDED_FLOOR if rounds_activations(call) or across_heads(call) else FLOOR


def sum_error(call: QKVArguments, name: str, found: torch.Tensor, dtype: torch.dtype) -> float:
    """Largest relative error of the sums of squares of segment `name`, where outputs are of `dtype`.

    A kernel may take them of the fp32 projection or of the stored one; of the same for the whole segment. Which way a
    stored value near a tie was rounded is its affair.
    """
    projected = qkv_reference.qkv(call).projected[name]
    near = projected.square().mean(-1, keepdim=True).sqrt() * 2.0**-20
    one, other = ((projected + sign * near).to(dtype).double().square() for sign in (-1, 1))
    exact = projected.square().sum(-1)
    lowest, highest = torch.minimum(one, other).sum(-1), torch.maximum(one, other).sum(-1)
    found = found.double()
    of_stored = torch.clamp(torch.maximum(lowest - found, found - highest), min=0)
    return min(float((error / exact).max()) for error in ((found - exact).abs(), of_stored))


def max_ulps(call: QKVArguments, result: torch.Tensor) -> float:
    """Largest error of a result; infinite where it is not finite."""
    exact = qkv_reference.qkv(call).output
    got = as_bsd(call, result).double()
    if got.shape != exact.shape or not got.isfinite().all():
        return float("inf")
    floor = floor_of(call) * magnitude(call, exact)
    ulp = bf16_ulp(torch.maximum(exact.abs(), floor)) * 2.0 ** (BF16_FRACTION_BITS - FRACTION_BITS[result.dtype])
    return float(((got - exact).abs() / ulp).max())


def magnitude(call: QKVArguments, exact: torch.Tensor) -> torch.Tensor:
    """The RMS of each output's head; behind a norm across heads and RoPE at least its two terms without their signs."""
    heads = exact.unflatten(-1, (-1, call.d_head))
    size = heads.square().mean(-1, keepdim=True).sqrt().expand_as(heads).flatten(-2)
    if not across_heads(call) or call.cos_cache is None or call.sin_cache is None:
        return size
    straight = dataclasses.replace(call, fused_rope=False, cos_cache=None, sin_cache=None)
    normed = qkv_reference.qkv(straight).output.abs()
    rotated = (call.num_q_heads + call.num_kv_heads) * call.d_head
    low, high = call.sin_cache.abs().chunk(2, dim=-1)
    terms = reference.rope(normed[..., :rotated], call.cos_cache.abs(), torch.cat([-low, high], dim=-1))
    return torch.maximum(size, torch.cat([terms, normed[..., rotated:]], dim=-1))
