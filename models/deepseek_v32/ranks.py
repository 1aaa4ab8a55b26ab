"""The ranks that share a model: all in this process, or one in each process of a torch.distributed group.

Both run the same collective kernels on the simulator, and give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from common.checks import require_int
from models.deepseek_v32.collectives import all_gather, all_reduce

RANK_TIMEOUT_SECONDS = 300.0
"""How long a rank waits for another, which may still compute."""


class Ranks(Protocol):
    """Ranks of a model.

    Attributes:
        size: in all.
        here: those of this process.
    """

    @property
    def size(self) -> int:
        """See above."""

    @property
    def here(self) -> tuple[int, ...]:
        """See above."""

    def collect(self, kernel: Callable[..., Any], parts: Sequence[torch.Tensor], target: str) -> torch.Tensor:
        """What a collective kernel returns on every rank, given the parts of those here in their order."""


def add_up(ranks: Ranks, parts: Sequence[torch.Tensor], target: str) -> torch.Tensor:
    """The sum of all ranks' [n, width], given those of the ranks here."""
    return parts[0] if ranks.size == 1 else ranks.collect(all_reduce, parts, target)


def join(ranks: Ranks, parts: Sequence[torch.Tensor], target: str) -> torch.Tensor:
    """All ranks' [n, width] side by side in rank order, [n, size * width], given those of the ranks here."""
    if ranks.size == 1:
        return parts[0]
    return ranks.collect(all_gather, [part.T.contiguous() for part in parts], target).T


@dataclass(frozen=True)
class LocalRanks:
    """All ranks in this process."""

    size: int

    def __post_init__(self) -> None:
        require_int("size", self.size, at_least=1)

    @property
    def here(self) -> tuple[int, ...]:
        """All of them."""
        return tuple(range(self.size))

    def collect(self, kernel: Callable[..., Any], parts: Sequence[torch.Tensor], target: str) -> torch.Tensor:
        """See `Ranks`."""
        import nkisim  # Comes with the simulated nki.

        runs = nkisim.run_ranks(kernel, [(part, self.size) for part in parts], nkisim.Options(target=target))
        result: torch.Tensor = runs[0].outputs
        return result


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
    def of(group: Any = None) -> GroupRank:
        """This process's rank of an initialised group."""
        dist = torch.distributed
        return GroupRank(dist.get_world_size(group), (dist.get_rank(group),), group)

    def collect(self, kernel: Callable[..., Any], parts: Sequence[torch.Tensor], target: str) -> torch.Tensor:
        """See `Ranks`."""
        import nkisim

        options = nkisim.Options(target=target, rank_timeout_seconds=RANK_TIMEOUT_SECONDS)
        run = nkisim.run_in_group(kernel, parts[0], self.size, group=self.group, options=options)
        result: torch.Tensor = run.outputs
        return result
