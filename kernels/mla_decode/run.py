"""Runs a case's attention as a caller of the shim would."""

from __future__ import annotations

import torch

from kernels.mla_decode.cases import Case, Operands
from kernels.mla_decode.shim import mla_decode_attention
from kernels.mla_decode.tables import PriorIndex


def attention(case: Case, operands: Operands, index: PriorIndex | None = None) -> torch.Tensor:
    """The kernel's answer, [n_tokens, hidden].

    Args:
        case: sizes, scale, target and plan.
        operands: the tensors.
        index: other tables than the operands' own.
    """
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
        dma_transposed_chunks=case.dma_transposed_chunks,
    )
