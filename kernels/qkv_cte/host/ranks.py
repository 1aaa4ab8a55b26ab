"""The projection of all ranks at once, on the simulator."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kernels.qkv_cte.device.kernel import row_mx_projection
from kernels.qkv_cte.host.call import kernel_operands


@torch.no_grad()
def row_mx_qkv_proj_ranks(
    calls: Sequence[Mapping[str, Any]], *, target: str = "trn3", lnc: int = 2
) -> list[torch.Tensor]:
    """`row_mx_qkv_proj` on several ranks that share their sums of squares, each with its own heads.

    Args:
        calls: one entry per rank, from rank 0 on: the arguments of `row_mx_qkv_proj` by name, without target and
            lnc; tensors on the CPU. Sizes, types and everything that is no tensor agree on all ranks, and
            `replica_groups` names just these ranks.
        target, lnc: as for `row_mx_qkv_proj`, of every rank.

    Returns:
        The ranks' results in their order.

    Raises:
        TypeError, ValueError: an argument is not as described; nothing has run. A note names the rank.
    """
    if not isinstance(calls, Sequence) or not calls or not all(isinstance(call, Mapping) for call in calls):
        raise TypeError("calls is no list of dictionaries; accepted: the arguments of each rank by name")
    operands = []
    for rank, call in enumerate(calls):
        try:
            operands.append(kernel_operands(**call, target=target, lnc=lnc))
        except (TypeError, ValueError) as error:
            error.add_note(f"in rank {rank}")
            raise
        if call["packed_hidden"].device.type != "cpu":
            raise ValueError(f"packed_hidden of rank {rank} is on {call['packed_hidden'].device}; accepted: cpu")
    require_agreement([named(call) for call in calls])
    _require_these_ranks(calls[0].get("replica_groups"), len(calls))

    import nkisim  # Comes with the simulated nki. On a device, ranks are processes and this is no way to run them.

    runs = nkisim.run_ranks(row_mx_projection[lnc], operands, nkisim.Options(target=target))
    return [run.outputs for run in runs]


def named(call: Mapping[str, Any]) -> dict[str, Any]:
    """Every argument by name, given or not; tensors as their sizes and type."""
    bound = inspect.signature(kernel_operands).bind_partial(**call)
    bound.apply_defaults()
    return {
        name: f"{list(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else value
        for name, value in bound.arguments.items()
    }


def require_agreement(ranks: Sequence[Mapping[str, Any]]) -> None:
    """Refuses ranks of which one differs from rank 0 in an argument.

    Raises:
        ValueError: naming the argument and the rank.
    """
    for rank, given in enumerate(ranks):
        for name, value in given.items():
            if value != ranks[0][name]:
                raise ValueError(f"{name} of rank {rank} is {value}; accepted: {ranks[0][name]}, as on rank 0")


def _require_these_ranks(groups: tuple[tuple[int, ...], ...] | None, ranks: int) -> None:
    if groups is not None and sorted(rank for group in groups for rank in group) != list(range(ranks)):
        raise ValueError(f"replica_groups is {groups}; accepted: each of the {ranks} ranks called, 0 to {ranks - 1}")
