"""Latents as pictures, and how alike two of them are.

There is no VAE here: its weights are not part of this repository. A fixed random projection of the latents' channels to
red, green and blue stands in for it, which shows differences of latents and nothing of what they depict.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.image import imsave
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

PIXELS_PER_LATENT = 8
"""The VAE's upsampling in height and width."""

MAX_LEVEL = 255
GAP_PIXELS = 4
_SEED = 0


@dataclass(frozen=True)
class Likeness:
    """Of two frames: PSNR in dB (infinite for equal ones), and SSIM."""

    psnr_db: float
    ssim: float


def decode(latents: torch.Tensor) -> np.ndarray:
    """Latents [1, C, T, H, W] to frames [T, 8 H, 8 W, 3] uint8."""
    channels = latents.shape[1]
    generator = torch.Generator().manual_seed(_SEED)
    projection = torch.linalg.qr(torch.randn(channels, 3, generator=generator)).Q
    colours = torch.einsum("cthw,cr->thwr", latents[0].float(), projection)
    levels = (torch.sigmoid(colours) * MAX_LEVEL).round().to(torch.uint8).numpy()
    return levels.repeat(PIXELS_PER_LATENT, axis=1).repeat(PIXELS_PER_LATENT, axis=2)


def likeness(frames: np.ndarray, others: np.ndarray) -> list[Likeness]:
    """Frame by frame."""
    return [_likeness(frame, other) for frame, other in zip(frames, others, strict=True)]


def _likeness(frame: np.ndarray, other: np.ndarray) -> Likeness:
    equal = np.array_equal(frame, other)
    psnr = float("inf") if equal else peak_signal_noise_ratio(other, frame, data_range=MAX_LEVEL)
    return Likeness(float(psnr), float(structural_similarity(other, frame, channel_axis=-1, data_range=MAX_LEVEL)))


def write_strip(path: Path, rows: list[np.ndarray]) -> None:
    """Writes a PNG: frames [T, H, W, 3] from left to right, each of `rows` below the one before."""
    strips = [np.concatenate([_spaced(frame, axis=1) for frame in frames], axis=1) for frames in rows]
    imsave(path, np.concatenate([_spaced(strip, axis=0) for strip in strips]), format="png")


def _spaced(picture: np.ndarray, axis: int) -> np.ndarray:
    """With a white gap after it."""
    gap = [(0, GAP_PIXELS if dim == axis else 0) for dim in range(picture.ndim)]
    return np.pad(picture, gap, constant_values=MAX_LEVEL)
