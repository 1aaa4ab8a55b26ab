"""A small layer's tensors under diffusers' names, for tests."""

from __future__ import annotations

import torch

HIDDEN = 256


def tensors(layer: int = 0, hidden: int = HIDDEN, seed: int = 0) -> dict[str, torch.Tensor]:
    """Attention tensors of block `layer`, bfloat16, no two alike."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for attention in ("attn1", "attn2"):
        prefix = f"blocks.{layer}.{attention}."
        for name in ("to_q", "to_k", "to_v"):
            found[f"{prefix}{name}.weight"] = torch.randn(hidden, hidden, generator=generator) / hidden**0.5
            found[f"{prefix}{name}.bias"] = torch.randn(hidden, generator=generator) * 0.1
        for name in ("norm_q", "norm_k"):
            found[f"{prefix}{name}.weight"] = torch.rand(hidden, generator=generator) + 0.5
    return {name: values.to(torch.bfloat16) for name, values in found.items()}
