"""Which cache blocks belong to which sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from common.checks import require_int
from common.tiling import ceil_div

NO_BLOCK = -1
"""Entry of a block table where a sequence has no block."""


class CacheExhaustedError(RuntimeError):
    """More cache blocks are needed than are free."""


class BlockManager:
    """Hands out the blocks of a paged cache.

    Attributes:
        n_blocks: in all; block_size: positions of each.
    """

    def __init__(self, n_blocks: int, block_size: int) -> None:
        self.n_blocks = require_int("n_blocks", n_blocks, at_least=1)
        self.block_size = require_int("block_size", block_size, at_least=1)
        self._free = list(range(n_blocks))
        self._blocks: dict[int, list[int]] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks that no sequence has."""
        return len(self._free)

    def reserve(self, lengths: Mapping[int, int]) -> None:
        """Gives each sequence the blocks that so many positions need. All of them or, on an error, none.

        Raises:
            CacheExhaustedError: not enough blocks are free; names the sequences, blocks needed and blocks free.
        """
        wanted = {
            sequence: ceil_div(length, self.block_size) - len(self._blocks.get(sequence, ()))
            for sequence, length in lengths.items()
        }
        wanted = {sequence: count for sequence, count in wanted.items() if count > 0}
        needed = sum(wanted.values())
        if needed > len(self._free):
            raise CacheExhaustedError(
                f"sequences {', '.join(map(str, wanted))} need {needed} more cache blocks of {self.block_size} "
                f"positions; {len(self._free)} of {self.n_blocks} are free"
            )
        for sequence, count in wanted.items():
            taken, self._free = self._free[:count], self._free[count:]
            self._blocks.setdefault(sequence, []).extend(taken)

    def free(self, sequence: int) -> list[int]:
        """Takes a sequence's blocks back, and returns which they were.

        Raises:
            KeyError: no such sequence.
        """
        if sequence not in self._blocks:
            raise KeyError(f"sequence {sequence} has no cache blocks; those that have: {sorted(self._blocks)}")
        blocks = self._blocks.pop(sequence)
        self._free.extend(blocks)
        return blocks

    def table(self, sequences: Sequence[int]) -> torch.Tensor:
        """[n, most blocks of any] int32: each sequence's blocks in the order of positions, then `NO_BLOCK`."""
        blocks = [self._blocks[sequence] for sequence in sequences]
        table = torch.full((len(blocks), max(map(len, blocks))), NO_BLOCK, dtype=torch.int32)
        for row, own in zip(table, blocks, strict=True):
            row[: len(own)] = torch.tensor(own, dtype=torch.int32)
        return table
