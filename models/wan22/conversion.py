"""Converts a published Wan2.2 checkpoint, both experts, and opens what was converted."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from models.checkpoints import Checkpoint, CheckpointError, Part, convert, open_checkpoint, open_converted
from models.wan22.config import WanConfig, from_json, read_config
from models.wan22.packing import BLOCK_PARTS, Tensors, pack_block_part, pack_outer, packed_tensors
from models.wan22.projections import Precision, Precisions, block_projections, choose_precisions
from models.wan22.published import published_tensors

EXPERTS = ("transformer", "transformer_2")
"""Folders of a published pipeline: the expert for high noise, and the one for low noise."""

IGNORED = "norm_added_q"
"""Part of names in some published checkpoints that diffusers ignores too."""


@dataclass(frozen=True)
class Converted:
    """A converted checkpoint.

    Attributes:
        config: of every expert.
        precisions: of every block's projections.
        experts: which of `EXPERTS` there are; an expert's tensors begin with its name and a dot.
        checkpoint: the tensors, in the files.
    """

    config: WanConfig
    precisions: Precisions
    experts: tuple[str, ...]
    checkpoint: Checkpoint


def convert_checkpoint(source: Path, destination: Path, bf16: tuple[str, ...] = ()) -> None:
    """Converts; goes on where an interrupted conversion stopped.

    Args:
        source: a pipeline's folder with `transformer` and perhaps `transformer_2`, or one such folder itself.
        destination: the folder to make.
        bf16: projections to keep in bf16, by name; the others are quantised.

    Raises:
        CheckpointError: the source is not a whole Wan checkpoint, or the destination cannot be made.
        ValueError: `bf16` names no projection.
    """
    folders = _expert_folders(source)
    configs = {expert: read_config(folder) for expert, folder in folders.items()}
    config, *others = configs.values()
    if any(other != config for other in others):
        raise CheckpointError(f"{source}: expected: experts of one config; found: different ones")
    precisions = choose_precisions(config, bf16)
    opened = {expert: _open_published(folder, config) for expert, folder in folders.items()}
    parts = [part for expert, one in opened.items() for part in _parts(expert, one, config, precisions)]
    convert(destination, _description(config, precisions, opened), parts)


def open_wan(folder: Path) -> Converted:
    """Opens a converted checkpoint.

    Raises:
        CheckpointError: it is none, not of Wan, or a tensor is missing or not what the config says.
    """
    description, checkpoint = open_converted(folder)
    try:
        config = from_json(description["config"])
        precisions = {name: Precision(value) for name, value in description["precisions"].items()}
        experts = tuple(description["experts"])
        whole = set(precisions) == {spec.name for spec in block_projections(config)} and experts[0] == EXPERTS[0]
    except (LookupError, TypeError, ValueError, AttributeError):
        whole = False
    if not whole:
        raise CheckpointError(f"{folder}: expected: a converted Wan checkpoint; found: one of another model")
    for expert in experts:
        checkpoint.require((f"{expert}.{name}", wanted) for name, wanted in packed_tensors(config, precisions))
    return Converted(config, MappingProxyType(precisions), experts, checkpoint)


def _expert_folders(source: Path) -> dict[str, Path]:
    # Path.is_file() raises for names that are too long and folders that may not be read.
    if os.path.isfile(source / "config.json"):
        return {EXPERTS[0]: source}
    found = {expert: source / expert for expert in EXPERTS if os.path.isdir(source / expert)}
    if EXPERTS[0] not in found:
        raise CheckpointError(
            f"{source}: expected: a folder with {EXPERTS[0]}, or with a transformer's config.json; found: neither"
        )
    return found


def _open_published(folder: Path, config: WanConfig) -> Checkpoint:
    opened = open_checkpoint(folder)
    names = opened.require(published_tensors(config))
    opened.require_no_others(names | {name for name in opened.tensors if IGNORED in name})
    return opened


def _parts(expert: str, source: Checkpoint, config: WanConfig, precisions: Precisions) -> list[Part]:
    def prefixed(make: Any) -> Tensors:
        return {f"{expert}.{name}": tensor for name, tensor in make().items()}

    makers = {"outer": functools.partial(pack_outer, source, config)}
    for layer in range(config.num_layers):
        for part in BLOCK_PARTS:
            makers[f"block_{layer:02}_{part}"] = functools.partial(
                pack_block_part, source, config, precisions, layer, part
            )
    return [Part(f"{expert}_{name}.safetensors", functools.partial(prefixed, make)) for name, make in makers.items()]


def _description(config: WanConfig, precisions: Precisions, opened: dict[str, Checkpoint]) -> dict[str, Any]:
    files = sorted({stored.file.resolve() for one in opened.values() for stored in one.tensors.values()})
    return {
        "model": "wan22",
        "config": config.to_json(),
        "precisions": {name: precision.value for name, precision in precisions.items()},
        "experts": list(opened),
        "source": {str(file): [file.stat().st_size, file.stat().st_mtime_ns] for file in files},
    }
