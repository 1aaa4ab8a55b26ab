"""Weights of a converted transformer, those of this process's ranks only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from common import row_mx
from models.checkpoints import CheckpointError
from models.wan22.conversion import EXPERTS, Converted
from models.wan22.embeddings import Outer
from models.wan22.mesh import Mesh
from models.wan22.projecting import Projection
from models.wan22.projections import SELF_QKV, Precision, ProjectionSpec, block_projections
from models.wan22.published import kept_in_block, outer_shapes
from tools.bench.progress import progress

Kept = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class SelfShare:
    """A rank's heads of self-attention.

    Attributes:
        qkv: Q | K | V of its heads.
        gammas: of Q and K, each [its heads * head_dim].
    """

    qkv: Projection
    gammas: tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class BlockWeights:
    """Weights of a block.

    Attributes:
        shares: of self-attention's Q, K and V, one for each rank here.
        projections: the others, by name.
        kept: what is no projection, by name.
    """

    shares: tuple[SelfShare, ...]
    projections: Mapping[str, Projection]
    kept: Kept


@dataclass(frozen=True)
class Weights:
    """Weights of a transformer: what is in no block, and the blocks."""

    outer: Outer
    blocks: tuple[BlockWeights, ...]


def load_weights(converted: Converted, expert: str, mesh: Mesh, here: tuple[int, ...]) -> Weights:
    """Maps an expert's weights; values are read when they are used.

    Args:
        converted: the checkpoint.
        expert: one of its experts.
        mesh: how ranks share the model.
        here: ranks of this process.

    Raises:
        CheckpointError: weight scales that are not finite and positive.
        ValueError: there is no such expert, or `mesh` does not fit the model.
    """
    if expert not in converted.experts:
        raise ValueError(f"expert is {expert!r}; accepted: {' or '.join(converted.experts)} of {EXPERTS}")
    mesh.require_heads(converted.config)
    layers = range(converted.config.num_layers)
    blocks = []
    with progress(len(layers)) as announce:
        for layer in layers:
            announce(f"{expert}: block {layer}")
            blocks.append(_load_block(converted, f"{expert}.blocks.{layer}.", mesh, here))
    outer = {name: converted.checkpoint.read(f"{expert}.{name}") for name in outer_shapes(converted.config)}
    return Weights(outer, tuple(blocks))


def _load_block(converted: Converted, prefix: str, mesh: Mesh, here: tuple[int, ...]) -> BlockWeights:
    config, read = converted.config, converted.checkpoint.read
    specs = {spec.name: spec for spec in block_projections(config)}
    projections = {
        name: _load_projection(converted, prefix, spec, (slice(0, spec.outputs),))
        for name, spec in specs.items()
        if name != SELF_QKV
    }
    width = config.hidden // mesh.tp
    shares = []
    for rank in here:
        mine = slice(rank % mesh.tp * width, (rank % mesh.tp + 1) * width)
        columns = tuple(
            slice(first + mine.start, first + mine.stop) for first in range(0, 3 * config.hidden, config.hidden)
        )
        gammas = tuple(read(f"{prefix}attn1.norm_{which}.weight", mine) for which in "qk")
        shares.append(SelfShare(_load_projection(converted, prefix, specs[SELF_QKV], columns), (gammas[0], gammas[1])))
    kept = {name: read(prefix + name) for name in kept_in_block(config) if not name.startswith("attn1.")}
    return BlockWeights(tuple(shares), projections, kept)


def _load_projection(converted: Converted, prefix: str, spec: ProjectionSpec, columns: tuple[slice, ...]) -> Projection:
    """A projection's output channels in `columns`, side by side; a view of the file where that is one run."""

    def read(part: str) -> torch.Tensor:
        name = f"{prefix}{spec.name}.{part}"
        rows = slice(0, converted.checkpoint.stored(name).shape[0])
        return _joined([converted.checkpoint.read(name, rows, run) for run in columns])

    if converted.precisions[spec.name] is Precision.BF16:
        return Projection(read("weight"), read("bias"), None)
    scales = read("weight_scales")
    _require_scales(converted, f"{prefix}{spec.name}.weight_scales", scales)
    return Projection(read("weight"), read("bias"), scales)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _require_scales(converted: Converted, name: str, scales: torch.Tensor) -> None:
    try:
        row_mx.require_scales(name, scales)
    except ValueError as error:
        raise CheckpointError(f"{converted.checkpoint.stored(name).file}: {error}") from None
