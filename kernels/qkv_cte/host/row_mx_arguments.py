"""The arguments of a row-quantised call, in one record."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.qkv_cte.host.interface import QKNormConfig, QKVOutputLayout
from kernels.qkv_cte.planning.choice import Choice


@dataclass(frozen=True)
class RowMxArguments:
    """Arguments of `shim.row_mx_qkv_proj`, which describes them, but for the target and its cores."""

    packed_hidden: torch.Tensor
    weight: torch.Tensor
    weight_scales: torch.Tensor
    bias: torch.Tensor | None
    num_heads: int
    head_dim: int
    num_kv_heads: int
    fused_rope: bool = False
    cos_cache: torch.Tensor | None = None
    sin_cache: torch.Tensor | None = None
    qk_norm_pre_rope: QKNormConfig | None = None
    qk_norm_pre_rope_q_gamma: torch.Tensor | None = None
    qk_norm_pre_rope_k_gamma: torch.Tensor | None = None
    norm_eps: float = 1e-6
    replica_groups: tuple[tuple[int, ...], ...] | None = None
    output_layout: QKVOutputLayout = QKVOutputLayout.BSD
    choice: Choice | None = None

    @property
    def activations(self) -> torch.Tensor:
        """What is projected; its device is that of the call."""
        return self.packed_hidden

    @property
    def output_like(self) -> torch.Tensor:
        """A tensor like the result, of no values."""
        batch, seqlen, _ = self.packed_hidden.shape
        heads = self.num_heads + 2 * self.num_kv_heads
        shape = self.output_layout.shape(batch, seqlen, heads, self.head_dim)
        return self.packed_hidden.new_empty(shape, dtype=torch.bfloat16)
