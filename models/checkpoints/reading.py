"""Published checkpoints: sharded or single safetensors files, memory-mapped, read tensor by tensor."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from models.checkpoints.errors import CheckpointError
from models.checkpoints.header import Stored, read_header

INDEX_SUFFIX = ".safetensors.index.json"
FLOATING = (torch.bfloat16, torch.float32, torch.float16)
"""Dtypes of unquantised weights."""

_NAMES_SHOWN = 3


@dataclass(frozen=True)
class Expected:
    """What a tensor must be: its shape, and one of these dtypes."""

    shape: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]


class Checkpoint:
    """Tensors by name in one or several safetensors files, of which only the headers have been read."""

    def __init__(self, place: Path, tensors: Mapping[str, Stored]) -> None:
        """See `open_checkpoint`.

        Args:
            place: folder or file, for messages.
            tensors: where each tensor is.
        """
        self.place = place
        self.tensors = dict(tensors)

    def require(self, expected: Iterable[tuple[str, Expected]]) -> set[str]:
        """Refuses a checkpoint without these tensors, before any of them is read; returns their names.

        The first that is missing ends it: a config may ask for more tensors than could be listed.

        Raises:
            CheckpointError: a tensor is missing or has another shape or dtype.
        """
        names = set()
        for name, wanted in expected:
            stored = self.stored(name)
            if stored.shape != wanted.shape:
                raise CheckpointError(
                    f"{stored.file}: {name}: expected: shape {list(wanted.shape)}; found: {list(stored.shape)}"
                )
            if stored.dtype not in wanted.dtypes:
                accepted = " or ".join(str(dtype) for dtype in wanted.dtypes)
                raise CheckpointError(f"{stored.file}: {name}: expected: {accepted}; found: {stored.dtype}")
            names.add(name)
        return names

    def require_no_others(self, names: Iterable[str]) -> None:
        """Refuses a checkpoint with tensors besides these: it is of another model.

        Raises:
            CheckpointError: naming the first few.
        """
        others = sorted(set(self.tensors) - set(names))
        if others:
            shown = ", ".join(others[:_NAMES_SHOWN])
            more = f" and {len(others) - _NAMES_SHOWN} more" if len(others) > _NAMES_SHOWN else ""
            raise CheckpointError(f"{self.place}: expected: only this model's tensors; found: {shown}{more}")

    def stored(self, name: str) -> Stored:
        """Where a tensor is and what.

        Raises:
            CheckpointError: there is none of this name.
        """
        if name not in self.tensors:
            raise CheckpointError(
                f"{self.place}: expected: {name}; found: {len(self.tensors)} tensors, none of this name"
            )
        return self.tensors[name]

    def read(self, name: str, *index: slice) -> torch.Tensor:
        """A tensor, or the part of it that `index` selects (one slice for each leading dimension).

        The values stay in the file: a page is read when it is touched, and given back with the last view of the
        tensor. Nobody may write to it.

        Raises:
            CheckpointError: there is none of this name, or its file can no longer be read.
        """
        stored = self.stored(name)
        try:
            with safe_open(stored.file, framework="pt") as opened:
                values: torch.Tensor = opened.get_slice(name)[index] if index else opened.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{stored.file}: {name}: expected: a readable file; found: {error}") from None
        return values


def open_checkpoint(place: Path) -> Checkpoint:
    """Opens a checkpoint: every header is read, every file is as long as its header says, no tensor is read.

    Args:
        place: a safetensors file; or a folder with an index (`*.safetensors.index.json`) and its shards, or with a
            single safetensors file.

    Raises:
        CheckpointError: there is nothing of the kind, a shard is missing or cut short, or the index names a tensor
            that its shard does not hold or another holds too.
    """
    # Path.is_file() raises for names that are too long and folders that may not be read.
    if os.path.isfile(place):
        return Checkpoint(place, read_header(place))
    if not os.path.isdir(place):
        raise CheckpointError(f"{place}: expected: a safetensors file or a folder of them; found: nothing")
    index = _single(place, INDEX_SUFFIX)
    if index is not None:
        return Checkpoint(place, _indexed(index))
    alone = _single(place, ".safetensors")
    if alone is None:
        raise CheckpointError(f"{place}: expected: a safetensors file, or an index *{INDEX_SUFFIX}; found: neither")
    return Checkpoint(place, read_header(alone))


def _single(folder: Path, suffix: str) -> Path | None:
    try:
        found = sorted(path for path in folder.iterdir() if path.name.endswith(suffix))
    except OSError as error:
        raise CheckpointError(f"{folder}: expected: a folder to read; found: {error.strerror}") from None
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:_NAMES_SHOWN])
        raise CheckpointError(f"{folder}: expected: one file *{suffix}; found: {len(found)}, such as {names}")
    return found[0] if found else None


def _indexed(index: Path) -> dict[str, Stored]:
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
        shards = {name: str(shard) for name, shard in weight_map.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f'{index}: expected: JSON with a "weight_map" of tensors and files') from None
    headers = {shard: _shard_header(index, shard) for shard in sorted(set(shards.values()))}
    for name, shard in shards.items():
        if name not in headers[shard]:
            raise CheckpointError(
                f"{index.parent / shard}: expected: {name}, as {index.name} says; found: no such tensor"
            )
        if len(holders := [file for file, header in headers.items() if name in header]) > 1:
            raise CheckpointError(f"{index.parent}: {name}: expected: in one file; found: in {' and '.join(holders)}")
    return {name: headers[shard][name] for name, shard in shards.items()}


def _shard_header(index: Path, shard: str) -> dict[str, Stored]:
    if shard != Path(shard).name or "\0" in shard:
        raise CheckpointError(f"{index}: expected: names of files beside it; found: {shard!r}")
    return read_header(index.parent / shard)
