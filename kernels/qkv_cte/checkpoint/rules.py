"""What becomes of each tensor of a Wan2.2 transformer with diffusers' names.

- weights of `to_q`, `to_k`, `to_v`, `to_out.0` in `attn1` and `attn2`, and of `ffn.net.0.proj` and `ffn.net.2`: packed
  fp8 `[H / 4, I, 4]` under their name, and `[1, I]` fp32 under `*.weight_scales`
- weight, bias and gamma of Q and K in `attn1`: with rotate-half lanes
- everything else: itself, bit for bit

Only self-attention has RoPE. Q, K and V stay apart: packed weights `[H / 4, I, 4]`, scales and biases are cut by heads
and joined along their columns by a caller who knows its ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch

from common import row_mx
from kernels.qkv_cte.host.lanes import to_rotate_half
from kernels.qkv_cte.planning.dims import H_MULTIPLE

_LINEAR = re.compile(r"blocks\.\d+\.(attn[12]\.(to_[qkv]|to_out\.0)|ffn\.net\.(0\.proj|2))\.weight")
_ROTATED = re.compile(r"blocks\.\d+\.attn1\.(to_[qk]\.(weight|bias)|norm_[qk]\.weight)")
_QUANTISABLE = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Spec:
    """Name, dtype and shape of a tensor in a file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Rule:
    """What a tensor becomes: the outputs' specs, known without its values, and the function that makes them."""

    outputs: tuple[Spec, ...]
    make: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


def rule_for(source: Spec, head_dim: int) -> Rule:
    """The rule of a tensor.

    Raises:
        ValueError: its shape or dtype does not suit what its name says it is.
    """
    rotated, linear = _ROTATED.fullmatch(source.name), _LINEAR.fullmatch(source.name)
    if rotated and head_dim % 2:
        raise ValueError(
            f"head_dim is {head_dim}; accepted: an even number, RoPE turns lanes of {source.name} in pairs"
        )
    if rotated and (not source.shape or source.shape[0] == 0 or source.shape[0] % head_dim):
        raise ValueError(f"{source.name} is {list(source.shape)}; accepted: whole heads of {head_dim} in dim 0")
    if linear:
        return _quantised(source, head_dim if rotated else 0)
    if rotated:
        return Rule((source,), lambda tensor: (to_rotate_half(tensor, head_dim, dim=0),))
    return Rule((source,), lambda tensor: (tensor,))


def _quantised(source: Spec, head_dim: int) -> Rule:
    """A torch.nn.Linear's weight [I, H], its output channels quantised and packed; head_dim 0 keeps their order."""
    if source.dtype not in _QUANTISABLE:
        accepted = ", ".join(map(str, _QUANTISABLE))
        raise ValueError(f"{source.name} is {source.dtype}; accepted: {accepted}")
    if len(source.shape) != 2 or 0 in source.shape or source.shape[1] % H_MULTIPLE:
        raise ValueError(
            f"{source.name} is {list(source.shape)}; accepted: [output, input], input a multiple of {H_MULTIPLE}"
        )
    columns, hidden = source.shape
    packed = Spec(source.name, torch.float8_e4m3fn, (hidden // row_mx.H_PACK, columns, row_mx.H_PACK))
    scales = Spec(f"{source.name}_scales", torch.float32, (1, columns))

    def make(weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if not torch.isfinite(weight).all():
            raise ValueError(f"{source.name} has NaN or infinite values; accepted: finite ones")
        return pack_linear(to_rotate_half(weight, head_dim, dim=0) if head_dim else weight)

    return Rule((packed, scales), make)


def pack_linear(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises and packs a torch.nn.Linear's weight for the kernels.

    Args:
        weight: [I, H] float32, bfloat16 or float16, finite, H a multiple of 4.

    Returns:
        [H / 4, I, 4] float8_e4m3fn and its scales [1, I] float32 (`common.row_mx`).

    Raises:
        TypeError, ValueError: as `common.row_mx.quantise_columns`.
    """
    codes, scales = row_mx.quantise_columns(weight.T)
    return row_mx.pack_weight(codes), scales
