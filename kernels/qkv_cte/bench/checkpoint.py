"""Reads the attention projections of one Wan2.2 layer from a safetensors file with diffusers' names."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_LENGTH_BYTES = 8
"""A safetensors file starts with the length of its JSON header, 8 bytes little-endian."""

SELF_INPUT, CROSS_INPUT = "hidden_states", "encoder_hidden_states"
"""Optional inputs that `make_checkpoint` stores beside the weights, under the names of WanTransformerBlock.forward."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the file, the tensor, what is expected and what was found."""


@dataclass(frozen=True)
class Linear:
    """A torch.nn.Linear: weight [out, in] and bias [out], float32, bfloat16 or float16."""

    weight: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True)
class Attention:
    """Projections of one attention, each [hidden, hidden], and the norms [hidden] over all heads of Q and K."""

    to_q: Linear
    to_k: Linear
    to_v: Linear
    norm_q: torch.Tensor
    norm_k: torch.Tensor


@dataclass(frozen=True)
class Layer:
    """Attentions of one block.

    Attributes:
        hidden: width of the block.
        self_attention, cross_attention: `attn1` and `attn2`.
        hidden_states, encoder_hidden_states: [B, S, hidden], None where the file stores none.
    """

    hidden: int
    self_attention: Attention
    cross_attention: Attention
    hidden_states: torch.Tensor | None
    encoder_hidden_states: torch.Tensor | None


def read_layer(path: Path, layer: int) -> Layer:
    """Reads one layer's tensors and no others.

    Args:
        path: a safetensors file with `blocks.<layer>.attn1.to_q.weight` and so on.
        layer: the block's number.

    Raises:
        CheckpointError: the file is none, is cut short, or a tensor is missing or has a wrong shape, dtype or value.
    """
    # Path.is_file() raises for a name that is too long.
    if not os.path.isfile(path):
        raise CheckpointError(f"{path}: no such file; expected: a safetensors file")
    try:
        with safe_open(path, framework="pt") as opened:
            return _Reader(path, opened, layer).layer()
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: {_truncation(path) or f'not a safetensors file: {error}'}") from None


class _Reader:
    """Reads tensors of one open file by name and checks each before it is loaded."""

    def __init__(self, path: Path, opened: Any, layer: int) -> None:
        self.path = path
        self.opened = opened
        self.names = frozenset(opened.keys())
        self.prefix = f"blocks.{layer}."

    def layer(self) -> Layer:
        hidden = self._hidden()
        return Layer(
            hidden=hidden,
            self_attention=self._attention("attn1", hidden),
            cross_attention=self._attention("attn2", hidden),
            hidden_states=self._input(SELF_INPUT, hidden),
            encoder_hidden_states=self._input(CROSS_INPUT, hidden),
        )

    def _hidden(self) -> int:
        name = f"{self.prefix}attn1.to_q.weight"
        shape = self._shape(name)
        if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1:
            raise CheckpointError(f"{self.path}: {name} has shape {shape}; expected: [hidden, hidden]")
        return shape[0]

    def _attention(self, attention: str, hidden: int) -> Attention:
        prefix = f"{self.prefix}{attention}."
        return Attention(
            to_q=self._linear(f"{prefix}to_q", hidden),
            to_k=self._linear(f"{prefix}to_k", hidden),
            to_v=self._linear(f"{prefix}to_v", hidden),
            norm_q=self._tensor(f"{prefix}norm_q.weight", [hidden]),
            norm_k=self._tensor(f"{prefix}norm_k.weight", [hidden]),
        )

    def _linear(self, name: str, hidden: int) -> Linear:
        return Linear(self._tensor(f"{name}.weight", [hidden, hidden]), self._tensor(f"{name}.bias", [hidden]))

    def _input(self, name: str, hidden: int) -> torch.Tensor | None:
        if name not in self.names:
            return None
        shape = self._shape(name)
        if len(shape) != 3 or shape[2] != hidden or 0 in shape:
            raise CheckpointError(f"{self.path}: {name} has shape {shape}; expected: [B, S, {hidden}]")
        return self._tensor(name, shape)

    def _shape(self, name: str) -> list[int]:
        if name not in self.names:
            raise CheckpointError(f"{self.path}: {name} is missing; {self._layers()}")
        return list(self.opened.get_slice(name).get_shape())

    def _tensor(self, name: str, expected: list[int]) -> torch.Tensor:
        found = self._shape(name)
        if found != expected:
            raise CheckpointError(f"{self.path}: {name} has shape {found}; expected: {expected}")
        dtype = self.opened.get_slice(name).get_dtype()
        if dtype not in _DTYPES:
            raise CheckpointError(f"{self.path}: {name} has dtype {dtype}; expected: one of {', '.join(_DTYPES)}")
        values: torch.Tensor = self.opened.get_tensor(name)
        if not torch.isfinite(values).all():
            raise CheckpointError(f"{self.path}: {name} has NaN or infinite values; expected: finite ones")
        return values

    def _layers(self) -> str:
        found = _ranges({int(match[1]) for name in self.names if (match := re.match(r"blocks\.(\d+)\.", name))})
        return f"layers in the file: {found or 'none'}"


def _ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as text, runs of them shortened: "0-3, 7"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _truncation(path: Path) -> str | None:
    """Names the first tensor that the file does not hold whole, None where that is not the fault."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if _LENGTH_BYTES + header_bytes > size:
                return None
            header = json.loads(file.read(header_bytes))
        start = _LENGTH_BYTES + header_bytes
        ends = [(start + entry["data_offsets"][1], name) for name, entry in header.items() if name != "__metadata__"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    for end, name in sorted(ends):
        if end > size:
            return f"{name} ends at byte {end:,}; the file has {size:,} of {max(ends)[0]:,}; expected: all of it"
    return None
