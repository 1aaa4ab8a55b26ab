"""Headers of safetensors files: which tensors a file holds, and whether it holds them whole."""

from __future__ import annotations

import json
import math
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from models.checkpoints.errors import CheckpointError

LENGTH_BYTES = 8
"""A file starts with the length of its JSON header, little-endian."""

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The format's names of dtypes."""


@dataclass(frozen=True)
class Stored:
    """One tensor of a file, not read yet."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Of its values."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class _Entry:
    """What a header says of one tensor; begin and end count from the header's end."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(file: Path) -> dict[str, Stored]:
    """The tensors of a safetensors file by name.

    Raises:
        CheckpointError: there is no such file, it is none, or it ends before its tensors do.
    """
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{file}: expected: a safetensors file; found: no regular file")
        size = status.st_size
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(LENGTH_BYTES), "little")
            text = opened.read(length) if length <= min(size - LENGTH_BYTES, MAX_HEADER_BYTES) else b""
    except OSError as error:
        raise CheckpointError(f"{file}: expected: a safetensors file; found: {error.strerror}") from None
    entries = _parse(file, text)
    _require_whole(file, entries, LENGTH_BYTES + length, size)
    return {name: _stored(file, name, entry) for name, entry in entries.items()}


def _parse(file: Path, text: bytes) -> dict[str, _Entry]:
    try:
        header: dict[str, Any] = json.loads(text)
        header.pop("__metadata__", None)
        return {name: _entry(fields) for name, fields in header.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{file}: expected: a safetensors file; found: no such header") from None


def _entry(fields: dict[str, Any]) -> _Entry:
    begin, end = fields["data_offsets"]
    entry = _Entry(str(fields["dtype"]), tuple(fields["shape"]), begin, end)
    if not all(type(number) is int and number >= 0 for number in (*entry.shape, begin, end)):
        raise ValueError
    return entry


def _require_whole(file: Path, entries: dict[str, _Entry], start: int, size: int) -> None:
    """The file ends where its last tensor does."""
    whole = start + max((entry.end for entry in entries.values()), default=0)
    for name, entry in sorted(entries.items(), key=lambda item: item[1].end):
        if start + entry.end > size:
            raise CheckpointError(
                f"{file}: {name} ends at byte {start + entry.end:,}; expected: {whole:,} bytes; found: {size:,}"
            )
    if size != whole:
        raise CheckpointError(f"{file}: expected: {whole:,} bytes, as its header says; found: {size:,}")
    _require_side_by_side(file, entries)


def _require_side_by_side(file: Path, entries: dict[str, _Entry]) -> None:
    """Each tensor begins where the one before it ends, so that none is in another or lies unnamed."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != end:
            raise CheckpointError(
                f"{file}: {name}: expected: to begin at byte {end:,}, where the tensor before it ends; "
                f"found: {entry.begin:,}"
            )
        end = entry.end


def _stored(file: Path, name: str, entry: _Entry) -> Stored:
    if entry.dtype not in DTYPES:
        raise CheckpointError(f"{file}: {name}: expected: one of {', '.join(DTYPES)}; found: {entry.dtype}")
    stored = Stored(file, DTYPES[entry.dtype], entry.shape)
    if stored.size_bytes != entry.end - entry.begin:
        raise CheckpointError(
            f"{file}: {name}: expected: {stored.size_bytes:,} bytes for {list(stored.shape)} {stored.dtype}; "
            f"found: {entry.end - entry.begin:,}"
        )
    return stored
