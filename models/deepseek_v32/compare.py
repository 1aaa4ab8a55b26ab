"""How far a tensor is from what it should be."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Difference:
    """Of a result from the expected tensor.

    Attributes:
        cosine: of both as vectors.
        relative_rms: RMS of the errors over RMS of the expected values.
        max_ulps: largest error in units in the last place of the model's type, at the expected value's size or, where
            that is below the tensor's RMS, at the RMS: cancellation leaves small values the error of large ones.
    """

    cosine: float
    relative_rms: float
    max_ulps: float


def measure(result: torch.Tensor, expected: torch.Tensor, model: torch.dtype | None = None) -> Difference:
    """Compares in fp64; NaN where a tensor has one.

    Args:
        result, expected: of one shape.
        model: the model's type; None for the result's.

    Raises:
        ValueError: the shapes differ, which would broadcast, or there is nothing to compare with.
    """
    if result.shape != expected.shape:
        raise ValueError(f"result is {list(result.shape)}; accepted: {list(expected.shape)}")
    a, b = result.double().flatten(), expected.double().flatten()
    size = b.norm()
    if not size > 0:
        raise ValueError(f"expected has norm {float(size)}; accepted: above 0")
    error = (a - b).abs()
    exponent = torch.floor(torch.log2(torch.maximum(b.abs(), size / len(b) ** 0.5)))
    ulp = torch.exp2(exponent) * torch.finfo(model or result.dtype).eps
    return Difference(
        cosine=float(a @ b / (a.norm() * size)),
        relative_rms=float(error.norm() / size),
        max_ulps=float((error / ulp).max()),
    )
