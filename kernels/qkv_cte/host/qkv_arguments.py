"""The arguments of a general call, in one record."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.qkv_cte.host.interface import NormType, QKNormConfig, QKVOutputLayout, QuantizationType
from kernels.qkv_cte.planning.choice import Choice


@dataclass(frozen=True, kw_only=True)
class QKVArguments:
    """Arguments of `entry.qkv`, by the names of the NKI Library's qkv where it has them.

    All tensors lie on one device. H is the contraction width, I = (num_q_heads + 2 * num_kv_heads) * d_head.

    Attributes:
        input: [B, S, H] bfloat16, float16 or float32; with ROW_MX [B, S, H + 4] float8_e4m3fn (`common.row_mx`).
        fused_qkv_weights: [H, I] bfloat16, float16 or float32, columns `[Q | K | V]`, heads in order; with ROW_MX and
            MXFP8 [H / 4, I, 4] float8_e4m3fn, `w[r, i, c]` is contraction row 4r + c of column i.
        num_q_heads, num_kv_heads, d_head: heads of this call; no K/V heads for a call of one segment.
        output_layout: NBSd needs a d_head of 128.
        bias: [1, I] float32, bfloat16 or float16 (or [128, I] of equal rows), or None.
        quantization_type: of the operands.
        qkv_w_scale: with ROW_MX [1, I] float32; with MXFP8 [H / 32, I] float8_e8m0fnu or uint8, the scale of rows
            32 b to 32 b + 31 of a column at row b; otherwise None.
        fused_residual_add, mlp_prev, attention_prev: tensors like `input` that are added to it, one or both.
        fused_norm_type: norm of the activations over H; not with ROW_MX, whose activations are quantised already.
        gamma_norm_weights: [1, H], with RMS_NORM and LAYER_NORM.
        layer_norm_bias: [1, H], with LAYER_NORM, or None.
        norm_eps: added to the mean square or the variance of the activations.
        hidden_actual: columns of `input` that count; those behind are padding and are not read. None for all.
        fused_rope: rotate-half RoPE of Q and K.
        cos_cache, sin_cache: [B, S, d_head] float32, bfloat16 or float16, both of one type.
        k_cos_cache, k_sin_cache: the same for K alone, or None.
        qk_norm_pre_rope, qk_norm_post_rope: norms of Q and K; across heads only before RoPE, and then for Q and K.
        qk_norm_pre_rope_q_gamma, ...: [1, d_head], with RMS_NORM and LAYER_NORM; across heads [1, heads * d_head].
        qk_norm_pre_rope_q_beta, ...: [1, d_head], with LAYER_NORM, or None.
        k_cache, v_cache: [B, max_seqlen, num_kv_heads * d_head]: token s of batch b is written to row s of b. With
            `use_block_kv` [num_blocks, block_size, num_kv_heads * d_head]. Of the output's type, or float8_e4m3fn or
            float8_e5m2 with scales. Written in place; contiguous, and may be views of one tensor that do not overlap.
        k_scale, v_scale: a number, or a float32 tensor of one; a code times its scale is the value.
        fp8_max, fp8_min: where quotients are clamped; the largest number of the cache's type, and its negative.
        use_block_kv, slot_mapping, block_size: block cache; slot_mapping [B, S] int32, row `slot % block_size` of
            block `slot // block_size`. Tokens with a negative slot are left out.
        q_squared_sum_out, k_squared_sum_out, v_squared_sum_out: [B, S] float32, written in place: per token the sum
            of squares of the projection, before norm and RoPE.
        replica_groups: tuple of tuples of ranks for a norm across heads, each rank of the call's world in one of them;
            None where this rank holds all heads.
        choice: how the call runs, such as `choice` of a plan that `policy.best` found; None for the seed's rule.
    """

    input: torch.Tensor
    fused_qkv_weights: torch.Tensor
    num_q_heads: int
    num_kv_heads: int
    d_head: int
    output_layout: QKVOutputLayout = QKVOutputLayout.BSD
    bias: torch.Tensor | None = None
    quantization_type: QuantizationType = QuantizationType.NONE
    qkv_w_scale: torch.Tensor | None = None
    fused_residual_add: bool = False
    mlp_prev: torch.Tensor | None = None
    attention_prev: torch.Tensor | None = None
    fused_norm_type: NormType = NormType.NO_NORM
    gamma_norm_weights: torch.Tensor | None = None
    layer_norm_bias: torch.Tensor | None = None
    norm_eps: float = 1e-6
    hidden_actual: int | None = None
    fused_rope: bool = False
    cos_cache: torch.Tensor | None = None
    sin_cache: torch.Tensor | None = None
    k_cos_cache: torch.Tensor | None = None
    k_sin_cache: torch.Tensor | None = None
    qk_norm_pre_rope: QKNormConfig | None = None
    qk_norm_pre_rope_q_gamma: torch.Tensor | None = None
    qk_norm_pre_rope_k_gamma: torch.Tensor | None = None
    qk_norm_pre_rope_q_beta: torch.Tensor | None = None
    qk_norm_pre_rope_k_beta: torch.Tensor | None = None
    qk_norm_post_rope: QKNormConfig | None = None
    qk_norm_post_rope_q_gamma: torch.Tensor | None = None
    qk_norm_post_rope_k_gamma: torch.Tensor | None = None
    qk_norm_post_rope_q_beta: torch.Tensor | None = None
    qk_norm_post_rope_k_beta: torch.Tensor | None = None
    k_cache: torch.Tensor | None = None
    v_cache: torch.Tensor | None = None
    k_scale: torch.Tensor | float | None = None
    v_scale: torch.Tensor | float | None = None
    fp8_max: float | None = None
    fp8_min: float | None = None
    use_block_kv: bool = False
    slot_mapping: torch.Tensor | None = None
    block_size: int | None = None
    q_squared_sum_out: torch.Tensor | None = None
    k_squared_sum_out: torch.Tensor | None = None
    v_squared_sum_out: torch.Tensor | None = None
    replica_groups: tuple[tuple[int, ...], ...] | None = None
    choice: Choice | None = None

    @property
    def activations(self) -> torch.Tensor:
        """What is projected; its device is that of the call."""
        return self.input

    @property
    def output_like(self) -> torch.Tensor:
        """A tensor like the result, of no values."""
        batch, seqlen, _ = self.input.shape
        shape = self.output_layout.shape(batch, seqlen, self.num_q_heads + 2 * self.num_kv_heads, self.d_head)
        row_mx = self.quantization_type is QuantizationType.ROW_MX
        return self.input.new_empty(shape, dtype=torch.bfloat16 if row_mx else self.input.dtype)
