"""The tensors of a published Wan transformer: diffusers' names and shapes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from models.checkpoints import FLOATING, Expected
from models.wan22.config import WanConfig
from models.wan22.projections import block_projections

FP32_PARTS = ("time_embedder", "scale_shift_table", "norm1", "norm2")
"""Parts of names that diffusers keeps in fp32 where the rest is bf16."""


def published_tensors(config: WanConfig) -> Iterator[tuple[str, Expected]]:
    """Every tensor of the model."""
    for name, shape in outer_shapes(config).items():
        yield name, Expected(shape, FLOATING)
    for layer in range(config.num_layers):
        for name, shape in _block_shapes(config).items():
            yield f"blocks.{layer}.{name}", Expected(shape, FLOATING)


def outer_shapes(config: WanConfig) -> dict[str, tuple[int, ...]]:
    """What is in no block: embeddings and the output head."""
    hidden, embedder = config.hidden, "condition_embedder"
    shapes = _linear("patch_embedding", config.in_channels, hidden)
    shapes["patch_embedding.weight"] = (hidden, config.in_channels, *config.patch_size)
    shapes |= _linear(f"{embedder}.time_embedder.linear_1", config.freq_dim, hidden)
    shapes |= _linear(f"{embedder}.time_embedder.linear_2", hidden, hidden)
    shapes |= _linear(f"{embedder}.time_proj", hidden, 6 * hidden)
    shapes |= _linear(f"{embedder}.text_embedder.linear_1", config.text_dim, hidden)
    shapes |= _linear(f"{embedder}.text_embedder.linear_2", hidden, hidden)
    if config.image_dim is not None:
        image = f"{embedder}.image_embedder"
        shapes |= _norm(f"{image}.norm1", config.image_dim) | _norm(f"{image}.norm2", hidden)
        shapes |= _linear(f"{image}.ff.net.0.proj", config.image_dim, config.image_dim)
        shapes |= _linear(f"{image}.ff.net.2", config.image_dim, hidden)
    shapes |= _linear("proj_out", hidden, config.out_channels * config.patch_elements)
    return shapes | {"scale_shift_table": (1, 2, hidden)}


def kept_in_block(config: WanConfig) -> dict[str, tuple[int, ...]]:
    """What a block has besides projections."""
    hidden = (config.hidden,)
    norms = [f"attn{number}.norm_{which}" for number in (1, 2) for which in ("q", "k")]
    norms += ["attn2.norm_added_k"] if config.has_image else []
    shapes = {f"{name}.weight": hidden for name in norms} | _norm("norm2", config.hidden)
    return shapes | {"scale_shift_table": (1, 6, config.hidden)}


def kept_dtype(name: str) -> torch.dtype:
    """In which dtype a tensor that is no block's projection is kept."""
    return torch.float32 if any(part in name for part in FP32_PARTS) else torch.bfloat16


def _block_shapes(config: WanConfig) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for spec in block_projections(config):
        for source in spec.sources:
            shapes |= _linear(source, spec.inputs, spec.outputs // len(spec.sources))
    return shapes | kept_in_block(config)


def _linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}
