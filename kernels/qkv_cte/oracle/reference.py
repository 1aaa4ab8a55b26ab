"""What the kernel should give, from the packed tensors, in fp64. Shares no code with kernel, plan or packing."""

from __future__ import annotations

import torch


def row_mx_qkv_proj(
    packed_hidden: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """`dequant(x) @ dequant(w) + bias` without any rounding on the way.

    Args:
        packed_hidden: [B, S, H + 4] float8_e4m3fn, codes and the row's fp32 scale in the last four bytes.
        weight: [H / 4, I, 4] float8_e4m3fn, `weight[r, i, c]` is row 4r + c of column i.
        weight_scales: [1, I] float32.
        bias: [1, I], any floating type, or None.

    Returns:
        [B, S, I] float64.
    """
    codes = packed_hidden[..., :-4].to(torch.float64)
    row_scales = packed_hidden[..., -4:].contiguous().view(torch.float32).to(torch.float64)
    columns = weight.shape[1]
    matrix = weight.to(torch.float64).movedim(2, 1).reshape(-1, columns)
    out = (codes @ matrix) * row_scales * weight_scales.to(torch.float64)
    return out if bias is None else out + bias.to(torch.float64)


def rms_norm(segment: torch.Tensor, gamma: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm across all heads: each token over its mean square of all channels given, times gamma.

    Args:
        segment: [B, S, C], Q or K with the heads of all ranks.
        gamma: [1, C].
        eps: added to the mean square.

    Returns:
        [B, S, C] float64.
    """
    x = segment.to(torch.float64)
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) * gamma.to(torch.float64)


def rope(segment: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate-half RoPE: lanes i and i + d/2 of each head turn by the angle of their position.

    Args:
        segment: [B, S, heads * d].
        cos, sin: [B, S, d].

    Returns:
        [B, S, heads * d] float64.
    """
    batch, seqlen, head_dim = cos.shape
    heads = segment.to(torch.float64).reshape(batch, seqlen, -1, head_dim)
    low, high = heads.chunk(2, dim=-1)
    cos_low, cos_high = cos.to(torch.float64)[:, :, None].chunk(2, dim=-1)
    sin_low, sin_high = sin.to(torch.float64)[:, :, None].chunk(2, dim=-1)
    turned = torch.cat([low * cos_low - high * sin_low, high * cos_high + low * sin_high], dim=-1)
    return turned.reshape(segment.shape)


def nbsd(projected: torch.Tensor, head_dim: int) -> torch.Tensor:
    """[B, S, heads * d] as [heads, B, S, d]."""
    return torch.stack(projected.split(head_dim, dim=-1))
