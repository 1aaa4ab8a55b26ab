"""A call on all ranks at once, on the simulator."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kernels.qkv_cte.host.entries import Entry


@torch.no_grad()
def run(entry: Entry, calls: Sequence[Mapping[str, Any]], *, target: str, lnc: int) -> list[torch.Tensor]:
    """Runs the entry's function on several ranks that share their sums of squares, each with its own heads.

    Args:
        entry: whose function.
        calls: one entry per rank, from rank 0 on: its arguments by name, without target and lnc; tensors on the CPU.
        target, lnc: of every rank.

    Returns:
        The ranks' results in their order.

    Raises:
        TypeError, ValueError: an argument is not as described; nothing has run. A note names the rank.
    """
    if not isinstance(calls, Sequence) or not calls or not all(isinstance(call, Mapping) for call in calls):
        raise TypeError("calls is not a list of dictionaries; accepted: the arguments of each rank by name")
    records, operands = [], []
    for rank, call in enumerate(calls):
        try:
            records.append(entry.arguments(call))
            operands.append(entry.prepare(records[-1], target=target, lnc=lnc).operands)
        except (TypeError, ValueError) as error:
            error.add_note(f"in rank {rank}")
            raise
        device = records[-1].activations.device
        if device.type != "cpu":
            name = dataclasses.fields(entry.record)[0].name
            raise ValueError(f"{name} of rank {rank} is on {device}; accepted: cpu")
    require_agreement([named(record) for record in records])
    _require_these_ranks(records[0].replica_groups, len(calls))

    import nkisim  # Comes with the simulated nki. On a device, ranks are processes and this is no way to run them.

    return [run.outputs for run in nkisim.run_ranks(entry.kernel[lnc], operands, nkisim.Options(target=target))]


def named(record: Any) -> dict[str, Any]:
    """Every argument of a record by name; tensors as their sizes and type."""
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return {
        name: f"{list(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
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
