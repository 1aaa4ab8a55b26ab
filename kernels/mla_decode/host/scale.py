"""The softmax scale of a model with YaRN."""

from __future__ import annotations

import math
from typing import Any

LARGEST = 2**24
"""Of any argument; no model comes near."""


def yarn_softmax_scale(head_dim: int, factor: float = 1.0, mscale_all_dim: float = 0.0) -> float:
    """`head_dim ** -0.5 * (1 + 0.1 * mscale_all_dim * ln(factor)) ** 2`; without the square's excess up to factor 1.

    DeepSeek-V3.2, `head_dim` 192, factor 40, mscale_all_dim 1: 0.135234.

    Args:
        head_dim: width of a query head, nope + rope, not of the absorbed query.
        factor: YaRN's context extension.
        mscale_all_dim: as in the model's configuration; 0 turns it off.

    Raises:
        TypeError: an argument is no number.
        ValueError: an argument is out of range.
    """
    _require_between("head_dim", head_dim, 1, LARGEST)
    _require_between("factor", factor, 1 / LARGEST, LARGEST)
    _require_between("mscale_all_dim", mscale_all_dim, -LARGEST, LARGEST)
    mscale = 1.0 if factor <= 1 else 1.0 + 0.1 * mscale_all_dim * math.log(factor)
    return float(head_dim**-0.5 * mscale**2)


def _require_between(name: str, value: Any, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}; accepted: a number")
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}; accepted: {least} to {most}")
