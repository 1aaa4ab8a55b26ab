"""The general projection as torch calls it."""

from __future__ import annotations

from typing import Any

import torch

import nki
from common.platform_target import platform_target
from kernels.qkv_cte.device.qkv_kernel import qkv_projection
from kernels.qkv_cte.host import qkv_op
from kernels.qkv_cte.host.qkv_arguments import QKVArguments
from kernels.qkv_cte.host.qkv_call import prepare


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

    Args:
        input, fused_qkv_weights, options: the fields of `QKVArguments`.
        target: "trn2" or "trn3"; ROW_MX and MXFP8 need "trn3".
        lnc: cores that share the call, 1 or 2.

    Returns:
        [B, S, I], or in layout NBSd [num_q_heads + 2 * num_kv_heads, B, S, d_head], a new tensor of the type of
        `input`; bfloat16 with ROW_MX.

    Raises:
        TypeError, ValueError: an argument is not as described; nothing has run.
    """
    call = QKVArguments(input=input, fused_qkv_weights=fused_qkv_weights, **options)
    return qkv_op.traced(call, target, lnc) if torch.compiler.is_compiling() else run(call, target, lnc)


@torch.no_grad()
def run(call: QKVArguments, target: str, lnc: int) -> torch.Tensor:
    """Checks a call and runs it, on the simulator or on the device; returns and raises what `qkv` does."""
    prepared = prepare(call, target=target, lnc=lnc)
    config = prepared.plan.config
    if call.input.device.type != "cpu":
        return qkv_projection[lnc](config=config, **prepared.tensors)
    with platform_target(target):
        return nki.simulate(qkv_projection[lnc])(config=config, **prepared.tensors)


qkv_op.define(run)
