"""The kernels as torch custom ops, so that they can be compiled and exported; the shims call these while traced.

`torch.ops.adaln_quant.modulate` and `.row_quantize_packed` take the shims' arguments, target and cores by name.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from kernels.adaln_quant.device.config import WORD_CODES
from kernels.adaln_quant.host import launch

modulate = torch.library.custom_op("adaln_quant::modulate", launch.modulate, mutates_args=())
row_quantize_packed = torch.library.custom_op("adaln_quant::row_quantize_packed", launch.quantise, mutates_args=())


@modulate.register_fake
def _(*arguments: Any, **named: Any) -> torch.Tensor:
    given = inspect.signature(launch.modulate).bind(*arguments, **named).arguments
    x = given["x"]
    return x.new_empty(x.shape, dtype=torch.bfloat16) if given.get("quant") is None else _packed(x)


@row_quantize_packed.register_fake
def _(x: torch.Tensor, **_named: Any) -> torch.Tensor:
    return _packed(x)


def _packed(x: torch.Tensor) -> torch.Tensor:
    """Packed rows of x, without values."""
    return x.new_empty((*x.shape[:-1], x.shape[-1] + WORD_CODES), dtype=torch.float8_e4m3fn)


def traced_modulate(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float, quant: str | None, **named: Any
) -> torch.Tensor:
    """The op on detached tensors: it has no gradient, and eager calls give none either."""
    x, scale, shift = x.detach(), scale.detach(), shift.detach()
    return torch.ops.adaln_quant.modulate(x, scale, shift, eps, quant, **named)


def traced_quantise(x: torch.Tensor, **named: Any) -> torch.Tensor:
    """The op on a detached tensor."""
    return torch.ops.adaln_quant.row_quantize_packed(x.detach(), **named)
