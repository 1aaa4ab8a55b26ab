"""Denoising as Wan2.2 does it: two experts, the second below a boundary of noise; guidance; diffusers' scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from diffusers import UniPCMultistepScheduler

from common.checks import require_int
from models.wan22.model import TRAINING_STEPS, WanDiT


@dataclass(frozen=True)
class Sampling:
    """How latents are denoised; defaults are those published for Wan2.2 T2V A14B.

    Attributes:
        steps: of the scheduler, up to 1000.
        boundary: share of the noise below which the second expert takes over.
        guidance: scales of the first and of the second expert.
        flow_shift: of the scheduler's noise levels.
    """

    steps: int = 40
    boundary: float = 0.875
    guidance: tuple[float, float] = (4.0, 3.0)
    flow_shift: float = 12.0

    def __post_init__(self) -> None:
        if require_int("steps", self.steps, at_least=1) > TRAINING_STEPS:
            raise ValueError(f"steps is {self.steps}; accepted: up to {TRAINING_STEPS}")
        if not 0 <= self.boundary <= 1:
            raise ValueError(f"boundary is {self.boundary}; accepted: from 0 to 1")
        if len(self.guidance) != 2 or not all(map(math.isfinite, self.guidance)):
            raise ValueError(f"guidance is {self.guidance}; accepted: two finite scales")
        if not 0 < self.flow_shift < math.inf:
            raise ValueError(f"flow_shift is {self.flow_shift}; accepted: a finite number above 0")


def generate(
    experts: tuple[WanDiT, WanDiT],
    noise: torch.Tensor,
    text: torch.Tensor,
    sampling: Sampling,
    announce: Callable[[str], None],
) -> torch.Tensor:
    """Denoises latents.

    Args:
        experts: for high and for low noise.
        noise: [1, 16, T, H, W] float32, where it starts.
        text: [2, tokens, text_dim], the prompt's and the negative prompt's encodings.
        sampling: how.
        announce: is told each step.

    Returns:
        [1, 16, T, H, W] float32.

    Raises:
        TypeError, ValueError: an argument is not as described.
    """
    if not isinstance(noise, torch.Tensor) or noise.dtype != torch.float32:
        raise TypeError("noise is not a float32 tensor; accepted: [1, 16, T, H, W] float32")
    if noise.dim() != 5 or len(noise) != 1:
        raise ValueError(f"noise is {list(noise.shape)}; accepted: [1, 16, T, H, W]")
    scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        num_train_timesteps=TRAINING_STEPS,
        flow_shift=sampling.flow_shift,
    )
    scheduler.set_timesteps(sampling.steps)
    prompts = [expert.encode(text) for expert in experts]
    latents = noise
    for timestep in scheduler.timesteps:
        which = int(float(timestep) < sampling.boundary * TRAINING_STEPS)
        announce(f"timestep {int(timestep)}, {experts[which].expert}")
        both = experts[which](latents.expand(2, -1, -1, -1, -1), timestep.expand(2), prompts[which]).float()
        wanted, unwanted = both.chunk(2)
        velocity = unwanted + sampling.guidance[which] * (wanted - unwanted)
        latents = scheduler.step(velocity, timestep, latents, return_dict=False)[0]
    return latents
