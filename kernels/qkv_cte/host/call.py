"""From a caller's arguments to the kernel's: everything is checked, and nothing has run."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from kernels.qkv_cte.host import arguments
from kernels.qkv_cte.host.interface import QKNormConfig, QKVOutputLayout
from kernels.qkv_cte.planning import pass_plan
from kernels.qkv_cte.planning.choice import Choice


def kernel_operands(
    packed_hidden: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None,
    num_heads: int,
    head_dim: int,
    num_kv_heads: int,
    fused_rope: bool = False,
    cos_cache: torch.Tensor | None = None,
    sin_cache: torch.Tensor | None = None,
    qk_norm_pre_rope: QKNormConfig | None = None,
    qk_norm_pre_rope_q_gamma: torch.Tensor | None = None,
    qk_norm_pre_rope_k_gamma: torch.Tensor | None = None,
    norm_eps: float = 1e-6,
    replica_groups: tuple[tuple[int, ...], ...] | None = None,
    output_layout: QKVOutputLayout = QKVOutputLayout.BSD,
    *,
    choice: Choice | None = None,
    target: str,
    lnc: int,
) -> tuple[Any, ...]:
    """Positional arguments of the kernel for a call as `shim.row_mx_qkv_proj` describes it.

    Raises:
        TypeError, ValueError: an argument is not as described.
    """
    chip = arguments.require_target(target, lnc)
    segments = arguments.require_segments(num_heads, head_dim, num_kv_heads)
    arguments.require_hidden(packed_hidden)
    device = packed_hidden.device
    dims = arguments.require_dims(packed_hidden, segments, lnc)
    arguments.require_weight(weight, dims.hidden, segments, device)
    weight_scales = arguments.require_weight_scales(weight_scales, dims.width, device)
    bias = arguments.require_bias(bias, dims.width, device)
    caches = {"cos_cache": cos_cache, "sin_cache": sin_cache}
    arguments.require_rope(fused_rope, caches, (dims.batch, dims.seqlen, segments.head_dim), device)
    gammas = {
        "qk_norm_pre_rope_q_gamma": qk_norm_pre_rope_q_gamma,
        "qk_norm_pre_rope_k_gamma": qk_norm_pre_rope_k_gamma,
    }
    arguments.require_norm(qk_norm_pre_rope, gammas, norm_eps, segments, device)
    arguments.require_replica_groups(replica_groups)
    arguments.require_layout(output_layout, segments.head_dim)
    if bias is not None:
        dims = dataclasses.replace(dims, bias_bytes=bias.itemsize)
    norm_rope = pass_plan.make_pass(
        dims,
        num_heads=segments.num_heads,
        num_kv_heads=segments.num_kv_heads,
        head_dim=segments.head_dim,
        q_gamma_bytes=_itemsize(qk_norm_pre_rope_q_gamma),
        k_gamma_bytes=_itemsize(qk_norm_pre_rope_k_gamma),
        cache_bytes=_itemsize(cos_cache),
        replica_groups=replica_groups,
        eps=norm_eps if qk_norm_pre_rope is None else qk_norm_pre_rope.eps,
    )
    nbsd_head_dim = segments.head_dim if output_layout is QKVOutputLayout.NBSd else 0
    config = arguments.make_plan(dims, chip, norm_rope, nbsd_head_dim, choice).config
    before = (packed_hidden, weight, weight_scales, bias)
    after = (qk_norm_pre_rope_q_gamma, qk_norm_pre_rope_k_gamma, cos_cache, sin_cache)
    return (*map(_dense, before), config, *map(_dense, after))


def _itemsize(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.itemsize


def _dense(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.contiguous()
