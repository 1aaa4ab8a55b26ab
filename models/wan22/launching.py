"""Launches of the projection kernel: row-scaled fp8, or bfloat16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernels.qkv_cte import QKVArguments, qkv, row_mx_qkv_proj
from kernels.qkv_cte.device.kernel import row_mx_projection
from kernels.qkv_cte.device.qkv_kernel import qkv_projection
from kernels.qkv_cte.host.call import kernel_operands
from kernels.qkv_cte.host.qkv_call import prepare

TARGET = "trn3"
"""The first with the products of ROW_MX."""


@dataclass(frozen=True)
class Call:
    """A call of the kernel.

    Attributes:
        quantised: whether it is one of `row_mx_qkv_proj`; else it is one of `qkv`.
        arguments: of that, by name, without target and lnc.
    """

    quantised: bool
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Checked:
    """A call that has been checked: the kernel for `lnc` cores, and what it is called with."""

    kernel: Any
    operands: Mapping[str, Any] | tuple[Any, ...]


def launch(call: Call, lnc: int) -> torch.Tensor:
    """Runs a call."""
    entry = row_mx_qkv_proj if call.quantised else qkv
    result: torch.Tensor = entry(**call.arguments, target=TARGET, lnc=lnc)
    return result


def check(call: Call, lnc: int) -> Checked:
    """A call as the simulator takes it, for ranks that run together and for timing.

    Raises:
        TypeError, ValueError: an argument is not as the entry describes it.
    """
    if call.quantised:
        return Checked(row_mx_projection[lnc], kernel_operands(**call.arguments, target=TARGET, lnc=lnc))
    prepared = prepare(QKVArguments(**call.arguments), target=TARGET, lnc=lnc)
    return Checked(qkv_projection[lnc], {"config": prepared.plan.config, **prepared.tensors})
