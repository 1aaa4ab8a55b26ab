"""Random activations of the kind that an attention projection reads."""

from __future__ import annotations

import torch

GAIN_SPREAD = 0.5
"""Standard deviation of the logarithm of the channels' gains."""

LOUD_EVERY, LOUD_GAIN = 256, 10.0
"""One channel in so many is louder by this factor, as in trained transformers."""


def random_layer_input(tokens: int, hidden: int, seed: int) -> torch.Tensor:
    """A normalised, modulated input: normal tokens, log-normal channel gains, a few loud channels.

    Returns:
        [1, tokens, hidden] float32, the same for the same arguments.
    """
    generator = torch.Generator().manual_seed(seed)
    gains = (torch.randn(hidden, generator=generator) * GAIN_SPREAD).exp()
    gains[::LOUD_EVERY] *= LOUD_GAIN
    shift = torch.randn(hidden, generator=generator) * 0.1
    return torch.randn(1, tokens, hidden, generator=generator) * gains + shift
