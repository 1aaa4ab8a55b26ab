"""Converts a checkpoint once, part by part: resumable, hashed, and seen under its final name only when whole.

While it runs, everything lies in `<destination>.partial`: each finished part as a safetensors file, and a journal of
their hashes. A part appears there whole or not at all. At the end the journal becomes `manifest.json` and the folder
gets its final name, both by renaming.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from models.checkpoints.errors import CheckpointError
from models.checkpoints.header import Stored, read_header
from models.checkpoints.reading import Checkpoint
from tools.bench.progress import progress

MANIFEST = "manifest.json"
JOURNAL = "journal.json"
VERSION = 1
"""Of the manifest's format."""

_WRITING = ".writing"


@dataclass(frozen=True)
class Part:
    """One file of a converted checkpoint.

    Attributes:
        file_name: unique in the conversion, ends in ".safetensors".
        make: returns its tensors by name, contiguous and no two of them sharing memory. Memory in use is that of one
            part, so a part holds few large tensors.
    """

    file_name: str
    make: Callable[[], Mapping[str, torch.Tensor]]


def convert(destination: Path, description: Mapping[str, Any], parts: Sequence[Part]) -> None:
    """Makes every part that an earlier, interrupted run has not made, then gives the folder its name.

    Where `destination` is there already and from the same conversion, its hashes are checked and nothing is made.

    Args:
        destination: the folder to make.
        description: what is converted from what, as JSON: kept in the manifest, and two conversions are the same if
            theirs are equal.
        parts: made one at a time, in order.

    Raises:
        CheckpointError: `destination` or what an interrupted run left is of another conversion or damaged, another
            process is converting, or the folder cannot be written.
    """
    described: dict[str, Any] = json.loads(json.dumps(description))
    # A link that leads nowhere could not be replaced at the end.
    if os.path.lexists(destination):
        _require_same(destination, described, open_converted(destination)[0])
        _require_hashes(destination)
        return
    partial = destination.with_name(f"{destination.name}.partial")
    try:
        partial.mkdir(exist_ok=True)
        with _only_converter(partial):
            _resume(partial, described, parts)
            partial.rename(destination)
            _sync(destination.parent)
    except OSError as error:
        reason = f"{error.strerror or error}: {error.filename or partial}"
        raise CheckpointError(f"{destination} cannot be written: {reason}") from None


def open_converted(folder: Path) -> tuple[dict[str, Any], Checkpoint]:
    """A converted checkpoint: its description, and its tensors.

    Raises:
        CheckpointError: the folder is none, or a file is missing, cut short or of another size than the manifest's.
    """
    manifest = _read_manifest(folder / MANIFEST)
    tensors: dict[str, Stored] = {}
    for name, entry in manifest["files"].items():
        found = read_header(folder / name)
        if again := sorted(found.keys() & tensors.keys()):
            raise CheckpointError(f"{folder / name}: expected: tensors of no other file; found: {again[0]}")
        tensors |= found
        size = (folder / name).stat().st_size
        if size != entry["bytes"]:
            raise CheckpointError(f"{folder / name}: expected: {entry['bytes']:,} bytes; found: {size:,}")
    return manifest["description"], Checkpoint(folder, tensors)


def _resume(partial: Path, description: dict[str, Any], parts: Sequence[Part]) -> None:
    own = {part.file_name for part in parts}
    _require_own(partial, own)
    files: dict[str, dict[str, Any]] = {}
    if (partial / JOURNAL).exists():
        before = _read_manifest(partial / JOURNAL)
        _require_same(partial, description, before["description"])
        files = {name: entry for name, entry in before["files"].items() if name in own}
    journal = {"version": VERSION, "description": description, "files": files}
    with progress(len(parts)) as announce:
        for part in parts:
            announce(part.file_name)
            path = partial / part.file_name
            if part.file_name in files and _intact(path, files[part.file_name]):
                continue
            files[part.file_name] = _write_part(path, part)
            _write_json(partial / JOURNAL, journal)
    _write_json(partial / MANIFEST, journal)
    (partial / JOURNAL).unlink(missing_ok=True)


def _write_part(path: Path, part: Part) -> dict[str, Any]:
    """Writes a part, whole or not at all; returns its manifest entry."""
    writing = path.with_name(path.name + _WRITING)
    tensors = dict(part.make())
    try:
        save_file(tensors, writing)
    except SafetensorError as error:
        raise CheckpointError(f"{writing} cannot be written: {error}") from None
    _sync(writing)
    entry = {"bytes": writing.stat().st_size, "sha256": _sha256(writing)}
    writing.rename(path)
    return entry


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    writing = path.with_name(path.name + _WRITING)
    writing.write_text(json.dumps(document, indent=1) + "\n")
    _sync(writing)
    writing.rename(path)


def _require_own(partial: Path, parts: set[str]) -> None:
    """Refuses a folder with anything that no conversion to it left: it would end up in the destination."""
    own = parts | {JOURNAL, MANIFEST}
    for path in (partial, *sorted(partial.iterdir())):
        # What is written to a link, or named through one, would be somebody else's.
        if path.is_symlink() or (path != partial and path.name.removesuffix(_WRITING) not in own):
            found = "a link" if path.is_symlink() else "another file"
            raise CheckpointError(
                f"{path}: expected: only what an interrupted conversion left there; found: {found}; move it away"
            )


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        version, files = manifest["version"], manifest["files"]
        whole = all(
            name == Path(name).name and isinstance(entry["bytes"], int) and isinstance(entry["sha256"], str)
            for name, entry in files.items()
        )
        described = isinstance(manifest["description"], dict)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{path}: expected: the manifest of a converted checkpoint; found: none") from None
    if version != VERSION or not whole or not described:
        found = reprlib.repr(version)
        raise CheckpointError(f"{path}: expected: a manifest of version {VERSION}; found: version {found}")
    return manifest


def _require_same(folder: Path, wanted: dict[str, Any], found: dict[str, Any]) -> None:
    if difference := _first_difference(wanted, found):
        raise CheckpointError(
            f"{folder} is of another conversion; {difference}; remove it, or name another destination"
        )


def _first_difference(wanted: dict[str, Any], found: dict[str, Any]) -> str | None:
    """Names the entry, however deep it lies."""
    for key in {**wanted, **found}:
        one, other = wanted.get(key), found.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            if deeper := _first_difference(one, other):
                return f"{key}: {deeper}"
        elif one != other:
            return f"{key}: expected: {reprlib.repr(one)}; found: {reprlib.repr(other)}"
    return None


def _require_hashes(folder: Path) -> None:
    for name, entry in _read_manifest(folder / MANIFEST)["files"].items():
        found = _sha256(folder / name)
        if found != entry["sha256"]:
            raise CheckpointError(f"{folder / name}: expected: sha256 {entry['sha256']}; found: {found}")


def _intact(path: Path, entry: Mapping[str, Any]) -> bool:
    return path.is_file() and path.stat().st_size == entry["bytes"] and _sha256(path) == entry["sha256"]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _only_converter(partial: Path) -> Iterator[None]:
    """Keeps other processes from converting to the same folder meanwhile."""
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(f"{partial}: another process is converting to it") from None
        yield
    finally:
        os.close(descriptor)
