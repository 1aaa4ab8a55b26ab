"""The model's norm."""

from __future__ import annotations

import torch

from models.deepseek_v32.config import NORM_EPS


def rms_norm(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    """x / sqrt(mean of x**2 + eps) * gamma over the last dimension; in fp32, rounded once to the type of x."""
    return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], gamma, NORM_EPS).to(x.dtype)
