"""How far an intermediate is from the oracle's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

BF16_FRACTION_BITS = 7
BF16_SMALLEST_EXPONENT = -126


@dataclass(frozen=True)
class Error:
    """Difference of two tensors.

    Attributes:
        cosine: of the angle between them as vectors; 1 for two of zeros, 0 where only one is.
        relative_rms: RMS of the difference over RMS of what is expected.
        max_ulps: largest difference of an element, in bfloat16 ulps of the expected element or, below it, of the RMS
            of the tensor: an element near zero is the difference of larger ones, and can be no more exact than they.
    """

    cosine: float
    relative_rms: float
    max_ulps: float


def compare(found: torch.Tensor, expected: torch.Tensor) -> Error:
    """Compares tensors of one shape.

    Raises:
        ValueError: their shapes differ, or a value is not finite.
    """
    if found.shape != expected.shape:
        raise ValueError(f"found is {list(found.shape)}; accepted: {list(expected.shape)}, as expected is")
    a, b = found.double().flatten(), expected.double().flatten()
    if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        raise ValueError("found or expected has NaN or infinite values; accepted: finite ones")
    lengths = float(a.norm()), float(b.norm())
    cosine = float(a @ b) / math.prod(lengths) if all(lengths) else float(lengths[0] == lengths[1])
    apart = (a - b).abs()
    if not lengths[1]:
        return Error(cosine, math.inf if lengths[0] else 0.0, math.inf if lengths[0] else 0.0)
    floor = lengths[1] / math.sqrt(b.numel())
    ulps = float((apart / _bf16_ulp(b.abs().clamp(min=floor))).max())
    return Error(cosine, float(apart.norm()) / lengths[1], ulps)


def _bf16_ulp(magnitudes: torch.Tensor) -> torch.Tensor:
    exponents = torch.frexp(magnitudes).exponent - 1
    return torch.ldexp(torch.ones_like(magnitudes), exponents.clamp(min=BF16_SMALLEST_EXPONENT) - BF16_FRACTION_BITS)


def table(errors: Mapping[str, Mapping[str, Error]]) -> str:
    """A Markdown table: a row for each intermediate, columns for each of the runs that `errors` names."""
    runs = list(errors)
    head = " | ".join(f"{run} cosine | relative RMS | max ulps" for run in runs)
    lines = [f"| intermediate | {head} |", "|---" * (1 + 3 * len(runs)) + "|"]
    for name in errors[runs[0]]:
        cells = [errors[run][name] for run in runs]
        shown = " | ".join(f"{e.cosine:.7f} | {e.relative_rms:.2e} | {e.max_ulps:.1f}" for e in cells)
        lines.append(f"| `{name}` | {shown} |")
    return "\n".join(lines)
