"""The ranks that share a model: all in this process, or one in each process of a torch.distributed group.

Both run the same all-reduce kernel on the simulator, and give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from common.checks import require_int
from models.deepseek_v32.all_reduce import all_reduce


class Ranks(Protocol):
    """Ranks of a model.

    Attributes:
        size: in all.
        here: those of this process.
    """

    size: int
    here: tuple[int, ...]

    def add_up(self, parts: Sequence[torch.Tensor], target: str) -> torch.Tensor:
        """The sum over all ranks, given the parts of those here in their order; all alike, [n, hidden]."""
        ...


class LocalRanks:
    """All ranks in this process."""

    def __init__(self, size: int) -> None:
        self.size = require_int("size", size, at_least=1)
        self.here = tuple(range(size))

    def add_up(self, parts: Sequence[torch.Tensor], target: str) -> torch.Tensor:
        """See `Ranks`."""
        if self.size == 1:
            return parts[0]
        import nkisim  # Comes with the simulated nki.

        runs = nkisim.run_ranks(all_reduce, [(part, self.size) for part in parts], nkisim.Options(target=target))
        total: torch.Tensor = runs[0].outputs
        return total


@dataclass(frozen=True)
class GroupRank:
    """This process's rank of a gloo group, as under torchrun.

    Attributes:
        size: ranks of the group; here: the one rank of this process.
        group: the process group, None for the default one.
    """

    size: int
    here: tuple[int, ...]
    group: Any = None

    @staticmethod
    def join(group: Any = None) -> GroupRank:
        """The rank in an initialised group."""
        dist = torch.distributed
        return GroupRank(dist.get_world_size(group), (dist.get_rank(group),), group)

    def add_up(self, parts: Sequence[torch.Tensor], target: str) -> torch.Tensor:
        """See `Ranks`."""
        import nkisim

        options = nkisim.Options(target=target, rank_timeout_seconds=300.0)
        total: torch.Tensor = nkisim.run_in_group(
            all_reduce, parts[0], self.size, group=self.group, options=options
        ).outputs
        return total
