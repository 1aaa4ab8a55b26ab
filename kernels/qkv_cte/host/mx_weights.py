"""Weights for MXFP8 calls, made offline: fp8 codes in the products' layout and their block scales."""

from __future__ import annotations

import torch

from common import row_mx

BLOCK_ROWS = 32
"""Contraction rows that share a scale."""

E4M3_EXPONENT = 8
"""Largest exponent of float8_e4m3fn."""

E8M0_BIAS = 127

INPUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@torch.no_grad()
def mx_quantise_weight(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises a weight matrix in blocks of 32 contraction rows of a column, as OCP MX with scales rounded down.

    The scale of a block is the power of two that brings its largest magnitude into the top binade of float8_e4m3fn;
    what exceeds 448 there saturates, as `nisa.quantize_mx` has it for activations.

    Args:
        weight: [H, I] bfloat16, float16 or float32, finite, H a multiple of 128.

    Returns:
        codes [H / 4, I, 4] float8_e4m3fn and scales [H / 32, I] float8_e8m0fnu: `fused_qkv_weights` and `qkv_w_scale`
        of `QKVArguments`.

    Raises:
        TypeError: `weight` is no tensor of an accepted dtype.
        ValueError: its shape is another, or it has NaN or infinity.
    """
    if not isinstance(weight, torch.Tensor) or weight.dtype not in INPUT_DTYPES:
        given = str(weight.dtype) if isinstance(weight, torch.Tensor) else type(weight).__name__
        raise TypeError(f"weight is {given}; accepted: a tensor of {', '.join(map(str, INPUT_DTYPES))}")
    rows = BLOCK_ROWS * row_mx.H_PACK
    if weight.dim() != 2 or weight.numel() == 0 or weight.shape[0] % rows:
        raise ValueError(f"weight is {list(weight.shape)}; accepted: [H, I] with elements, H a multiple of {rows}")
    blocks = weight.float().unflatten(0, (-1, BLOCK_ROWS))
    largest = blocks.abs().amax(dim=1)
    if not largest.isfinite().all():
        row, column = (~weight.isfinite()).nonzero()[0].tolist()
        raise ValueError(f"weight has {weight[row, column].item()} at row {row}, column {column}; accepted: finite")
    exponents = torch.where(largest == 0, -E8M0_BIAS, torch.frexp(largest).exponent - 1 - E4M3_EXPONENT)
    exponents = exponents.clamp(min=-E8M0_BIAS)
    codes = row_mx.to_float8(torch.ldexp(blocks, -exponents[:, None])).flatten(0, 1)
    return row_mx.pack_weight(codes), (exponents + E8M0_BIAS).to(torch.uint8).view(torch.float8_e8m0fnu)
