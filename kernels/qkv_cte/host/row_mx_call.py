"""From a row-quantised call's arguments to a plan and the kernel's arguments: all is checked, and nothing has run."""

from __future__ import annotations

import dataclasses

import torch

from kernels.qkv_cte.device.config import NormRopePass
from kernels.qkv_cte.host import arguments
from kernels.qkv_cte.host.arguments import Segments
from kernels.qkv_cte.host.entries import PreparedCall
from kernels.qkv_cte.host.interface import QKVOutputLayout
from kernels.qkv_cte.host.row_mx_arguments import RowMxArguments
from kernels.qkv_cte.planning import pass_plan
from kernels.qkv_cte.planning.dims import Dims


def prepare(call: RowMxArguments, *, target: str, lnc: int) -> PreparedCall:
    """Checks a call and plans it.

    Raises:
        TypeError, ValueError: an argument is not as `shim.row_mx_qkv_proj` describes it.
    """
    chip = arguments.require_target(target, lnc)
    segments = arguments.require_segments(call.num_heads, call.head_dim, call.num_kv_heads)
    arguments.require_hidden(call.packed_hidden)
    device = call.packed_hidden.device
    dims = arguments.require_dims(call.packed_hidden, segments, lnc)
    arguments.require_weight(call.weight, dims.hidden, segments, device)
    weight_scales = arguments.require_weight_scales(call.weight_scales, dims.width, device)
    bias = arguments.require_bias(call.bias, dims.width, device)
    if bias is not None:
        dims = dataclasses.replace(dims, bias_bytes=bias.itemsize)
    norm_rope = _require_pass(call, dims, segments)
    nbsd_head_dim = segments.head_dim if call.output_layout is QKVOutputLayout.NBSd else 0
    tensors = {
        "packed_hidden": call.packed_hidden,
        "weight": call.weight,
        "weight_scales": weight_scales,
        "bias": bias,
        "q_gamma": call.qk_norm_pre_rope_q_gamma,
        "k_gamma": call.qk_norm_pre_rope_k_gamma,
        "cos_cache": call.cos_cache,
        "sin_cache": call.sin_cache,
    }
    made = arguments.make_plan(dims, chip, norm_rope, nbsd_head_dim, call.choice)
    return PreparedCall(made, arguments.dense(tensors))


def _require_pass(call: RowMxArguments, dims: Dims, segments: Segments) -> NormRopePass | None:
    """Norms across heads, RoPE and layout."""
    device = call.packed_hidden.device
    caches = {"cos_cache": call.cos_cache, "sin_cache": call.sin_cache}
    arguments.require_rope(call.fused_rope, caches, (dims.batch, dims.seqlen, segments.head_dim), device)
    gammas = {
        "qk_norm_pre_rope_q_gamma": call.qk_norm_pre_rope_q_gamma,
        "qk_norm_pre_rope_k_gamma": call.qk_norm_pre_rope_k_gamma,
    }
    arguments.require_norm(call.qk_norm_pre_rope, gammas, call.norm_eps, segments, device)
    arguments.require_replica_groups(call.replica_groups)
    arguments.require_layout(call.output_layout, segments.head_dim)
    return pass_plan.make_pass(
        dims,
        num_heads=segments.num_heads,
        num_kv_heads=segments.num_kv_heads,
        head_dim=segments.head_dim,
        q_gamma_bytes=_itemsize(call.qk_norm_pre_rope_q_gamma),
        k_gamma_bytes=_itemsize(call.qk_norm_pre_rope_k_gamma),
        cache_bytes=_itemsize(call.cos_cache),
        replica_groups=call.replica_groups,
        eps=call.norm_eps if call.qk_norm_pre_rope is None else call.qk_norm_pre_rope.eps,
    )


def _itemsize(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.itemsize
