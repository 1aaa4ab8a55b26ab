"""From published tensors to what the kernels take: what a converted checkpoint holds, and how it is made.

A projection becomes `<name>.weight`, `<name>.bias` and, quantised, `<name>.weight_scales`; a fused one has its sources
side by side. Everything else keeps its name and shape. Lanes of Q and K of self-attention are in rotate-half order.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from common import row_mx
from kernels.qkv_cte.host.lanes import to_rotate_half
from models.checkpoints import Checkpoint, CheckpointError, Expected
from models.wan22.config import WanConfig
from models.wan22.projections import Precision, Precisions, ProjectionSpec, block_projections
from models.wan22.published import kept_dtype, kept_in_block, outer_shapes

CHANNELS_AT_A_TIME = 512
"""Output channels quantised at once: the working set is theirs, whatever the projection's width."""

ROTATED_GAMMAS = ("attn1.norm_q.weight", "attn1.norm_k.weight")

BLOCK_PARTS = ("attn1", "attn2", "ffn", "other")
"""Parts of a block that are converted one at a time, by how their tensors' names begin."""

Tensors = dict[str, torch.Tensor]


def packed_projection(spec: ProjectionSpec, precision: Precision) -> dict[str, Expected]:
    """Tensors of a projection in a converted checkpoint."""
    channels = {f"{spec.name}.bias": Expected((1, spec.outputs), (torch.float32,))}
    if precision is Precision.BF16:
        return channels | {f"{spec.name}.weight": Expected((spec.inputs, spec.outputs), (torch.bfloat16,))}
    words = spec.inputs // row_mx.H_PACK
    return channels | {
        f"{spec.name}.weight": Expected((words, spec.outputs, row_mx.H_PACK), (torch.float8_e4m3fn,)),
        f"{spec.name}.weight_scales": Expected((1, spec.outputs), (torch.float32,)),
    }


def packed_tensors(config: WanConfig, precisions: Precisions) -> Iterator[tuple[str, Expected]]:
    """Every tensor of a converted transformer."""
    block = {name: Expected(shape, (kept_dtype(name),)) for name, shape in kept_in_block(config).items()}
    for spec in block_projections(config):
        block |= packed_projection(spec, precisions[spec.name])
    for name, shape in outer_shapes(config).items():
        yield name, Expected(shape, (kept_dtype(name),))
    for layer in range(config.num_layers):
        for name, expected in block.items():
            yield f"blocks.{layer}.{name}", expected


def pack_outer(source: Checkpoint, config: WanConfig) -> Tensors:
    """Embeddings and the output head."""
    return {name: _read(source, name).to(kept_dtype(name)) for name in outer_shapes(config)}


def pack_block_part(source: Checkpoint, config: WanConfig, precisions: Precisions, layer: int, part: str) -> Tensors:
    """Tensors of one of a block's `BLOCK_PARTS`."""
    prefix, packed = f"blocks.{layer}.", {}
    for name in kept_in_block(config):
        if _part(name) == part:
            kept = _read(source, prefix + name).to(kept_dtype(name))
            packed[prefix + name] = to_rotate_half(kept, config.attention_head_dim) if name in ROTATED_GAMMAS else kept
    for spec in block_projections(config):
        if _part(spec.name) == part:
            packed |= _pack_projection(source, config, spec, precisions[spec.name], prefix)
    return packed


def _part(name: str) -> str:
    first = name.split(".")[0]
    return first if first in BLOCK_PARTS else BLOCK_PARTS[-1]


def _pack_projection(
    source: Checkpoint, config: WanConfig, spec: ProjectionSpec, precision: Precision, prefix: str
) -> Tensors:
    expected = packed_projection(spec, precision)
    packed = {name: torch.empty(wanted.shape, dtype=wanted.dtypes[0]) for name, wanted in expected.items()}
    width = spec.outputs // len(spec.sources)
    for index, name in enumerate(spec.sources):
        head_dim = config.attention_head_dim if index < spec.rotated else None
        for first in range(0, width, CHANNELS_AT_A_TIME):
            rows = slice(first, min(first + CHANNELS_AT_A_TIME, width))
            columns = slice(index * width + rows.start, index * width + rows.stop)
            _pack_channels(source, f"{prefix}{name}", rows, head_dim, spec.name, packed, columns)
    return {prefix + name: tensor for name, tensor in packed.items()}


def _pack_channels(
    source: Checkpoint, name: str, rows: slice, head_dim: int | None, packed_name: str, packed: Tensors, columns: slice
) -> None:
    """Writes some output channels of a linear, its rows, to their columns of the packed tensors."""
    weight, bias = _read(source, f"{name}.weight", rows), _read(source, f"{name}.bias", rows)
    if head_dim is not None:
        weight, bias = to_rotate_half(weight, head_dim, dim=0), to_rotate_half(bias, head_dim)
    packed[f"{packed_name}.bias"][:, columns] = bias
    scales = packed.get(f"{packed_name}.weight_scales")
    if scales is None:
        packed[f"{packed_name}.weight"][:, columns] = weight.T
        return
    codes, scales[:, columns] = row_mx.quantise_columns(weight.T)
    packed[f"{packed_name}.weight"][:, columns] = row_mx.pack_weight(codes)


def _read(source: Checkpoint, name: str, *index: slice) -> torch.Tensor:
    values = source.read(name, *index)
    finite = torch.isfinite(values)
    if not finite.all():
        place = (~finite).nonzero()[0].tolist()
        for axis, part in enumerate(index):
            place[axis] += part.start
        found = values[~finite][0].item()
        raise CheckpointError(f"{source.stored(name).file}: {name}: expected: finite values; found: {found} at {place}")
    return values
