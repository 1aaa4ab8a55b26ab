"""What the kernels should give, in fp64. Shares no code with kernels, plan or packing."""

from __future__ import annotations

import torch

LARGEST_CODE = 448.0
SMALLEST_SCALE = 1e-6


def adaln(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """LayerNorm over H without weights, then `* (1 + scale) + shift`.

    Args:
        x: [B, S, H].
        scale, shift: [B, H] or [B, S, H].
        eps: added to the variance.

    Returns:
        [B, S, H] float64.
    """
    rows = x.to(torch.float64)
    centred = rows - rows.mean(dim=-1, keepdim=True)
    normalised = centred / torch.sqrt((centred * centred).mean(dim=-1, keepdim=True) + eps)
    gain, offset = (v.to(torch.float64).reshape(x.shape[0], -1, x.shape[-1]) for v in (scale, shift))
    return normalised * (1.0 + gain) + offset


def row_scales(rows: torch.Tensor) -> torch.Tensor:
    """Exact dequantisation scales of rows [..., H]: [..., 1] float64."""
    return (rows.to(torch.float64).abs().amax(dim=-1, keepdim=True) / LARGEST_CODE).clamp(min=SMALLEST_SCALE)


def unpack(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [..., H] and scales [..., 1] of packed rows [..., H + 4], as float64, from the bytes."""
    raw = packed.contiguous().view(torch.uint8)
    return e4m3fn_values()[raw[..., :-4].long()], raw[..., -4:].contiguous().view(torch.float32).to(torch.float64)


def e4m3fn_values() -> torch.Tensor:
    """Value of each of the 256 codes: sign, 4 bits of exponent with bias 7, 3 of fraction; 0x7f and 0xff are NaN."""
    code = torch.arange(256)
    exponent, fraction = (code >> 3) & 15, (code & 7).to(torch.float64)
    normal = torch.ldexp(1.0 + fraction / 8, exponent - 7)
    magnitude = torch.where(exponent == 0, torch.ldexp(fraction, torch.tensor(-9)), normal)
    magnitude[(code & 0x7F) == 0x7F] = torch.nan
    return torch.where(code >= 128, -magnitude, magnitude)
