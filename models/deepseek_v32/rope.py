"""Rotary positions with YaRN: angles and the softmax scale that goes with them.

In fp32 throughout, as the published model: at position 100,000 an angle's fp32 rounding is larger than what a test in
fp32 lets pass, so that a better angle would be another model.
"""

from __future__ import annotations

import math

import torch

from kernels.mla_decode import yarn_softmax_scale
from models.deepseek_v32.config import ModelConfig, Yarn


def frequencies(config: ModelConfig) -> torch.Tensor:
    """[rope / 2] float32: radians per position of each pair of features.

    With YaRN, pairs that turn often within the original context keep their frequency, those that turn rarely get it
    divided by `factor`, and a linear ramp lies between.
    """
    dim = config.qk_rope_head_dim
    wavelengths = config.rope_theta ** (torch.arange(0, dim, 2).float() / dim)
    if config.yarn is None:
        return 1.0 / wavelengths
    low, high = _ramp(config.yarn, config.rope_theta, dim)
    interpolated = ((torch.arange(dim // 2).float() - low) / (high - low)).clamp(0, 1)
    kept = 1 - interpolated
    return 1.0 / (config.yarn.factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept


def _ramp(yarn: Yarn, theta: float, dim: int) -> tuple[float, float]:
    """First and last pair of the ramp: those that turn beta_fast and beta_slow times in the original context."""

    def pair(turns: float) -> float:
        return dim * math.log(yarn.original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(pair(yarn.beta_fast)), 0), min(math.ceil(pair(yarn.beta_slow)), dim - 1)
    return low, high if high != low else high + 0.001


def cos_sin(config: ModelConfig, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, [n, rope / 2] float32, of [n] positions."""
    angles = positions.float()[:, None] * frequencies(config)
    size = 1.0
    if config.yarn is not None:
        size = _mscale(config.yarn.factor, config.yarn.mscale) / _mscale(config.yarn.factor, config.yarn.mscale_all_dim)
    return angles.cos() * size, angles.sin() * size


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 1.0 + 0.1 * mscale * math.log(factor)


def softmax_scale(config: ModelConfig) -> float:
    """Of the attention's scores; 0.135234 for the published configuration."""
    if config.yarn is None:
        return yarn_softmax_scale(config.query_head_dim)
    return yarn_softmax_scale(config.query_head_dim, config.yarn.factor, config.yarn.mscale_all_dim)
