"""Runs a call: on the device that its tensors are on, or on the simulator."""

from __future__ import annotations

from typing import Any

import torch

import nki
from common.platform_target import platform_target
from kernels.qkv_cte.host import arguments, process_ranks
from kernels.qkv_cte.host.entries import Entry


@torch.no_grad()
def run(entry: Entry, call: Any, *, target: str, lnc: int) -> torch.Tensor:
    """Checks a call and runs it; returns and raises what the entry's function does."""
    on_cpu = isinstance(call.activations, torch.Tensor) and call.activations.is_cpu
    if on_cpu and call.replica_groups is not None:
        arguments.require_replica_groups(call.replica_groups)
        return process_ranks.run(entry, call, target=target, lnc=lnc)
    operands = entry.prepare(call, target=target, lnc=lnc).operands
    if not on_cpu:
        return entry.kernel[lnc](**operands)
    with platform_target(target):
        return nki.simulate(entry.kernel[lnc])(**operands)
