"""The shims as torch custom ops, so that they can be traced, compiled and exported.

`torch.ops.adaln_quant.modulate` and `.row_quantize_packed` take the shims' arguments, target and cores by name.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from kernels.adaln_quant import shim
from kernels.adaln_quant.config import WORD_CODES


@torch.library.custom_op("adaln_quant::modulate", mutates_args=())
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
    """See `shim.adaln_modulate`."""
    return shim.adaln_modulate(x, scale, shift, eps, quant, target=target, lnc=lnc)


@torch.library.custom_op("adaln_quant::row_quantize_packed", mutates_args=())
def row_quantize_packed(x: torch.Tensor, *, target: str = "trn3", lnc: int = 2) -> torch.Tensor:
    """See `shim.row_quantize_packed`."""
    return shim.row_quantize_packed(x, target=target, lnc=lnc)


@modulate.register_fake
def _(*arguments: Any, **named: Any) -> torch.Tensor:
    given = inspect.signature(shim.adaln_modulate).bind(*arguments, **named).arguments
    x = given["x"]
    return x.new_empty(x.shape, dtype=torch.bfloat16) if given.get("quant") is None else _packed(x)


@row_quantize_packed.register_fake
def _(x: torch.Tensor, **_named: Any) -> torch.Tensor:
    return _packed(x)


def _packed(x: torch.Tensor) -> torch.Tensor:
    """Packed rows of x, without values."""
    return x.new_empty((*x.shape[:-1], x.shape[-1] + WORD_CODES), dtype=torch.float8_e4m3fn)
