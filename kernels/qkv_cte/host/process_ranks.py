"""The projection of one rank in this process, the others in theirs, on the simulator over torch.distributed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from kernels.qkv_cte.host.entries import Entry
from kernels.qkv_cte.host.ranks import named, require_agreement

ARRIVAL_SECONDS = 20.0
"""How long a rank waits for the others to call."""

COMPUTE_SECONDS = 300.0
"""How long it waits at the all-reduce for a rank that computes more slowly."""


def require_group(groups: tuple[tuple[int, ...], ...], function: str) -> None:
    """The process group that the ranks of `groups` number is there, and each of its ranks is in one of them.

    Args:
        groups: of a call.
        function: that was called.

    Raises:
        ValueError: torch.distributed has no group, another backend than gloo, or other ranks.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError(
            f"replica_groups is {groups} and torch.distributed is not initialised; accepted: None, a gloo process "
            f"group (torch.distributed.init_process_group), or all ranks at once in {function}_ranks"
        )
    if dist.get_backend() != "gloo":
        raise ValueError(
            f"replica_groups is {groups} with tensors on the CPU and a process group of backend {dist.get_backend()}; "
            f"accepted: gloo"
        )
    ranks, mine = sorted(rank for group in groups for rank in group), dist.get_rank()
    if mine not in ranks:
        raise ValueError(f"replica_groups is {groups}, without this process's rank {mine}; accepted: groups with it")
    if ranks != list(range(dist.get_world_size())):
        raise ValueError(
            f"replica_groups is {groups}; accepted: each of the {dist.get_world_size()} ranks of the process group, "
            f"0 to {dist.get_world_size() - 1}"
        )


def run(entry: Entry, call: Any, *, target: str, lnc: int) -> torch.Tensor:
    """Runs the entry's kernel as this process's rank once all ranks agree.

    Args:
        entry: whose function every rank calls.
        call: this rank's arguments, with replica groups.
        target, lnc: of every rank.

    Raises:
        TypeError, ValueError: this rank's arguments are refused, another's are, or they differ; no rank has run.
        nkisim.errors.DeadlockError: a rank does not call.
    """
    import nkisim  # Comes with the simulated nki. On a device the kernel itself knows its rank.

    require_group(call.replica_groups, entry.name)
    operands, error = None, None
    try:
        operands = entry.prepare(call, target=target, lnc=lnc).operands
    except (TypeError, ValueError) as refused:
        error = refused
    given = {"function": entry.name, "target": target, "lnc": lnc} | named(call)
    told = _tell({"arguments": given, "error": None if error is None else str(error)}, entry.name)
    if error is not None or operands is None:
        assert error is not None
        raise error
    for rank, other in enumerate(told):
        if other["error"] is not None:
            raise ValueError(f"rank {rank} refuses its arguments: {other['error']}")
    require_agreement([other["arguments"] for other in told])
    options = nkisim.Options(target=target, rank_timeout_seconds=COMPUTE_SECONDS)
    result: torch.Tensor = nkisim.run_in_group(entry.kernel[lnc], **operands, options=options).outputs
    return result


def _tell(mine: dict[str, Any], function: str) -> list[dict[str, Any]]:
    """What every rank tells the others, in the order of the ranks."""
    from nkisim.errors import DeadlockError

    try:
        dist.monitored_barrier(timeout=timedelta(seconds=ARRIVAL_SECONDS), wait_all_ranks=True)
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        raise DeadlockError(
            f"rank {dist.get_rank()} has waited {ARRIVAL_SECONDS:g} s for all {dist.get_world_size()} ranks to call "
            f"{function}: {line}"
        ) from None
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    return told
