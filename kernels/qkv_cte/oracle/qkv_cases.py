"""General calls for the tests: a record of sizes and choices for each, and seeded tensors for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from common import row_mx
from kernels.qkv_cte.host.interface import NormType, QKNormConfig, QKVOutputLayout, QuantizationType
from kernels.qkv_cte.host.qkv_arguments import QKVArguments

BLOCK = 32


@dataclass(frozen=True)
class QKVCase:
    """One call.

    Attributes:
        name: unique.
        seqlen, hidden, num_q_heads, num_kv_heads, d_head, batch, lnc, target: sizes and cores.
        quantization: of the operands.
        input_dtype, weight_dtype, vector_dtype: of activations, weights, and gammas, betas, bias and RoPE caches.
        bias: whether there is one.
        residuals: 0 to 2.
        norm: of the activations.
        padding: columns behind those that count.
        rope, own_k_caches: RoPE.
        pre, post: norms of Q and K.
        nbsd: layout.
        cache: "" for none, "flat" or "blocks".
        cache_dtype: of the caches; None for the output's.
        sums: segments whose squares are summed.
    """

    name: str
    seqlen: int
    hidden: int
    num_q_heads: int
    num_kv_heads: int = 1
    d_head: int = 64
    batch: int = 1
    lnc: int = 1
    target: str = "trn3"
    quantization: QuantizationType = QuantizationType.NONE
    input_dtype: torch.dtype = torch.bfloat16
    weight_dtype: torch.dtype = torch.bfloat16
    vector_dtype: torch.dtype = torch.float32
    bias: bool = False
    residuals: int = 0
    norm: NormType = NormType.NO_NORM
    padding: int = 0
    rope: bool = False
    own_k_caches: bool = False
    pre: QKNormConfig | None = None
    post: QKNormConfig | None = None
    nbsd: bool = False
    cache: str = ""
    cache_dtype: torch.dtype | None = None
    sums: tuple[str, ...] = field(default=())

    @property
    def width(self) -> int:
        """I, the output columns."""
        return (self.num_q_heads + 2 * self.num_kv_heads) * self.d_head

    @property
    def output_dtype(self) -> torch.dtype:
        """Type of the result."""
        return torch.bfloat16 if self.quantization is QuantizationType.ROW_MX else self.input_dtype


def random_call(case: QKVCase, seed: int = 0) -> QKVArguments:
    """Arguments of order 1: gammas between 0.5 and 1.5, random angles, both halves of a RoPE cache different."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    rows = (case.batch, case.seqlen, case.hidden + case.padding)
    operands = _operands(case, rows, normal)
    options: dict[str, Any] = {
        "num_q_heads": case.num_q_heads,
        "num_kv_heads": case.num_kv_heads,
        "d_head": case.d_head,
        "quantization_type": case.quantization,
        "output_layout": QKVOutputLayout.NBSd if case.nbsd else QKVOutputLayout.BSD,
        "fused_norm_type": case.norm,
        "qk_norm_pre_rope": case.pre,
        "qk_norm_post_rope": case.post,
    }
    if case.bias:
        options["bias"] = normal(1, case.width).to(case.vector_dtype)
    options |= _input_options(case, rows, normal) | _rope_options(case, generator) | _head_options(case, generator)
    options |= _cache_options(case, generator)
    for name in case.sums:
        options[f"{name}_squared_sum_out"] = torch.full((case.batch, case.seqlen), -1.0)
    return QKVArguments(**operands, **options)


def _operands(case: QKVCase, rows: tuple[int, int, int], normal: Any) -> dict[str, Any]:
    x = normal(*rows)
    w = normal(rows[2], case.width) / case.hidden**0.5
    if case.quantization is QuantizationType.NONE:
        return {"input": x.to(case.input_dtype), "fused_qkv_weights": w.to(case.weight_dtype)}
    if case.quantization is QuantizationType.ROW_MX:
        codes, scales = row_mx.quantise_columns(w)
        packed = row_mx.row_quantise_packed(x)
        return {"input": packed, "fused_qkv_weights": row_mx.pack_weight(codes), "qkv_w_scale": scales}
    codes, exponents = mx_quantise_columns(w)
    return {
        "input": x.to(case.input_dtype),
        "fused_qkv_weights": row_mx.pack_weight(codes),
        "qkv_w_scale": exponents.view(torch.float8_e8m0fnu),
    }


def mx_quantise_columns(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """fp8 codes [H, I] and e8m0 bytes [H / 32, I], no two neighbouring blocks of the same scale where data allows."""
    blocks = w.unflatten(0, (-1, BLOCK))
    shift = (torch.arange(blocks.shape[0])[:, None] + 7 * torch.arange(w.shape[1])) % 5
    exponent = torch.frexp(blocks.abs().amax(1)).exponent - 9 + shift
    codes = row_mx.to_float8(blocks * torch.exp2(-exponent.float())[:, None])
    return codes.flatten(0, 1), (exponent + 127).to(torch.uint8)


def _input_options(case: QKVCase, rows: tuple[int, int, int], normal: Any) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if case.residuals:
        options["fused_residual_add"] = True
        for name in ("mlp_prev", "attention_prev")[: case.residuals]:
            options[name] = normal(*rows).to(case.input_dtype)
    if case.norm in (NormType.RMS_NORM, NormType.LAYER_NORM):
        options["gamma_norm_weights"] = (1 + 0.2 * normal(1, rows[2])).to(case.vector_dtype)
    if case.norm is NormType.LAYER_NORM:
        options["layer_norm_bias"] = normal(1, rows[2]).to(case.vector_dtype)
    if case.padding:
        options["hidden_actual"] = case.hidden
    return options


def _rope_options(case: QKVCase, generator: torch.Generator) -> dict[str, Any]:
    options: dict[str, Any] = {"fused_rope": case.rope}
    prefixes = ("", "k_")[: 1 + case.own_k_caches] if case.rope else ()
    for prefix in prefixes:
        angles = 6.3 * torch.rand(case.batch, case.seqlen, case.d_head, generator=generator)
        options[f"{prefix}cos_cache"] = angles.cos().to(case.vector_dtype)
        options[f"{prefix}sin_cache"] = angles.sin().to(case.vector_dtype)
    return options


def _head_options(case: QKVCase, generator: torch.Generator) -> dict[str, Any]:
    options = {}
    for place, config in (("pre", case.pre), ("post", case.post)):
        for name, heads in (("q", case.num_q_heads), ("k", case.num_kv_heads)):
            norm = None if config is None else getattr(config, f"{name}_norm")
            prefix = f"qk_norm_{place}_rope_{name}"
            width = heads * case.d_head if norm is NormType.RMS_NORM_ACROSS_HEADS else case.d_head
            if norm in (NormType.RMS_NORM, NormType.LAYER_NORM, NormType.RMS_NORM_ACROSS_HEADS):
                gamma = 0.5 + torch.rand(1, width, generator=generator)
                options[f"{prefix}_gamma"] = gamma.to(case.vector_dtype)
            if norm is NormType.LAYER_NORM:
                options[f"{prefix}_beta"] = torch.randn(1, width, generator=generator).to(case.vector_dtype)
    return options


def _cache_options(case: QKVCase, generator: torch.Generator) -> dict[str, Any]:
    if not case.cache:
        return {}
    width = case.num_kv_heads * case.d_head
    tokens = case.batch * case.seqlen
    dtype = case.cache_dtype or case.output_dtype
    options: dict[str, Any] = {}
    shape = (case.batch, case.seqlen + 3, width)
    if case.cache == "blocks":
        block_size = 16
        blocks = tokens // block_size + 3
        shape = (blocks, block_size, width)
        slots = torch.randperm(blocks * block_size, generator=generator)[:tokens].to(torch.int32)
        slots[::7] = -1 - slots[::7]
        options = {
            "use_block_kv": True,
            "block_size": block_size,
            "slot_mapping": slots.reshape(case.batch, case.seqlen),
        }
    for name in ("k", "v"):
        options[f"{name}_cache"] = torch.randn(shape, generator=generator).to(dtype)
    if dtype.itemsize == 1:
        options |= {"k_scale": 0.013, "v_scale": torch.tensor([0.02])}
    return options
