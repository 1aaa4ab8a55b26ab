"""The softmax scale of a model with YaRN."""

from __future__ import annotations

import math


def yarn_softmax_scale(head_dim: int, factor: float = 1.0, mscale_all_dim: float = 0.0) -> float:
    """`head_dim ** -0.5 * (1 + 0.1 * mscale_all_dim * ln(factor)) ** 2`; without the square's excess up to factor 1.

    DeepSeek-V3.2, `head_dim` 192, factor 40, mscale_all_dim 1: 0.135234.

    Args:
        head_dim: width of a query head, nope + rope, not of the absorbed query.
        factor: YaRN's context extension.
        mscale_all_dim: as in the model's configuration; 0 turns it off.

    Raises:
        ValueError: an argument is out of range.
    """
    if head_dim < 1:
        raise ValueError(f"head_dim is {head_dim}; accepted: from 1")
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(f"factor is {factor}; accepted: a finite number above 0")
    if not math.isfinite(mscale_all_dim):
        raise ValueError(f"mscale_all_dim is {mscale_all_dim}; accepted: a finite number")
    mscale = 1.0 if factor <= 1 else 1.0 + 0.1 * mscale_all_dim * math.log(factor)
    return float(head_dim**-0.5 * mscale**2)
