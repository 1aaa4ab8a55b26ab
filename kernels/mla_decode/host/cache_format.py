"""The fp8 format of cache rows.

A row is bytes: kv_lora_rank float8_e4m3fn codes, a float32 scale for each 128 of them, then rope bfloat16 numbers. At
DeepSeek's widths that is 512 + 16 + 128 = 656 bytes. A number is its code times its scale; scales may be any.
"""

from __future__ import annotations

import torch

GROUP = 128
"""Codes that share a scale."""

LARGEST_CODE = 448.0


def row_bytes(kv_lora_rank: int, rope: int) -> int:
    """Bytes of a row."""
    return kv_lora_rank + 4 * (kv_lora_rank // GROUP) + 2 * rope


def pack_rows(rows: torch.Tensor, rope: int) -> torch.Tensor:
    """Quantises rows `[k_pe | kv_latent]`, so that the largest of each 128 latent numbers becomes 448.

    Args:
        rows: [..., rope + kv_lora_rank], finite, kv_lora_rank a multiple of 128.
        rope: width of k_pe.

    Returns:
        [..., row_bytes] uint8.

    Raises:
        ValueError: the width does not suit, or a number is not finite.
    """
    rank = rows.shape[-1] - rope
    if rank < 1 or rank % GROUP:
        raise ValueError(f"rows are {list(rows.shape)}; accepted: rope {rope} and a multiple of {GROUP} wide")
    if not rows.isfinite().all():
        raise ValueError("rows have numbers that are not finite; accepted: finite ones")
    latent = rows[..., rope:].float().unflatten(-1, (-1, GROUP))
    largest = latent.abs().amax(dim=-1, keepdim=True)
    scales = torch.where(largest > 0, largest / LARGEST_CODE, 1.0)
    codes = (latent / scales).clamp(-LARGEST_CODE, LARGEST_CODE).to(torch.float8_e4m3fn)
    parts = (codes.flatten(-2), scales[..., 0], rows[..., :rope].to(torch.bfloat16))
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=-1)


def unpack_rows(packed: torch.Tensor, kv_lora_rank: int) -> torch.Tensor:
    """Rows `[k_pe | kv_latent]` of packed ones, exact, float64."""
    codes, scales, k_pe = packed.split(
        [kv_lora_rank, 4 * (kv_lora_rank // GROUP), packed.shape[-1] - kv_lora_rank - 4 * (kv_lora_rank // GROUP)],
        dim=-1,
    )
    latent = codes.contiguous().view(torch.float8_e4m3fn).double().unflatten(-1, (-1, GROUP))
    latent = latent * scales.contiguous().view(torch.float32).double()[..., None]
    return torch.cat([k_pe.contiguous().view(torch.bfloat16).double(), latent.flatten(-2)], dim=-1)
