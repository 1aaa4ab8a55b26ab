"""How far a result is from the exact one, and how far it may be."""

from __future__ import annotations

import math

import torch

MAX_RELATIVE_RMS = {torch.bfloat16: 4e-3, torch.float32: 2e-6}
"""Limits by the cache's type."""

MAX_OF_ROUNDED = 1.1
"""In bf16, the error over that of a torch implementation with the same rounding points."""


def relative_rms(result: torch.Tensor, exact: torch.Tensor) -> float:
    """RMS of the errors over RMS of the exact values; NaN where the result has one.

    Raises:
        ValueError: the shapes differ, which would broadcast, or nothing is there to compare with.
    """
    if result.shape != exact.shape:
        raise ValueError(f"result is {list(result.shape)}; accepted: {list(exact.shape)}")
    size = float(exact.double().norm())
    if not (math.isfinite(size) and size > 0):
        raise ValueError(f"exact has norm {size}; accepted: finite and above 0")
    return float((result.double() - exact.double()).norm()) / size
