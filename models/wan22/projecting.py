"""Projections at work: weights of one, and its calls of the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kernels.adaln_quant import row_quantize_packed
from kernels.qkv_cte import NormType, QKNormConfig, QKVOutputLayout
from models.wan22.launching import TARGET, Call, launch

ACROSS_HEADS = NormType.RMS_NORM_ACROSS_HEADS


@dataclass(frozen=True)
class Projection:
    """Weights of a projection of H inputs and I outputs, or of a rank's share of its output channels.

    Attributes:
        weight: [H, I] bfloat16; or [H / 4, I, 4] float8_e4m3fn.
        bias: [1, I] float32.
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
        return self.weight.shape[1]

    def rows(self, x: torch.Tensor, lnc: int) -> torch.Tensor:
        """x [B, S, H] bfloat16, S a multiple of `lnc`, as this projection takes it."""
        return row_quantize_packed(x, target=TARGET, lnc=lnc) if self.quantised else x

    def call(self, rows: torch.Tensor, heads: int, kv_heads: int, head_dim: int, **options: Any) -> Call:
        """A call of the kernel on rows as `rows` makes them; options are those that both of its entries have."""
        common = {"bias": self.bias, "num_kv_heads": kv_heads} | options
        if self.quantised:
            weights = {"packed_hidden": rows, "weight": self.weight, "weight_scales": self.weight_scales}
            return Call(True, weights | common | {"num_heads": heads, "head_dim": head_dim})
        weights = {"input": rows, "fused_qkv_weights": self.weight}
        return Call(False, weights | common | {"num_q_heads": heads, "d_head": head_dim})


def project(projection: Projection, rows: torch.Tensor, lnc: int) -> torch.Tensor:
    """Rows, as the projection takes them, to [B, S, I] bfloat16. S is a multiple of `lnc`."""
    return launch(plain_call(projection, rows), lnc)


def plain_call(projection: Projection, rows: torch.Tensor) -> Call:
    """The call for all output channels as they are."""
    return projection.call(rows, 1, 0, projection.outputs)


def heads_call(
    projection: Projection, rows: torch.Tensor, head_dim: int, gamma: torch.Tensor | None, eps: float
) -> Call:
    """The call for one segment that holds all its heads, normalised across them where there is a gamma [I].

    Its result is [heads, B, S, head_dim].
    """
    norm: dict[str, Any] = {}
    if gamma is not None:
        config = QKNormConfig(q_norm=ACROSS_HEADS, eps=eps)
        norm = {"qk_norm_pre_rope": config, "qk_norm_pre_rope_q_gamma": gamma[None]}
    heads = projection.outputs // head_dim
    return projection.call(rows, heads, 0, head_dim, output_layout=QKVOutputLayout.NBSd, **norm)


def fused_call(
    projection: Projection,
    rows: torch.Tensor,
    head_dim: int,
    gammas: tuple[torch.Tensor, torch.Tensor],
    caches: tuple[torch.Tensor, torch.Tensor],
    eps: float,
    replica_groups: tuple[tuple[int, ...], ...] | None,
) -> Call:
    """The call for Q | K | V of a rank's heads, with norm across the heads of all ranks and RoPE.

    Args:
        projection: of those heads.
        rows: as the projection takes them, S tokens.
        head_dim: lanes of a head.
        gammas: of Q and K, each [I / 3].
        caches: cos and sin, each [S, head_dim].
        eps: of the norms.
        replica_groups: ranks that share the norms.
    """
    heads = projection.outputs // 3 // head_dim
    cos, sin = (cache.expand(rows.shape[0], -1, -1).contiguous() for cache in caches)
    return projection.call(
        rows,
        heads,
        heads,
        head_dim,
        fused_rope=True,
        cos_cache=cos,
        sin_cache=sin,
        qk_norm_pre_rope=QKNormConfig(q_norm=ACROSS_HEADS, k_norm=ACROSS_HEADS, eps=eps),
        qk_norm_pre_rope_q_gamma=gammas[0][None],
        qk_norm_pre_rope_k_gamma=gammas[1][None],
        replica_groups=replica_groups,
    )


def mean_square(segment: torch.Tensor) -> torch.Tensor:
    """Of each token's channels: [B, S, C] to [B, S, 1] float32."""
    return segment.float().square().mean(-1, keepdim=True)


def norm_rope(
    segment: torch.Tensor,
    mean: torch.Tensor,
    gamma: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    eps: float,
) -> torch.Tensor:
    """What the kernel does to Q and K of a rank after the all-reduce: norm, RoPE, one rounding.

    Args:
        segment: [B, S, heads * d] bfloat16.
        mean: [B, S, 1] float32, the mean square over all ranks' channels.
        gamma: [heads * d].
        caches: cos and sin, each [S, d].
        eps: of the norm.
    """
    cos, sin = (cache[:, None] for cache in caches)
    normed = segment.float() * torch.rsqrt(mean + eps) * gamma.float()
    heads = normed.unflatten(-1, (-1, cos.shape[-1]))
    low, high = heads.chunk(2, dim=-1)
    return (heads * cos + torch.cat([-high, low], -1) * sin).flatten(-2).to(segment.dtype)
