"""From a caller's arguments to the kernels': everything is checked, and nothing has run."""

from __future__ import annotations

import math
from typing import Any

import torch

from kernels.adaln_quant.host import arguments
from kernels.adaln_quant.planning.dims import Dims, Modulation


def adaln_operands(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float, quant: str | None, target: str, lnc: int
) -> tuple[Any, ...]:
    """Positional arguments of `kernel.adaln` for a call as `shim.adaln_modulate` describes it.

    Raises:
        TypeError, ValueError: an argument is not as described.
    """
    quantised = arguments.require_quant(quant)
    chip = arguments.require_target(target, lnc, quantised)
    arguments.require_rows(x, arguments.MAX_MAGNITUDE)
    arguments.require_modulation(x, scale, shift)
    modulation = Modulation.batch if scale.dim() == 2 else Modulation.token
    dims = _dims(x, lnc, modulation, quantised, scale.itemsize)
    made = arguments.make_plan(dims, chip, arguments.require_eps(eps))
    return x.contiguous(), scale.contiguous(), shift.contiguous(), made.config, quantised


def quantise_operands(x: torch.Tensor, target: str, lnc: int) -> tuple[Any, ...]:
    """Positional arguments of `kernel.row_quantise` for a call as `shim.row_quantize_packed` describes it.

    Raises:
        TypeError, ValueError: an argument is not as described.
    """
    chip = arguments.require_target(target, lnc, quantised=True)
    arguments.require_rows(x, math.inf)
    dims = _dims(x, lnc, Modulation.none, True, 0)
    return x.contiguous(), arguments.make_plan(dims, chip).config


def _dims(x: torch.Tensor, lnc: int, modulation: Modulation, quantised: bool, modulation_bytes: int) -> Dims:
    batch, seqlen, hidden = x.shape
    try:
        return Dims(batch, seqlen, hidden, lnc, modulation, quantised, x.itemsize, modulation_bytes)
    except ValueError as error:
        raise ValueError(f"x is {arguments.shape(x)}, [B, S, H]: {error}") from None
