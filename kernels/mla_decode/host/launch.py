"""Where a kernel runs: on the simulator for tensors on the CPU, else on the device that they are on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import nki
from common.platform_target import platform_target


def launch(kernel: Callable[..., Any], operands: tuple[Any, ...], device: torch.device, target: str) -> Any:
    """Runs a kernel; on the simulator as `target`."""
    if device.type != "cpu":
        return kernel(*operands)
    with platform_target(target):
        return nki.simulate(kernel)(*operands)
