"""Checks a call and runs it: on the device that its tensors are on, or on the simulator."""

from __future__ import annotations

import functools
from typing import Any

import torch

import nki
from common.platform_target import platform_target
from kernels.qkv_cte.device.kernel import row_mx_projection
from kernels.qkv_cte.host import arguments, process_ranks, ranks
from kernels.qkv_cte.host.call import kernel_operands


@torch.no_grad()
def run(target: str, lnc: int, **call: Any) -> torch.Tensor:
    """Runs a call whose arguments are those of `shim.row_mx_qkv_proj`, by name; returns and raises what that does."""
    make_operands = functools.partial(kernel_operands, **call, target=target, lnc=lnc)
    groups = call["replica_groups"]
    if groups is not None and isinstance(call["packed_hidden"], torch.Tensor) and call["packed_hidden"].is_cpu:
        arguments.require_replica_groups(groups)
        process_ranks.require_group(groups)
        named = ranks.named(call | {"target": target, "lnc": lnc})
        return process_ranks.run(make_operands, named, target=target, lnc=lnc)
    operands = make_operands()
    if call["packed_hidden"].device.type != "cpu":
        return row_mx_projection[lnc](*operands)
    with platform_target(target):
        return nki.simulate(row_mx_projection[lnc])(*operands)
