"""The row-quantised projection as torch calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kernels.qkv_cte.device.kernel import row_mx_projection
from kernels.qkv_cte.host import op, ranks, row_mx_call
from kernels.qkv_cte.host.entries import Entry
from kernels.qkv_cte.host.interface import QKNormConfig, QKVOutputLayout
from kernels.qkv_cte.host.row_mx_arguments import RowMxArguments
from kernels.qkv_cte.planning.choice import Choice

ENTRY = Entry("row_mx_qkv_proj", RowMxArguments, row_mx_call.prepare, row_mx_projection)
op.define(ENTRY)


def row_mx_qkv_proj(
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
    target: str = "trn3",
    lnc: int = 2,
) -> torch.Tensor:
    """Projects row-quantised fp8 activations, then normalises Q and K across heads and rotates them.

    `dequant(packed_hidden) @ dequant(weight) + bias`; where asked, Q and K over their RMS across all heads, times
    gamma; where asked, rotate-half RoPE of both. V is left as projected. See `kernel` for the rounding.

    Tensors on the CPU run on the simulator, others on the device they are on. All lie on one device. torch.compile and
    torch.export see one op, `torch.ops.qkv_cte.row_mx_qkv_proj`. No gradients.

    With `replica_groups` every rank calls. On the CPU each is a process of the default torch.distributed group, which
    is a gloo group, and none begins before all agree; `row_mx_qkv_proj_ranks` runs them in one process instead.

    Args:
        packed_hidden: [B, S, H + 4] float8_e4m3fn, H codes and the row's fp32 scale (`common.row_mx`); H a multiple
            of 128, S of `lnc`.
        weight: [H / 4, I, 4] float8_e4m3fn, `weight[r, i, c]` is contraction row 4r + c of column i; columns are
            `[Q | K | V]`, heads in order, I = (num_heads + 2 * num_kv_heads) * head_dim.
        weight_scales: [1, I] float32, finite and positive; [128, I] if all rows are equal.
        bias: [1, I] float32 or bfloat16 (or [128, I], likewise), or None.
        num_heads: Q heads in this call.
        head_dim: columns of a head.
        num_kv_heads: K and as many V heads; 0 for a call of one segment.
        fused_rope: rotate Q and K; needs both caches and an even `head_dim`.
        cos_cache, sin_cache: [B, S, head_dim], both float32 or both bfloat16, rotate-half convention.
        qk_norm_pre_rope: norms of Q and K, and their epsilon; or None.
        qk_norm_pre_rope_q_gamma: [1, num_heads * head_dim] float32 or bfloat16, for the norm of Q.
        qk_norm_pre_rope_k_gamma: [1, num_kv_heads * head_dim] float32 or bfloat16, for the norm of K.
        norm_eps: epsilon where `qk_norm_pre_rope` is None.
        replica_groups: tuple of tuples of ranks for the norm's all-reduce, each rank of the call's world in one of
            them; None where this rank holds all heads.
        output_layout: of the result; NBSd needs a head_dim of 128.
        choice: how the call runs, such as `choice` of a plan that `policy.best` found; None for the seed's rule.
        target: "trn3"; the products of this kernel do not exist on "trn2".
        lnc: cores that share the call, 1 or 2; each takes half of the tokens.

    Returns:
        [B, S, I] bfloat16, a new tensor; in layout NBSd [num_heads + 2 * num_kv_heads, B, S, head_dim].

    Raises:
        TypeError, ValueError: an argument is not as described, here or on another rank, or ranks differ; nothing has
            run.
        nkisim.errors.DeadlockError: a rank does not call.
    """
    call = RowMxArguments(
        packed_hidden=packed_hidden,
        weight=weight,
        weight_scales=weight_scales,
        bias=bias,
        num_heads=num_heads,
        head_dim=head_dim,
        num_kv_heads=num_kv_heads,
        fused_rope=fused_rope,
        cos_cache=cos_cache,
        sin_cache=sin_cache,
        qk_norm_pre_rope=qk_norm_pre_rope,
        qk_norm_pre_rope_q_gamma=qk_norm_pre_rope_q_gamma,
        qk_norm_pre_rope_k_gamma=qk_norm_pre_rope_k_gamma,
        norm_eps=norm_eps,
        replica_groups=replica_groups,
        output_layout=output_layout,
        choice=choice,
    )
    return op.call(ENTRY, call, target=target, lnc=lnc)


def row_mx_qkv_proj_ranks(
    calls: Sequence[Mapping[str, Any]], *, target: str = "trn3", lnc: int = 2
) -> list[torch.Tensor]:
    """`row_mx_qkv_proj` on several ranks that share their sums of squares, each with its own heads.

    Args:
        calls: one entry per rank, from rank 0 on: the arguments of `row_mx_qkv_proj` by name, without target and
            lnc; tensors on the CPU. Sizes, types and everything that is no tensor agree on all ranks, and
            `replica_groups` names just these ranks.
        target, lnc: as for `row_mx_qkv_proj`, of every rank.

    Returns:
        The ranks' results in their order.

    Raises:
        TypeError, ValueError: an argument is not as described; nothing has run. A note names the rank.
    """
    return ranks.run(ENTRY, calls, target=target, lnc=lnc)
