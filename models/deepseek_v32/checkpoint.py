"""A rank's weights from a folder: the hub's layout, or a converted checkpoint, whose tensors are packed already."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from models.checkpoints import Checkpoint, CheckpointError, Expected, Part, convert, open_converted
from models.checkpoints.conversion import MANIFEST
from models.deepseek_v32.config import ModelConfig, Yarn
from models.deepseek_v32.hub import HubCheckpoint
from models.deepseek_v32.packing import Packed, packed_tensors, require_share
from models.deepseek_v32.weights import ModelWeights, assemble, pack

MODEL = "deepseek_v32"

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
"""Types that a model can have, by name."""

PART_BYTES = 512 << 20
"""Of a file of a converted checkpoint, unless one tensor has more. Conversion holds one at a time."""


def load(folder: Path, dtype: torch.dtype, rank: int = 0, ranks: int = 1) -> tuple[ModelConfig, ModelWeights]:
    """Configuration and weights of a rank, of which alone anything is read.

    Args:
        folder: of either kind.
        dtype: of the model, bfloat16 or float32.
        rank, ranks: whose part; sizes that ranks share out divide by `ranks`.

    Raises:
        CheckpointError: a tensor is missing, cut short, of another shape or type, or not finite; or the folder was
            converted for another type.
        TypeError, ValueError: the configuration is not of a model like this, or does not divide by `ranks`; there is
            no such rank; or a model cannot have this type.
    """
    _name(dtype)
    if os.path.exists(folder / MANIFEST):
        config, checkpoint = _open(folder, dtype)
        require_share(config, rank, ranks)
        tensors = {p.name: checkpoint.read(p.name, *p.part(rank, ranks)).contiguous() for p in packed_tensors(config)}
        return config, assemble(config, tensors)
    hub = HubCheckpoint(folder)
    return hub.config, pack(hub.config, hub.read, dtype, rank, ranks)


def convert_hub(source: Path, destination: Path, dtype: torch.dtype) -> None:
    """Packs a published checkpoint once, for any number of ranks: dequantised, in the layouts of the kernels.

    Raises:
        CheckpointError: the source is not whole, or `destination` cannot be made; see `models.checkpoints.convert`.
        ValueError: the configuration is not of a model like this.
    """
    hub = HubCheckpoint(source)
    description = {
        "model": MODEL,
        "dtype": _name(dtype),
        "config": dataclasses.asdict(hub.config),
        "source_files": hub.files,
    }
    groups = list(_grouped(hub.config, dtype))
    parts = [
        Part(f"part_{number:05d}_of_{len(groups):05d}.safetensors", _Maker(hub, tuple(group), dtype))
        for number, group in enumerate(groups, 1)
    ]
    convert(destination, description, parts)


@dataclasses.dataclass(frozen=True)
class _Maker:
    """Makes some packed tensors, whole."""

    hub: HubCheckpoint
    group: tuple[Packed, ...]
    dtype: torch.dtype

    def __call__(self) -> Mapping[str, torch.Tensor]:
        return {p.name: p.make(self.hub.read(p, p.source_part(0, 1)), self.dtype) for p in self.group}


def _grouped(config: ModelConfig, dtype: torch.dtype) -> Iterator[list[Packed]]:
    """Tensors that share a file."""
    group: list[Packed] = []
    size = 0
    for packed in packed_tensors(config):
        bytes_ = math.prod(packed.shape) * packed.dtype(dtype).itemsize
        if group and size + bytes_ > PART_BYTES:
            yield group
            group, size = [], 0
        group.append(packed)
        size += bytes_
    yield group


def _open(folder: Path, dtype: torch.dtype) -> tuple[ModelConfig, Checkpoint]:
    """A converted checkpoint whose tensors are all there."""
    description, checkpoint = open_converted(folder)
    found = {key: description.get(key) for key in ("model", "dtype")}
    for key, wanted in (("model", MODEL), ("dtype", _name(dtype))):
        if found[key] != wanted:
            raise CheckpointError(f"{folder}: {key}: expected: {wanted}; found: {found[key]}")
    config = _config(folder, description.get("config"))
    names = checkpoint.require((p.name, Expected(p.shape, (p.dtype(dtype),))) for p in packed_tensors(config))
    checkpoint.require_no_others(names)
    return config, checkpoint


def _config(folder: Path, described: Any) -> ModelConfig:
    try:
        yarn = described["yarn"]
        return ModelConfig(**{**described, "yarn": None if yarn is None else Yarn(**yarn)})
    except (LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder}: config: expected: that of a {MODEL}; found: {error}") from None


def _name(dtype: torch.dtype) -> str:
    for name, known in DTYPES.items():
        if known is dtype:
            return name
    raise TypeError(f"dtype is {dtype}; accepted: {', '.join(DTYPES)}")
