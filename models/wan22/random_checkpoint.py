"""Random checkpoints in the published layout, made by diffusers' own model."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import WanTransformer3DModel

from models.wan22.config import HEAD_DIM

OUTLIER_CHANNELS = 8
OUTLIER_SCALE = 30.0


def write_checkpoint(
    folder: Path,
    *,
    heads: int = 2,
    layers: int = 2,
    seed: int = 0,
    outliers: bool = False,
    shard_size: str = "2MB",
    **config: object,
) -> None:
    """Saves a random transformer as diffusers publishes one: config, shards and index, bfloat16.

    Norms' weights, biases and modulation tables are random too, which fresh modules' are not.

    Args:
        folder: the `transformer` folder to write.
        heads, layers: sizes.
        seed: of all values.
        outliers: a few channels that are 30 times as large as the others, in the tokens and after each norm.
        shard_size: largest shard.
        config: further arguments of WanTransformer3DModel.
    """
    torch.manual_seed(seed)
    sizes = {"ffn_dim": 384, "text_dim": 64, **config}
    model = WanTransformer3DModel(num_layers=layers, num_attention_heads=heads, attention_head_dim=HEAD_DIM, **sizes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            elif name.endswith("bias"):
                parameter.copy_(0.05 * torch.randn_like(parameter))
            if outliers:
                _enlarge_channels(name, parameter)
            parameter.data = parameter.to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size=shard_size)


def _enlarge_channels(name: str, parameter: torch.Tensor) -> None:
    """Adds to the scales of `OUTLIER_CHANNELS` channels after each norm, and to other channels of the tokens."""
    if name.startswith("blocks.") and name.endswith("scale_shift_table"):
        parameter[:, (1, 4), :OUTLIER_CHANNELS] += OUTLIER_SCALE
    elif name.endswith("norm2.weight"):
        parameter[:OUTLIER_CHANNELS] += OUTLIER_SCALE
    elif name == "patch_embedding.bias":
        parameter[-OUTLIER_CHANNELS:] += OUTLIER_SCALE * torch.tensor([1.0, -1.0] * (OUTLIER_CHANNELS // 2))
