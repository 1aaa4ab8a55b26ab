"""Launches of the projection kernel: row-scaled fp8, or bfloat16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernels.qkv_cte import qkv, row_mx_qkv_proj
from kernels.qkv_cte.host import entry, shim

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
    operands: Mapping[str, Any]


def launch(call: Call, lnc: int) -> torch.Tensor:
    """Runs a call."""
    function = row_mx_qkv_proj if call.quantised else qkv
    result: torch.Tensor = function(**call.arguments, target=TARGET, lnc=lnc)
    return result


def check(call: Call, lnc: int) -> Checked:
    """A call as the simulator takes it, for ranks that run together and for timing.

    Raises:
        TypeError, ValueError: an argument is not as the entry describes it.
    """
    called = shim.ENTRY if call.quantised else entry.ENTRY
    prepared = called.prepare(called.record(**call.arguments), target=TARGET, lnc=lnc)
    return Checked(called.kernel[lnc], prepared.operands)
