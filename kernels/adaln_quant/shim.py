"""The kernels as torch calls them."""

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


@torch.no_grad()
def adaln_modulate(
    x: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    eps: float = 1e-6,
    quant: str | None = None,
    *,
    target: str = "trn3",
    lnc: int = 2,
) -> torch.Tensor:
    """`layer_norm(x) * (1 + scale) + shift`, LayerNorm over H without weights, as diffusers' WanTransformerBlock does.

    Everything is fp32 up to one rounding, to bf16 or to the codes. A LayerNorm with weights w and b, as before Wan's
    cross-attention, is `scale = w - 1, shift = b`.

    Tensors on the CPU run on the simulator, others on the device they are on. All lie on one device.

    Args:
        x: [B, S, H] bfloat16 or float32, H a multiple of 4, S of `lnc`; magnitudes up to 2**48.
        scale, shift: both [B, H], a vector per batch (Wan2.2 A14B); or both [B, S, H], one per token (TI2V 5B); float32
            or bfloat16, of one type; magnitudes up to 2**48.
        eps: added to the variance.
        quant: "row" for packed rows, which need trn3; None for bfloat16.
        target: "trn2" or "trn3".
        lnc: cores that share the call, 1 or 2; each takes half of the tokens of each batch.

    Returns:
        With quant "row": [B, S, H + 4] float8_e4m3fn, H codes and the row's fp32 scale (`common.row_mx`), as
        `row_mx_qkv_proj` takes them, which also wants H a multiple of 128. Else [B, S, H] bfloat16. A new tensor.

    Raises:
        TypeError, ValueError: an argument is not as described; nothing has run.
    """
    operands = adaln_operands(x, scale, shift, eps, quant, target, lnc)
    return _launch(adaln[lnc], operands, x.device, target)


@torch.no_grad()
def row_quantize_packed(x: torch.Tensor, *, target: str = "trn3", lnc: int = 2) -> torch.Tensor:
    """Quantises each row of x: the bytes of `common.row_mx.row_quantise_packed`.

    Args:
        x: [B, S, H] bfloat16 or float32, finite, H a multiple of 4, S of `lnc`.
        target: "trn3"; float8_e4m3fn does not exist on "trn2".
        lnc: cores that share the call, 1 or 2; each takes half of the tokens.

    Returns:
        [B, S, H + 4] float8_e4m3fn, H codes and the row's fp32 scale, max(max|row| / 448, 1e-6). A new tensor.

    Raises:
        TypeError, ValueError: an argument is not as described; nothing has run.
    """
    operands = quantise_operands(x, target, lnc)
    return _launch(row_quantise[lnc], operands, x.device, target)


def _launch(
    kernel: Callable[..., torch.Tensor], operands: tuple[Any, ...], device: torch.device, target: str
) -> torch.Tensor:
    """Runs a kernel on the simulator as `target`, or where its tensors are."""
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
