"""Checks a call and runs it: on the device that its tensors are on, or on the simulator."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import nki
from kernels.adaln_quant.call import adaln_operands, quantise_operands
from kernels.adaln_quant.kernel import adaln, row_quantise

TARGET_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"


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
    with _platform_target(target):
        result: torch.Tensor = nki.simulate(kernel)(*operands)
    return result


@contextmanager
def _platform_target(target: str) -> Iterator[None]:
    """Names the simulator's target while the context lasts."""
    before = os.environ.get(TARGET_VARIABLE)
    os.environ[TARGET_VARIABLE] = target
    try:
        yield
    finally:
        if before is None:
            del os.environ[TARGET_VARIABLE]
        else:
            os.environ[TARGET_VARIABLE] = before
