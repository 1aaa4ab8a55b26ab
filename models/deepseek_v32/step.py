"""What one pass through the layers is about: some tokens, and where they and those before them are cached."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from models.deepseek_v32 import rope
from models.deepseek_v32.config import ModelConfig


@dataclass(frozen=True)
class Step:
    """Tokens of one pass: one of each of several sequences when decoding, several of one when prefilling.

    Attributes:
        positions: [n] int32, of each token in its sequence.
        block_table: [n, most blocks] int32, of each token's sequence.
        block_size: positions of a block.
        cos, sin: [n, rope / 2] float32, of the positions.
    """

    positions: torch.Tensor
    block_table: torch.Tensor
    block_size: int
    cos: torch.Tensor
    sin: torch.Tensor

    def rows_of(self, token: int, positions: torch.Tensor) -> torch.Tensor:
        """Flat cache rows, int64, of positions in the sequence of a token."""
        return self.block_table[token, positions // self.block_size].long() * self.block_size + (
            positions % self.block_size
        )

    @property
    def slots(self) -> torch.Tensor:
        """[n] int32: the flat cache row of each token itself."""
        own = self.positions.long()
        blocks = self.block_table.gather(1, (own // self.block_size)[:, None])[:, 0]
        return (blocks * self.block_size + own % self.block_size).int()


def make_step(config: ModelConfig, positions: torch.Tensor, block_table: torch.Tensor, block_size: int) -> Step:
    """A step of tokens at [n] int32 positions."""
    return Step(positions, block_table, block_size, *rope.cos_sin(config, positions))
