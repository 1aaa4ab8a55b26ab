"""Checks of a call's arguments, before anything runs; messages name the argument, what it is and what is accepted.

Values are checked where they lie on the host. On a device a check would be a launch of its own, waited for in every
layer.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from common import hardware
from common.budget import BudgetError
from common.checks import require_cores
from common.hardware import Hardware
from kernels.adaln_quant.device.config import WORD_CODES
from kernels.adaln_quant.planning import plan
from kernels.adaln_quant.planning.dims import Dims
from kernels.adaln_quant.planning.plan import Plan

DTYPES = (torch.bfloat16, torch.float32)

MAX_MAGNITUDE = 2.0**48
"""Largest input of AdaLN: the variance stays below 2**97, where the range of the engines' square root ends."""

MIN_EPS, MAX_EPS = 2.0**-87, 2.0**96
"""The same range's other end: the variance of a row may be 0."""


def require_target(target: Any, lnc: Any, quantised: bool) -> Hardware:
    """The target's facts.

    Raises:
        ValueError, TypeError: no such target, one without the codes asked for, or an impossible number of cores.
    """
    chip = hardware.get(target)
    if quantised and not chip.supports_mx:
        raise ValueError(f"target is {target!r}; accepted for quantised rows: 'trn3' (trn2 has no float8_e4m3fn)")
    require_cores("lnc", lnc)
    return chip


def require_quant(quant: Any) -> bool:
    """Whether rows are quantised."""
    if quant is None:
        return False
    if quant != "row":
        raise ValueError(f"quant is {quant!r}; accepted: 'row' or None")
    return True


def require_rows(x: Any, largest: float) -> None:
    """[B, S, H], H a multiple of 4, finite and not above a magnitude."""
    require_tensor("x", x, ("B", "S", "H"))
    if x.device.type == "meta":
        raise ValueError("x is on device meta and has no values; accepted: the CPU or a Neuron device")
    if x.shape[-1] % WORD_CODES:
        raise ValueError(f"x is {shape(x)}; accepted: [B, S, H], H a multiple of {WORD_CODES}")
    require_values("x", x, largest)


def require_modulation(x: torch.Tensor, scale: Any, shift: Any) -> None:
    """Both [B, H] or both [B, S, H], of one type, finite and not above MAX_MAGNITUDE."""
    batch, seqlen, hidden = x.shape
    accepted = ((batch, hidden), (batch, seqlen, hidden))
    for name, value in (("scale", scale), ("shift", shift)):
        require_tensor(name, value, ("B", "H") if getattr(value, "ndim", 3) == 2 else ("B", "S", "H"), x.device)
        if tuple(value.shape) not in accepted:
            raise ValueError(
                f"{name} is {shape(value)}; accepted: {list(accepted[0])} for a vector per batch or "
                f"{list(accepted[1])} for one per token"
            )
        require_values(name, value, MAX_MAGNITUDE)
    if shift.shape != scale.shape:
        raise ValueError(f"shift is {shape(shift)}; accepted: {shape(scale)}, as scale is")
    if shift.dtype != scale.dtype:
        raise TypeError(f"shift is {shift.dtype}; accepted: {scale.dtype}, as scale is")


def require_eps(eps: Any) -> float:
    """A number in the range of the engines' square root."""
    if isinstance(eps, bool) or not isinstance(eps, (int, float)):
        raise TypeError(f"eps is {eps!r}; accepted: a number above 0")
    if not MIN_EPS <= eps <= MAX_EPS:
        # The digits of an integer may be too many to print.
        given = repr(eps) if isinstance(eps, float) else f"an integer of {eps.bit_length()} bits"
        raise ValueError(
            f"eps is {given}; accepted: a number from 2**-87 to 2**96, the range of the engines' square root"
        )
    return float(eps)


def make_plan(dims: Dims, chip: Hardware, eps: float = 1e-6) -> Plan:
    """The plan of a call.

    Raises:
        ValueError: rows are too wide for SBUF.
    """
    try:
        return plan.make(dims, chip, eps)
    except BudgetError as error:
        raise ValueError(f"x of H = {dims.hidden}: {error}") from None


def require_tensor(name: str, value: Any, form: tuple[str, ...], device: torch.device | None = None) -> None:
    """A strided tensor with elements, of an accepted type, with as many dimensions as `form` names, on the device."""
    layout = f"[{', '.join(form)}]"
    accepted = f"{layout} {' or '.join(str(dtype) for dtype in DTYPES)}"
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; accepted: a torch tensor {accepted}")
    if value.is_nested or value.layout != torch.strided:
        layout_given = "nested" if value.is_nested else str(value.layout)
        raise TypeError(f"{name} is {layout_given}; accepted: a strided tensor {accepted}")
    if value.dtype not in DTYPES:
        raise TypeError(f"{name} is {value.dtype}; accepted: {accepted}")
    if value.is_neg():
        raise ValueError(f"{name} is a negated view; accepted: its resolve_neg()")
    if value.dim() != len(form):
        raise ValueError(f"{name} is {shape(value)}; accepted: {layout}")
    if value.numel() == 0:
        raise ValueError(f"{name} is {shape(value)}, which is empty; accepted: {layout}, none of them 0")
    if device is not None and value.device != device:
        raise ValueError(f"{name} is on {value.device}; accepted: {device}, where x is")


def require_values(name: str, value: torch.Tensor, largest: float) -> None:
    """No NaN or infinity, and nothing above the magnitude, where the values lie on the host."""
    if value.device.type != "cpu":
        return
    low, high = (float(bound) for bound in value.aminmax())
    if -largest <= low and high <= largest and -math.inf < low and high < math.inf:
        return
    finite = value.isfinite()
    wrong, accepted = ~finite, "finite values"
    if finite.all():
        wrong, accepted = value.abs() > largest, f"magnitudes up to {largest:.4g}"
    index = wrong.nonzero()[0].tolist()
    raise ValueError(f"{name} has {value[tuple(index)].item()} at {index}; accepted: {accepted}")


def shape(tensor: torch.Tensor) -> str:
    """The tensor's shape as a list."""
    return str(list(tensor.shape))
