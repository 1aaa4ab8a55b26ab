"""Where a kernel runs: on the simulator for tensors on the CPU, else on the device that they are on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import nki

TARGET_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"

_TARGET_LOCK = threading.Lock()
"""The variable is the process's: threads take turns, or one would run on another's target."""


def launch(kernel: Callable[..., Any], operands: tuple[Any, ...], device: torch.device, target: str) -> Any:
    """Runs a kernel; on the simulator as `target`."""
    if device.type != "cpu":
        return kernel(*operands)
    with _TARGET_LOCK, _platform_target(target):
        return nki.simulate(kernel)(*operands)


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
