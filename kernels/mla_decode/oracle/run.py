"""Runs a case as a caller of the shims would."""

from __future__ import annotations

import torch

from kernels.mla_decode.device.kernel import staged_attention
from kernels.mla_decode.host.front_shim import mla_decode, mla_decode_qkv
from kernels.mla_decode.host.launch import launch
from kernels.mla_decode.host.shim import mla_decode_attention, stage_absorbed, stage_rope
from kernels.mla_decode.host.tables import PriorIndex
from kernels.mla_decode.oracle.cases import Case, Operands
from kernels.mla_decode.oracle.front_cases import NORM_EPS, FrontCase, FrontOperands
from kernels.mla_decode.oracle.front_reference import Front
from kernels.mla_decode.planning.plan import DEFAULT_SCHEDULE, Plan


def attention(case: Case, operands: Operands, index: PriorIndex | None = None) -> torch.Tensor:
    """The kernel's answer, [n_tokens, hidden].

    Args:
        case: sizes, scale, target and plan.
        operands: the tensors.
        index: other tables than the operands' own.
    """
    if (case.schedule, case.group_tokens, case.cores_share) != (DEFAULT_SCHEDULE, None, None):
        return planned_attention(case, case.plan, operands, index)
    return mla_decode_attention(
        operands.q_absorbed,
        operands.q_pe,
        operands.kv_cache,
        operands.kv_row_cur,
        *(index or operands.index(case.n_prior)),
        operands.positions,
        operands.out_absorb_w,
        operands.o_proj_w,
        case.n_prior,
        case.softmax_scale,
        target=case.target,
        lnc=case.lnc,
        dma_transposed_chunks=case.dma_transposed_chunks,
    )


def planned_attention(case: Case, planned: Plan, operands: Operands, index: PriorIndex | None = None) -> torch.Tensor:
    """The kernel's answer under a plan, which callers of the shim cannot give, on the case's cores and target."""
    tensors = (
        stage_absorbed(operands.q_absorbed),
        stage_rope(operands.q_pe),
        operands.kv_cache,
        operands.kv_row_cur,
        *(index or operands.index(case.n_prior)),
        operands.positions,
        operands.out_absorb_w,
        operands.o_proj_w,
    )
    sizes = (case.n_prior, case.softmax_scale, planned.config)
    result: torch.Tensor = launch(staged_attention[case.lnc], (*tensors, *sizes), operands.kv_cache.device, case.target)
    return result


def qkv(case: FrontCase, operands: FrontOperands) -> Front:
    """The front-fold alone. The cache in `operands` is written."""
    at = case.attention
    made = mla_decode_qkv(*_front(operands), operands.input_norm_w, NORM_EPS, target=at.target, lnc=at.lnc)
    return Front(*made)


def decode(case: FrontCase, operands: FrontOperands) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole step: output and kv_row_cur. The cache in `operands` is written."""
    step, at = operands.step, case.attention
    return mla_decode(
        *_front(operands),
        *step.index(at.n_prior),
        step.positions,
        step.out_absorb_w,
        step.o_proj_w,
        at.n_prior,
        at.softmax_scale,
        operands.input_norm_w,
        NORM_EPS,
        target=at.target,
        lnc=at.lnc,
        dma_transposed_chunks=at.dma_transposed_chunks,
    )


def _front(operands: FrontOperands) -> tuple[torch.Tensor, ...]:
    return (
        operands.hidden_states,
        operands.wq_a,
        operands.q_norm_w,
        operands.wq_b,
        operands.wkv_a,
        operands.kv_norm_w,
        operands.cos,
        operands.sin,
        operands.q_absorb_w,
        operands.step.kv_cache,
        operands.slot_mapping,
    )
