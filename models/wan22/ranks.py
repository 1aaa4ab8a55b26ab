"""The ranks that run a model: all in this process, or one in each process of a torch.distributed group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from common.checks import require_int
from kernels.qkv_cte import row_mx_qkv_proj_ranks
from models.wan22.launching import TARGET, Call, launch


class Ranks(Protocol):
    """Ranks of a model.

    Attributes:
        size: how many.
        here: those of this process; methods take and return one entry for each of them, in order.
    """

    size: int
    here: tuple[int, ...]

    def gather(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Every rank's part, of equal shapes, in rank order."""
        ...

    def project(self, calls: Sequence[Call], lnc: int) -> list[torch.Tensor]:
        """Runs the calls; quantised ones may have norms over replica groups."""
        ...


class LocalRanks:
    """All ranks in this process, on the simulator."""

    def __init__(self, size: int = 1) -> None:
        self.size = require_int("size", size, at_least=1)
        self.here = tuple(range(size))

    def gather(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `Ranks`."""
        return list(parts)

    def project(self, calls: Sequence[Call], lnc: int) -> list[torch.Tensor]:
        """See `Ranks`."""
        if not calls[0].quantised:
            return [launch(call, lnc) for call in calls]
        return row_mx_qkv_proj_ranks([call.arguments for call in calls], target=TARGET, lnc=lnc)


class GroupRank:
    """This process's rank of torch.distributed's gloo group, as under torchrun."""

    def __init__(self) -> None:
        """Joins the group; torch.distributed is initialised."""
        self.size = torch.distributed.get_world_size()
        self.here = (torch.distributed.get_rank(),)

    def gather(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `Ranks`."""
        (mine,) = parts
        # gloo knows no fp8: bytes travel.
        mine_bytes = mine.contiguous().view(torch.uint8)
        received = [torch.empty_like(mine_bytes) for _ in range(self.size)]
        torch.distributed.all_gather(received, mine_bytes)
        return [part.view(mine.dtype) for part in received]

    def project(self, calls: Sequence[Call], lnc: int) -> list[torch.Tensor]:
        """See `Ranks`."""
        (call,) = calls
        return [launch(call, lnc)]
