"""Projections at work: weights of one, and the two precisions in which they compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from kernels.adaln_quant import row_quantize_packed
from kernels.qkv_cte import NormType, QKNormConfig, QKVOutputLayout, row_mx_qkv_proj
from models.wan22.ranks import TARGET


@dataclass(frozen=True)
class Projection:
    """Weights of a projection of H inputs and I outputs, or of a rank's share of its output channels.

    Attributes:
        weight: [I, H] bfloat16; or [H / 4, I, 4] float8_e4m3fn.
        bias: [I] bfloat16; or [1, I] float32.
        weight_scales: [1, I] float32 beside fp8 weights, None beside bfloat16.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    weight_scales: torch.Tensor | None

    @property
    def quantised(self) -> bool:
        """Whether its inputs are packed rows."""
        return self.weight_scales is not None

    @property
    def outputs(self) -> int:
        """I."""
        return self.bias.shape[-1]

    def rows(self, x: torch.Tensor, lnc: int) -> torch.Tensor:
        """x [B, S, H] bfloat16, S a multiple of `lnc`, as this projection takes it."""
        return row_quantize_packed(x, target=TARGET, lnc=lnc) if self.quantised else x

    def call(self, rows: torch.Tensor, heads: int, kv_heads: int, head_dim: int) -> dict[str, Any]:
        """Arguments of `row_mx_qkv_proj` for packed rows [B, S, H + 4]."""
        return {
            "packed_hidden": rows,
            "weight": self.weight,
            "weight_scales": self.weight_scales,
            "bias": self.bias,
            "num_heads": heads,
            "head_dim": head_dim,
            "num_kv_heads": kv_heads,
        }


@torch.no_grad()
def project(projection: Projection, rows: torch.Tensor, lnc: int) -> torch.Tensor:
    """Rows, as the projection takes them, to [B, S, I] bfloat16. S is a multiple of `lnc`."""
    if not projection.quantised:
        return functional.linear(rows, projection.weight, projection.bias)
    return row_mx_qkv_proj(**projection.call(rows, 1, 0, projection.outputs), target=TARGET, lnc=lnc)


@torch.no_grad()
def project_heads(
    projection: Projection, rows: torch.Tensor, head_dim: int, lnc: int, gamma: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """One segment that holds all its heads, normalised across them where there is a gamma [I].

    Returns:
        [B, heads, S, head_dim] bfloat16.
    """
    heads = projection.outputs // head_dim
    if not projection.quantised:
        segment = functional.linear(rows, projection.weight, projection.bias)
        segment = segment if gamma is None else rms_norm(segment, mean_square(segment), gamma, eps)
        return segment.unflatten(-1, (heads, head_dim)).transpose(1, 2)
    call = projection.call(rows, heads, 0, head_dim)
    call["output_layout"] = QKVOutputLayout.NBSd
    if gamma is not None:
        call["qk_norm_pre_rope"] = QKNormConfig(q_norm=NormType.RMS_NORM_ACROSS_HEADS, eps=eps)
        call["qk_norm_pre_rope_q_gamma"] = gamma[None]
    return row_mx_qkv_proj(**call, target=TARGET, lnc=lnc).transpose(0, 1)


def fused_call(
    projection: Projection,
    rows: torch.Tensor,
    head_dim: int,
    gammas: tuple[torch.Tensor, torch.Tensor],
    caches: tuple[torch.Tensor, torch.Tensor],
    eps: float,
    replica_groups: tuple[tuple[int, ...], ...] | None,
) -> Mapping[str, Any]:
    """The call for Q | K | V of a rank's heads, with norm across the heads of all ranks and RoPE.

    Args:
        projection: quantised.
        rows: [B, S, H + 4].
        head_dim: lanes of a head.
        gammas: of Q and K, each [I / 3].
        caches: cos and sin, each [S, head_dim].
        eps: of the norms.
        replica_groups: ranks that share the norms.
    """
    heads = projection.outputs // 3 // head_dim
    cos, sin = (cache.expand(rows.shape[0], -1, -1).contiguous() for cache in caches)
    norm = NormType.RMS_NORM_ACROSS_HEADS
    return projection.call(rows, heads, heads, head_dim) | {
        "fused_rope": True,
        "cos_cache": cos,
        "sin_cache": sin,
        "qk_norm_pre_rope": QKNormConfig(q_norm=norm, k_norm=norm, eps=eps),
        "qk_norm_pre_rope_q_gamma": gammas[0][None],
        "qk_norm_pre_rope_k_gamma": gammas[1][None],
        "replica_groups": replica_groups,
    }


def mean_square(segment: torch.Tensor) -> torch.Tensor:
    """Of each token's channels: [B, S, C] to [B, S, 1] float32."""
    return segment.float().square().mean(-1, keepdim=True)


def rms_norm(segment: torch.Tensor, mean: torch.Tensor, gamma: torch.Tensor, eps: float) -> torch.Tensor:
    """A segment [B, S, C] over its root mean square, given the mean square, times gamma [C]; rounded once to bf16."""
    return (segment.float() * torch.rsqrt(mean + eps) * gamma.float()).to(torch.bfloat16)


def rope(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate-half RoPE of [B, S, heads, d] bfloat16 by caches [S, d]; rounded once to bf16."""
    x = heads.float()
    low, high = x.chunk(2, dim=-1)
    return (x * cos[:, None] + torch.cat([-high, low], -1) * sin[:, None]).to(torch.bfloat16)
