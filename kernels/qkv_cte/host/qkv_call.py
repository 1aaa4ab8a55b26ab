"""From a general call's arguments to a plan and the kernel's arguments: everything is checked, and nothing has run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kernels.qkv_cte.device.config import BANK_COLUMNS, Flow, HeadStage, NormRopePass, Stages
from kernels.qkv_cte.host import arguments, qkv_cache_checks, qkv_checks
from kernels.qkv_cte.host.arguments import Segments
from kernels.qkv_cte.host.entries import PreparedCall
from kernels.qkv_cte.host.interface import (
    SEQLEN_THRESHOLD_FOR_QKV_CTE,
    QKNormConfig,
    QKVOutputLayout,
    QuantizationType,
)
from kernels.qkv_cte.host.qkv_arguments import QKVArguments
from kernels.qkv_cte.planning import pass_plan
from kernels.qkv_cte.planning.dims import Dims

COPYING_FLOW = Flow(scalar_every=2)
"""Where a bank is only copied, every second one by the Scalar Engine."""


def prepare(call: QKVArguments, *, target: str, lnc: int) -> PreparedCall:
    """Checks a call and plans it.

    Raises:
        TypeError, ValueError: an argument is not as `QKVArguments` describes it.
    """
    qkv_checks.require_enum("quantization_type", call.quantization_type, tuple(QuantizationType))
    quantised = call.quantization_type is not QuantizationType.NONE
    chip = qkv_checks.require_target(target, lnc, quantised)
    with _published_names():
        segments = arguments.require_segments(call.num_q_heads, call.d_head, call.num_kv_heads)
    tensors, hidden = _require_operands(call, segments)
    batch, seqlen, _ = call.input.shape
    bias = qkv_checks.require_bias(call, segments.width)
    qkv_checks.require_rope(call, segments)
    with _published_names():
        arguments.require_layout(call.output_layout, segments.head_dim)
    across = _require_norms(call, segments)
    row_mx = call.quantization_type is QuantizationType.ROW_MX
    heads = None if across else qkv_checks.require_head_stage(call, segments)
    bank_columns = _bank_columns(heads)
    stages = Stages(
        input=None if row_mx else qkv_checks.require_input_stage(call),
        heads=heads,
        cache=qkv_cache_checks.require_cache_stage(call, segments, chip),
        sums=qkv_checks.require_sums(call, segments, bank_columns),
    )
    qkv_checks.require_apart(call)
    dims = Dims(
        batch,
        seqlen,
        hidden,
        segments.width,
        lnc,
        bias_bytes=0 if bias is None else bias.itemsize,
        format=qkv_checks.operand_format(call),
        bank_columns=bank_columns,
        column_unit=_column_unit(call, stages, across),
    )
    norm_rope = _pass(call, dims, segments) if across else None
    nbsd_head_dim = call.d_head if call.output_layout is QKVOutputLayout.NBSd else 0
    with _published_names():
        made = arguments.make_plan(dims, chip, norm_rope, nbsd_head_dim, call.choice, COPYING_FLOW, stages)
    return PreparedCall(made, tensors | {"bias": bias} | _stage_tensors(call, across))


def generates_tokens(call: QKVArguments, across: bool, sums: bool) -> bool:
    """Whether a call takes the token-generation path, in which the cores share the columns and not the tokens.

    It does up to `SEQLEN_THRESHOLD_FOR_QKV_CTE` tokens: each core then reads half of the weights, which are all that
    such a call waits for. Norms across heads and sums of squares need all columns of a token on one core.
    """
    batch, seqlen = call.input.shape[:2]
    return batch * seqlen <= SEQLEN_THRESHOLD_FOR_QKV_CTE and not across and not sums


def _column_unit(call: QKVArguments, stages: Stages, across: bool) -> int:
    """Columns that stay on one core: whole heads where they are worked on or stored as such; 0 to share the tokens."""
    if not generates_tokens(call, across, bool(stages.sums)):
        return 0
    whole = stages.heads is not None or call.output_layout is QKVOutputLayout.NBSd
    return call.d_head if whole else 1


def _bank_columns(heads: HeadStage | None) -> int:
    """A bank holds whole heads where they are worked on."""
    return BANK_COLUMNS if heads is None else BANK_COLUMNS // heads.head_dim * heads.head_dim


@contextmanager
def _published_names() -> Iterator[None]:
    """Errors raised inside name arguments as this call does; the row-quantised call has other names for them."""
    names = {
        "num_heads": "num_q_heads",
        "head_dim": "d_head",
        "packed_hidden": "input",
        "weight_scales": "qkv_w_scale",
        "weight": "fused_qkv_weights",
    }
    try:
        yield
    except (TypeError, ValueError) as error:
        text = re.sub(rf"\b({'|'.join(names)})\b", lambda found: names[found[0]], str(error))
        raise type(error)(text) from None


def _require_operands(call: QKVArguments, segments: Segments) -> tuple[dict[str, Any], int]:
    """Activations and weights as the kernel takes them, and H."""
    scales: torch.Tensor | None = None
    if call.quantization_type is QuantizationType.ROW_MX:
        qkv_checks.require_no_input_stage(call)
        with _published_names():
            arguments.require_hidden(call.input)
            hidden = call.input.shape[2] - arguments.ROW_TAIL_BYTES
            arguments.require_weight(call.fused_qkv_weights, hidden, segments, call.input.device)
            scales = arguments.require_weight_scales(call.qkv_w_scale, segments.width, call.input.device)
    else:
        _, _, hidden = qkv_checks.require_input(call)
        if call.quantization_type is QuantizationType.MXFP8:
            scales = qkv_checks.require_mx_weight(call, segments)
        else:
            qkv_checks.require_plain_weight(call, segments)
    tensors = {"hidden": call.input, "weight": call.fused_qkv_weights, "weight_scales": scales}
    return arguments.dense(tensors), hidden


def _require_norms(call: QKVArguments, segments: Segments) -> bool:
    """Whether Q or K is normalised across heads; checks what goes with it."""
    across = qkv_checks.norms_across_heads(call)
    arguments.require_replica_groups(call.replica_groups)
    if across:
        qkv_checks.require_across(call, segments)
    elif call.replica_groups is not None:
        raise ValueError("replica_groups is given without a norm across heads; accepted: None")
    return across


def _pass(call: QKVArguments, dims: Dims, segments: Segments) -> NormRopePass | None:
    config = call.qk_norm_pre_rope or QKNormConfig()
    gammas = (call.qk_norm_pre_rope_q_gamma, call.qk_norm_pre_rope_k_gamma)
    q_bytes, k_bytes = (0 if gamma is None else gamma.itemsize for gamma in gammas)
    return pass_plan.make_pass(
        dims,
        num_heads=segments.num_heads,
        num_kv_heads=segments.num_kv_heads,
        head_dim=segments.head_dim,
        q_gamma_bytes=q_bytes,
        k_gamma_bytes=k_bytes,
        cache_bytes=0 if call.cos_cache is None else call.cos_cache.itemsize,
        eps=float(config.eps),
        replica_groups=call.replica_groups,
    )


def _stage_tensors(call: QKVArguments, across: bool) -> dict[str, Any]:
    """Tensors of the stages by the kernel's names."""
    residuals = [residual for residual in (call.mlp_prev, call.attention_prev) if residual is not None]
    read = {f"residual_{number}": residual for number, residual in enumerate(residuals)} | {
        "input_gamma": call.gamma_norm_weights,
        "input_beta": call.layer_norm_bias,
        "cos_cache": call.cos_cache,
        "sin_cache": call.sin_cache,
        "k_cos_cache": call.k_cos_cache,
        "k_sin_cache": call.k_sin_cache,
        "slot_mapping": call.slot_mapping,
        "q_gamma": call.qk_norm_pre_rope_q_gamma if across else None,
        "k_gamma": call.qk_norm_pre_rope_k_gamma if across else None,
    }
    for name in ("q", "k"):
        for vector in ("gamma", "beta"):
            before = None if across else getattr(call, f"qk_norm_pre_rope_{name}_{vector}")
            read[f"{name}_before_{vector}"] = before
            read[f"{name}_after_{vector}"] = getattr(call, f"qk_norm_post_rope_{name}_{vector}")
    for name in ("k_scale", "v_scale"):
        value = getattr(call, name)
        read[name] = None if value is None else qkv_cache_checks.cache_scale(name, value, call.input.device)
    written = {
        "k_cache": call.k_cache,
        "v_cache": call.v_cache,
        "q_squared_sum": call.q_squared_sum_out,
        "k_squared_sum": call.k_squared_sum_out,
        "v_squared_sum": call.v_squared_sum_out,
    }
    return written | arguments.dense(read)
