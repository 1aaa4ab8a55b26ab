"""What surrounds the blocks, in torch: patches, time, text and image in, the output head out."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch.nn import functional

from models.wan22.config import WanConfig

ROPE_THETA = 10000.0
TIME_PERIOD = 10000.0
IMAGE_NORM_EPS = 1e-5

Outer = Mapping[str, torch.Tensor]
"""Tensors in no block, by their published names."""


def embed_patches(outer: Outer, config: WanConfig, latents: torch.Tensor) -> torch.Tensor:
    """Latents [B, C, T, H, W] to tokens [B, S, hidden], time outermost."""
    weight, bias = outer["patch_embedding.weight"], outer["patch_embedding.bias"]
    embedded = functional.conv3d(latents.to(weight.dtype), weight, bias, stride=config.patch_size)
    return embedded.flatten(2).transpose(1, 2).contiguous()


def embed_time(outer: Outer, config: WanConfig, timestep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Timesteps [B] to their embedding [B, hidden] and the blocks' modulation [B, 6, hidden], bfloat16 both."""
    half = config.freq_dim // 2
    frequencies = torch.exp(-math.log(TIME_PERIOD) / half * torch.arange(half, dtype=torch.float32))
    angles = timestep.float()[:, None] * frequencies
    waves = torch.cat([angles.cos(), angles.sin()], -1)
    prefix = "condition_embedder"
    hidden = functional.silu(_linear(outer, f"{prefix}.time_embedder.linear_1", waves))
    embedded = _linear(outer, f"{prefix}.time_embedder.linear_2", hidden).to(torch.bfloat16)
    return embedded, _linear(outer, f"{prefix}.time_proj", functional.silu(embedded)).unflatten(1, (6, -1))


def embed_text(outer: Outer, text: torch.Tensor) -> torch.Tensor:
    """The text encoder's output [B, tokens, text_dim] to [B, tokens, hidden]."""
    prefix = "condition_embedder.text_embedder"
    hidden = functional.gelu(_linear(outer, f"{prefix}.linear_1", text.to(torch.bfloat16)), approximate="tanh")
    return _linear(outer, f"{prefix}.linear_2", hidden)


def embed_image(outer: Outer, image: torch.Tensor) -> torch.Tensor:
    """The image encoder's output [B, tokens, image_dim] to [B, tokens, hidden]."""
    prefix = "condition_embedder.image_embedder"
    hidden = _layer_norm(outer, f"{prefix}.norm1", image.to(torch.bfloat16))
    hidden = functional.gelu(_linear(outer, f"{prefix}.ff.net.0.proj", hidden))
    return _layer_norm(outer, f"{prefix}.norm2", _linear(outer, f"{prefix}.ff.net.2", hidden))


def rope_caches(config: WanConfig, grid: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [S, head_dim] float32 of every token's place in time, height and width; rotate-half convention."""
    pairs_each = config.attention_head_dim // 6
    pairs = (config.attention_head_dim // 2 - 2 * pairs_each, pairs_each, pairs_each)
    places = torch.meshgrid(*(torch.arange(size, dtype=torch.float64) for size in grid), indexing="ij")
    angles = torch.cat(
        [
            place.reshape(-1, 1) / ROPE_THETA ** (torch.arange(count, dtype=torch.float64) / count)
            for place, count in zip(places, pairs, strict=True)
        ],
        dim=-1,
    )
    turned = torch.cat([angles, angles], -1)
    return turned.cos().float(), turned.sin().float()


def output_head(
    outer: Outer, config: WanConfig, tokens: torch.Tensor, embedded: torch.Tensor, grid: tuple[int, int, int]
) -> torch.Tensor:
    """Tokens [B, S, hidden] and the time's embedding [B, hidden] to latents [B, out_channels, T, H, W], bfloat16."""
    shift, scale = (outer["scale_shift_table"] + embedded[:, None]).chunk(2, 1)
    normed = functional.layer_norm(tokens.float(), tokens.shape[-1:], eps=config.eps)
    patches = _linear(outer, "proj_out", (normed * (1 + scale) + shift).to(torch.bfloat16))
    (time, height, width), (p_t, p_h, p_w) = grid, config.patch_size
    patches = patches.reshape(-1, time, height, width, p_t, p_h, p_w, config.out_channels)
    ordered = patches.permute(0, 7, 1, 4, 2, 5, 3, 6)
    return ordered.reshape(-1, config.out_channels, time * p_t, height * p_h, width * p_w)


def _linear(outer: Outer, name: str, x: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, outer[f"{name}.weight"], outer[f"{name}.bias"])


def _layer_norm(outer: Outer, name: str, x: torch.Tensor) -> torch.Tensor:
    weight, bias = outer[f"{name}.weight"], outer[f"{name}.bias"]
    return functional.layer_norm(x.float(), weight.shape, weight, bias, IMAGE_NORM_EPS).to(torch.bfloat16)
