"""Rewrites a safetensors file tensor by tensor: in memory there is one tensor at a time, whatever the file's size."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open

from kernels.qkv_cte.checkpoint.rules import Rule, Spec

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Names of dtypes in a safetensors header."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH_BYTES = 8
"""A safetensors file starts with the length of its JSON header, 8 bytes little-endian."""


class CheckpointError(ValueError):
    """A file that cannot be rewritten; the message names the file, the tensor and what is accepted."""


def specs_of(source: Path) -> list[Spec]:
    """Every tensor of a safetensors file, by name, without its values.

    Raises:
        CheckpointError: it is none, is cut short, or holds a dtype that torch does not have.
    """
    try:
        with safe_open(source, framework="pt") as opened:
            return [_spec(opened, name) for name in sorted(opened.keys())]
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{source}: {error}") from None


def rules_of(source: Path, rule_of: Callable[[Spec], Rule]) -> dict[str, Rule]:
    """The rule of every tensor of a file, by the tensor's name.

    Raises:
        CheckpointError: as `specs_of`; or a tensor does not suit its rule, or two outputs have one name.
    """
    try:
        rules = {spec.name: rule_of(spec) for spec in specs_of(source)}
        require_distinct(rules.values())
    except ValueError as error:
        raise error if isinstance(error, CheckpointError) else CheckpointError(f"{source}: {error}") from None
    return rules


def require_distinct(rules: Iterable[Rule]) -> None:
    """Refuses two outputs of one name.

    Raises:
        ValueError: naming the first.
    """
    seen: set[str] = set()
    for output in (output for rule in rules for output in rule.outputs):
        if output.name in seen:
            raise ValueError(f"two tensors are to be called {output.name}; accepted: a file that is not converted yet")
        seen.add(output.name)


def rewrite(source: Path, target: Path, rules: Mapping[str, Rule], announce: Callable[[str], object]) -> int:
    """Writes what every tensor of `source` becomes to the new file `target`; metadata are kept.

    Args:
        source: a safetensors file.
        target: where to write; what is there is overwritten, and left incomplete after an error.
        rules: from `rules_of`.
        announce: told each tensor's name before it is read.

    Returns:
        Bytes written.

    Raises:
        CheckpointError: values do not suit their rule.
        OSError: the target cannot be written.
    """
    try:
        with safe_open(source, framework="pt") as opened:
            header, offsets, size = _layout((o for rule in rules.values() for o in rule.outputs), opened.metadata())
            with target.open("wb") as file:
                file.write(header)
                for name, rule in rules.items():
                    announce(name)
                    for spec, made in zip(rule.outputs, rule.make(opened.get_tensor(name)), strict=True):
                        _write(file, len(header) + offsets[spec.name], made, spec)
            return len(header) + size
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{source}: {error}") from None


def _spec(opened: Any, name: str) -> Spec:
    found = opened.get_slice(name)
    dtype = found.get_dtype()
    if dtype not in DTYPES:
        raise ValueError(f"{name} is of dtype {dtype}; accepted: {', '.join(DTYPES)}")
    return Spec(name, DTYPES[dtype], tuple(found.get_shape()))


def _layout(outputs: Iterable[Spec], metadata: dict[str, str] | None) -> tuple[bytes, dict[str, int], int]:
    """Header, first byte of each tensor behind it, and bytes of all: wide elements first, so that all are aligned."""
    entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    offsets: dict[str, int] = {}
    end = 0
    for spec in sorted(outputs, key=lambda spec: (-spec.dtype.itemsize, spec.name)):
        offsets[spec.name] = end
        end += math.prod(spec.shape) * spec.dtype.itemsize
        places = [offsets[spec.name], end]
        entries[spec.name] = {"dtype": _NAMES[spec.dtype], "shape": list(spec.shape), "data_offsets": places}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text, offsets, end


def _write(file: BinaryIO, start: int, made: torch.Tensor, spec: Spec) -> None:
    assert (made.dtype, tuple(made.shape)) == (spec.dtype, spec.shape), spec
    file.seek(start)
    file.write(made.contiguous().reshape(-1).view(torch.uint8).numpy().data)
