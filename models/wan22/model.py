"""The DiT of Wan: latents, a timestep and a prompt in, the predicted velocity out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from models.wan22 import embeddings
from models.wan22.block import Block, CrossKeys, Observe, Places
from models.wan22.config import TEXT_TOKENS
from models.wan22.conversion import EXPERTS, Converted, open_wan
from models.wan22.mesh import Mesh
from models.wan22.ranks import LocalRanks, Ranks
from models.wan22.weights import load_weights

TRAINING_STEPS = 1000
"""Noise levels that timesteps count."""


@dataclass(frozen=True)
class Prompt:
    """Keys and values of a prompt in every block, computed once per generation.

    Attributes:
        expert: whose keys they are.
        batch: B.
        keys: of each block.
    """

    expert: str
    batch: int
    keys: tuple[CrossKeys, ...]


class WanDiT:
    """One expert of a converted checkpoint.

    model = WanDiT.load(folder)
    prompt = model.encode(text)
    velocity = model(latents, timestep, prompt)
    """

    def __init__(self, converted: Converted, expert: str, mesh: Mesh, ranks: Ranks) -> None:
        """See `load`."""
        if ranks.size != mesh.size:
            raise ValueError(f"ranks are {ranks.size}; accepted: {mesh.size}, for tp {mesh.tp} and cp {mesh.cp}")
        weights = load_weights(converted, expert, mesh, ranks.here)
        self.config = converted.config
        self.expert = expert
        self.mesh = mesh
        self.ranks = ranks
        self.outer = weights.outer
        self.blocks = [Block(one, self.config, mesh, ranks) for one in weights.blocks]

    @staticmethod
    def load(folder: Path, expert: str = EXPERTS[0], mesh: Mesh | None = None, ranks: Ranks | None = None) -> WanDiT:
        """Opens a converted checkpoint.

        Args:
            folder: of the converted checkpoint.
            expert: which of its experts.
            mesh: how ranks share the model; None: one rank.
            ranks: those ranks; None: all in this process.

        Raises:
            CheckpointError: the checkpoint cannot be used.
            ValueError: there is no such expert, or `mesh` does not fit the model or the ranks.
        """
        mesh = mesh or Mesh()
        return WanDiT(open_wan(folder), expert, mesh, ranks or LocalRanks(mesh.size))

    @torch.no_grad()
    def encode(self, text: torch.Tensor, image: torch.Tensor | None = None) -> Prompt:
        """What every step of a generation needs of its prompt.

        Args:
            text: [B, tokens, text_dim], the text encoder's output; with an image, 512 tokens.
            image: [B, tokens, image_dim], the image encoder's output, where the config has an `image_dim`.

        Raises:
            TypeError, ValueError: an argument is not as described.
        """
        config = self.config
        _require("text", text, (None, TEXT_TOKENS if config.has_image else None, config.text_dim))
        if config.has_image:
            _require("image", image, (text.shape[0], None, config.image_dim))
        elif image is not None:
            raise ValueError("image is given; accepted: None, the config has no image_dim")
        embedded = embeddings.embed_text(self.outer, text)
        of_image = None if image is None else embeddings.embed_image(self.outer, image)
        return Prompt(self.expert, text.shape[0], tuple(block.cross_keys(embedded, of_image) for block in self.blocks))

    @torch.no_grad()
    def __call__(
        self, latents: torch.Tensor, timestep: torch.Tensor, prompt: Prompt, observe: Observe | None = None
    ) -> torch.Tensor:
        """One step.

        Args:
            latents: [B, in_channels, T, H, W], float32 or bfloat16.
            timestep: [B], from 0 to 1000, of any real dtype.
            prompt: of this model's `encode`.
            observe: is told every intermediate.

        Returns:
            [B, out_channels, T, H, W] bfloat16, on every rank.

        Raises:
            TypeError, ValueError: an argument is not as described.
        """
        grid = self._require_step(latents, timestep, prompt)
        note: Observe = observe or (lambda *_: None)
        whole = embeddings.embed_patches(self.outer, self.config, latents)
        note("patch_embedding", [whole])
        embedded, modulation = embeddings.embed_time(self.outer, self.config, timestep)
        note("condition_embedder.time_proj", [modulation.flatten(1)])
        count = whole.shape[1]
        tokens, places = self.share(whole), self.places(grid)
        for layer, (block, keys) in enumerate(zip(self.blocks, prompt.keys, strict=True)):
            tokens = block.forward(tokens, modulation, places, keys, _named(note, f"blocks.{layer}"))
        result = torch.cat(self.ranks.gather(tokens), 1)[:, :count]
        velocity = embeddings.output_head(self.outer, self.config, result, embedded, grid)
        note("output", [velocity])
        return velocity

    def _require_step(self, latents: Any, timestep: Any, prompt: Any) -> tuple[int, int, int]:
        _require("latents", latents, (None, self.config.in_channels, None, None, None))
        grid = self.config.grid(tuple(latents.shape))
        batch = latents.shape[0]
        if not isinstance(timestep, torch.Tensor) or tuple(timestep.shape) != (batch,):
            raise ValueError(f"timestep is {_described(timestep)}; accepted: a tensor [{batch}], as latents have")
        _require_on_cpu("timestep", timestep)
        # NaN is in no range.
        if timestep.is_complex() or not ((timestep >= 0) & (timestep <= TRAINING_STEPS)).all():
            raise ValueError(f"timestep is {timestep.tolist()}; accepted: from 0 to {TRAINING_STEPS}")
        if not isinstance(prompt, Prompt):
            raise TypeError(f"prompt is {_described(prompt)}; accepted: what encode() returned")
        if prompt.expert != self.expert or len(prompt.keys) != len(self.blocks):
            raise ValueError(f"prompt is of {prompt.expert}, {len(prompt.keys)} blocks; accepted: {self.expert}'s own")
        if prompt.batch != batch:
            raise ValueError(f"prompt is of batch {prompt.batch}; accepted: {batch}, as latents have")
        return grid

    def share(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """Tokens [B, S, hidden] of each rank here, padded with zeros."""
        missing = self.mesh.padded(whole.shape[1]) - whole.shape[1]
        padded = torch.nn.functional.pad(whole, (0, 0, 0, missing))
        return [padded.chunk(self.mesh.size, 1)[rank].contiguous() for rank in self.ranks.here]

    def places(self, grid: tuple[int, int, int]) -> Places:
        """Where the tokens of a grid are."""
        count = math.prod(grid)
        missing = self.mesh.padded(count) - count
        cos, sin = (
            torch.nn.functional.pad(cache, (0, 0, 0, missing)).chunk(self.mesh.cp)
            for cache in embeddings.rope_caches(self.config, grid)
        )
        groups = [rank // self.mesh.tp for rank in self.ranks.here]
        return Places(count, tuple((cos[group], sin[group]) for group in groups))


def _named(observe: Observe, prefix: str) -> Observe:
    return lambda name, parts: observe(f"{prefix}.{name}" if name else prefix, parts)


def _require(name: str, value: Any, shape: Sequence[int | None]) -> None:
    """A finite floating tensor of this shape; None stands for any size."""
    accepted = f"a tensor [{', '.join('*' if size is None else str(size) for size in shape)}], float32 or bfloat16"
    if not isinstance(value, torch.Tensor) or value.dtype not in (torch.float32, torch.bfloat16):
        raise TypeError(f"{name} is {_described(value)}; accepted: {accepted}")
    _require_on_cpu(name, value)
    fits = len(value.shape) == len(shape) and all(
        size and wanted in (None, size) for size, wanted in zip(value.shape, shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{name} is {_described(value)}; accepted: {accepted}")
    if not torch.isfinite(value).all():
        raise ValueError(f"{name} has NaN or infinite values; accepted: finite ones")


def _require_on_cpu(name: str, value: torch.Tensor) -> None:
    """Kernels run on the simulator, and everything else beside them."""
    if value.device.type != "cpu" or value.layout != torch.strided:
        raise ValueError(f"{name} is {value.layout} on {value.device}; accepted: {torch.strided} on cpu")


def _described(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    return f"{list(value.shape)} {value.dtype}"
