"""Checks a call and runs it: on the device that its tensors are on, or on the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import nki
from common.platform_target import platform_target
from kernels.adaln_quant.device.kernel import adaln, row_quantise
from kernels.adaln_quant.host.call import adaln_operands, quantise_operands


def modulate(
    x: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    eps: float = 1e-6,
    quant: str | None = None,
    *,
    target: str = "trn3",
    lnc: int = 2,
) -> torch.Tensor:
    """`shim.adaln_modulate`, eagerly."""
    with torch.no_grad():
        operands = adaln_operands(x, scale, shift, eps, quant, target, lnc)
        return _run(adaln[lnc], operands, x.device, target)


def quantise(x: torch.Tensor, *, target: str = "trn3", lnc: int = 2) -> torch.Tensor:
    """`shim.row_quantize_packed`, eagerly."""
    with torch.no_grad():
        operands = quantise_operands(x, target, lnc)
        return _run(row_quantise[lnc], operands, x.device, target)


def _run(
    kernel: Callable[..., torch.Tensor], operands: tuple[Any, ...], device: torch.device, target: str
) -> torch.Tensor:
    if device.type != "cpu":
        return kernel(*operands)
    with platform_target(target):
        result: torch.Tensor = nki.simulate(kernel)(*operands)
    return result
