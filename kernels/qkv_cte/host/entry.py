"""The general projection as torch calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kernels.qkv_cte.device.qkv_kernel import qkv_projection
from kernels.qkv_cte.host import op, qkv_call, ranks
from kernels.qkv_cte.host.entries import Entry
from kernels.qkv_cte.host.qkv_arguments import QKVArguments

WRITTEN = ("k_cache", "v_cache", "q_squared_sum_out", "k_squared_sum_out", "v_squared_sum_out")

ENTRY = Entry("qkv", QKVArguments, qkv_call.prepare, qkv_projection, WRITTEN)
op.define(ENTRY)


def qkv(
    input: torch.Tensor,  # noqa: A002 - the name that the NKI Library has published
    fused_qkv_weights: torch.Tensor,
    *,
    target: str = "trn3",
    lnc: int = 2,
    **options: Any,
) -> torch.Tensor:
    """Projects activations to `[Q | K | V]`, with what a model does around it.

    `norm(input + residuals) @ fused_qkv_weights + bias`; Q and K with norms and RoPE; K and V also into caches. See
    `qkv_kernel.qkv_projection` for the rounding. Up to 96 tokens (B * S) the cores share the columns, so that S need
    not be a multiple of them; with more they share the tokens.

    Tensors on the CPU run on the simulator, others on the device they are on. torch.compile and torch.export see one
    op, `torch.ops.qkv_cte.qkv`. No gradients.

    With `replica_groups` every rank calls. On the CPU each is a process of the default torch.distributed group, which
    is a gloo group, and none begins before all agree; `qkv_ranks` runs them in one process instead.

    Args:
        input, fused_qkv_weights, options: the fields of `QKVArguments`.
        target: "trn2" or "trn3"; ROW_MX and MXFP8 need "trn3".
        lnc: cores that share the call, 1 or 2.

    Returns:
        [B, S, I], or in layout NBSd [num_q_heads + 2 * num_kv_heads, B, S, d_head], a new tensor of the type of
        `input`; bfloat16 with ROW_MX.

    Raises:
        TypeError, ValueError: an argument is not as described, here or on another rank, or ranks differ; nothing has
            run.
        nkisim.errors.DeadlockError: a rank does not call.
    """
    call = ENTRY.arguments({"input": input, "fused_qkv_weights": fused_qkv_weights, **options})
    return op.call(ENTRY, call, target=target, lnc=lnc)


def qkv_ranks(calls: Sequence[Mapping[str, Any]], *, target: str = "trn3", lnc: int = 2) -> list[torch.Tensor]:
    """`qkv` on several ranks that share their sums of squares, each with its own heads.

    Args:
        calls: one entry per rank, from rank 0 on: the fields of `QKVArguments` by name; tensors on the CPU. Sizes,
            types and everything that is no tensor agree on all ranks, and `replica_groups` names just these ranks.
        target, lnc: as for `qkv`, of every rank.

    Returns:
        The ranks' results in their order.

    Raises:
        TypeError, ValueError: an argument is not as described; nothing has run. A note names the rank.
    """
    return ranks.run(ENTRY, calls, target=target, lnc=lnc)
