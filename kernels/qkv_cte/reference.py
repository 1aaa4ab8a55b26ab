"""What the projection should give, from the packed tensors, in fp64. Shares no code with kernel, plan or packing."""

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
