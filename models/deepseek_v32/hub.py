"""The hub's layout: names and shapes of DeepSeek-V3.2, matrices in a floating type or in fp8 with block scales."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from common.tiling import ceil_div
from models.checkpoints import FLOATING, CheckpointError, Expected, open_checkpoint
from models.deepseek_v32 import config as configuration
from models.deepseek_v32.config import ModelConfig
from models.deepseek_v32.packing import Packed, packed_tensors

CONFIG = "config.json"

FP8 = torch.float8_e4m3fn

SCALED_BLOCK = 128
"""Rows and columns of a matrix that share a scale."""

_SCALES = "_scale_inv"
"""What the name of a matrix's scales ends in, after the matrix's own."""


class HubCheckpoint:
    """A published checkpoint whose tensors are all there.

    Attributes:
        config: from its `config.json`.
        files: the files that its tensors lie in, and their bytes.
    """

    def __init__(self, folder: Path) -> None:
        """Reads headers and configuration.

        Raises:
            CheckpointError: a file or tensor is missing, cut short, of another shape or type, or not of this model.
            ValueError: the configuration is not of a model like this.
        """
        # Path.is_file() raises for names that are too long and folders that may not be read.
        if not os.path.isfile(folder / CONFIG):
            raise CheckpointError(f"{folder}: expected: a folder with {CONFIG}; found: none")
        try:
            self.config: ModelConfig = configuration.from_file(folder / CONFIG)
        except OSError as error:
            raise CheckpointError(f"{folder / CONFIG}: expected: a readable file; found: {error.strerror}") from None
        self._checkpoint = open_checkpoint(folder)
        names = self._checkpoint.require(self._expected())
        beyond = {name for name in self._checkpoint.tensors if self._is_beyond(name)}
        self._checkpoint.require_no_others(names | beyond)

    @property
    def files(self) -> dict[str, int]:
        """Files that hold tensors, and their bytes."""
        found = sorted({stored.file for stored in self._checkpoint.tensors.values()})
        return {file.name: file.stat().st_size for file in found}

    def read(self, packed: Packed, part: tuple[slice, ...]) -> torch.Tensor:
        """A part of the source of a packed tensor; fp8 times its scales is float32.

        Raises:
            CheckpointError: it has values that are not finite.
        """
        values = self._checkpoint.read(packed.source, *part)
        if values.dtype is FP8:
            covering = tuple(slice(p.start // SCALED_BLOCK, ceil_div(p.stop, SCALED_BLOCK)) for p in part)
            scales = self._checkpoint.read(packed.source + _SCALES, *covering)
            values = dequantise(values, scales, tuple(p.start % SCALED_BLOCK for p in part))
        # A NaN is its own tensor's least and greatest value; isfinite() would need twice the tensor's memory.
        if not all(bound.isfinite() for bound in values.aminmax()):
            raise CheckpointError(f"{packed.source}: expected: finite values; found: NaN or infinite ones")
        return values

    def _expected(self) -> Iterator[tuple[str, Expected]]:
        for packed in packed_tensors(self.config):
            scales = packed.source + _SCALES
            if scales not in self._checkpoint.tensors:
                yield packed.source, Expected(packed.source_shape, FLOATING)
                continue
            yield packed.source, Expected(packed.source_shape, (FP8,))
            yield scales, Expected(tuple(ceil_div(n, SCALED_BLOCK) for n in packed.source_shape), (torch.float32,))

    def _is_beyond(self, name: str) -> bool:
        """Whether a tensor belongs to the layers that predict further tokens, which decoding does not use.

        They have an `eh_proj`; without it, a layer behind the last is one that the configuration leaves out.
        """
        match = re.match(r"model\.layers\.(\d+)\.", name)
        return (
            match is not None
            and int(match[1]) >= self.config.num_hidden_layers
            and f"{match[0]}eh_proj.weight" in self._checkpoint.tensors
        )


def dequantise(codes: torch.Tensor, scales: torch.Tensor, start: tuple[int, ...]) -> torch.Tensor:
    """Each code times the scale of its block, float32.

    Args:
        codes: [rows, columns] fp8.
        scales: [row blocks, column blocks] float32, of all blocks that `codes` touches.
        start: where in its first block the first row and the first column lie.
    """
    rows, columns = (
        (torch.arange(size) + first) // SCALED_BLOCK for size, first in zip(codes.shape, start, strict=True)
    )
    return codes.float() * scales[rows][:, columns]
