"""The fp8 format of cache rows.

A row is bytes: kv_lora_rank float8_e4m3fn codes, a float32 scale for each 128 of them, then rope bfloat16 numbers. At
DeepSeek's widths that is 512 + 16 + 128 = 656 bytes. A number is its code times its scale; scales may be any.
"""

from __future__ import annotations

from typing import Any

import torch

from common.checks import require_int
from kernels.mla_decode.device.config import SCALED_CODES
from kernels.mla_decode.device.config import row_bytes as row_bytes

GROUP = SCALED_CODES
"""Codes that share a scale."""

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
"""Of rows that may be packed."""

LARGEST_CODE = 448.0


def pack_rows(rows: torch.Tensor, rope: int) -> torch.Tensor:
    """Quantises rows `[k_pe | kv_latent]`, so that the largest of each 128 latent numbers becomes 448.

    Args:
        rows: [..., rope + kv_lora_rank], finite, kv_lora_rank a multiple of 128; of two bytes or more.
        rope: width of k_pe.

    Returns:
        [..., row_bytes] uint8.

    Raises:
        TypeError: `rows` is no such tensor, or `rope` no integer.
        ValueError: the width does not suit, or a number is not finite.
    """
    _require_rows("rows", rows, DTYPES)
    rope = require_int("rope", rope, at_least=0)
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
    """Rows `[k_pe | kv_latent]` of packed ones, exact.

    Args:
        packed: [..., row_bytes] uint8.
        kv_lora_rank: width of kv_latent, a multiple of 128.

    Returns:
        [..., rope + kv_lora_rank] float64.

    Raises:
        TypeError: `packed` is no such tensor, or `kv_lora_rank` no integer.
        ValueError: the width does not suit.
    """
    _require_rows("packed", packed, (torch.uint8,))
    rank = require_int("kv_lora_rank", kv_lora_rank, at_least=GROUP)
    if rank % GROUP:
        raise ValueError(f"kv_lora_rank is {rank}; accepted: a multiple of {GROUP}")
    least = row_bytes(rank, rope=0)
    if packed.shape[-1] < least or (packed.shape[-1] - least) % 2:
        raise ValueError(
            f"packed is {list(packed.shape)}; accepted with kv_lora_rank {rank}: {least} bytes of codes and scales "
            "wide, and two for each number of k_pe"
        )
    codes, scales, k_pe = packed.split([rank, least - rank, packed.shape[-1] - least], dim=-1)
    latent = codes.contiguous().view(torch.float8_e4m3fn).double().unflatten(-1, (-1, GROUP))
    latent = latent * scales.contiguous().view(torch.float32).double()[..., None]
    return torch.cat([k_pe.contiguous().view(torch.bfloat16).double(), latent.flatten(-2)], dim=-1)


def _require_rows(name: str, value: Any, dtypes: tuple[torch.dtype, ...]) -> None:
    """That a value is a tensor of rows, of one of the types."""
    accepted = " or ".join(map(str, dtypes))
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; accepted: a tensor of rows, {accepted}")
    if value.dtype not in dtypes:
        raise TypeError(f"{name} is {value.dtype}; accepted: {accepted}")
    if value.dim() == 0:
        raise ValueError(f"{name} is [], a single number; accepted: rows")
