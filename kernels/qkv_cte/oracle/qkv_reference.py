"""What a general call should give, in fp64 from the same tensors. Shares no code with kernel, plan or packing.

Two roundings are part of the definition, because what follows multiplies them: activations that were added to or
normalised are rounded once to the type in which they are multiplied, and MXFP8 activations to fp8.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.qkv_cte.host.interface import NormType, QKNormConfig, QuantizationType
from kernels.qkv_cte.host.qkv_arguments import QKVArguments
from kernels.qkv_cte.oracle import reference

BLOCK = 32
E4M3_MAX = 448.0
E4M3_EXPONENT = 8
E8M0_BIAS = 127


@dataclass(frozen=True)
class Expected:
    """The exact results.

    Attributes:
        output: [B, S, I] float64, whatever the layout.
        projected: [B, S, columns] float64 by segment, before norm and RoPE.
    """

    output: torch.Tensor
    projected: dict[str, torch.Tensor]

    @property
    def sums(self) -> dict[str, torch.Tensor]:
        """[B, S] float64 by segment, of the projection's squares."""
        return {name: part.square().sum(-1) for name, part in self.projected.items()}


def qkv(call: QKVArguments) -> Expected:
    """The output of a call and the segments that it is made of."""
    if call.quantization_type is QuantizationType.ROW_MX:
        assert call.qkv_w_scale is not None
        projected = reference.row_mx_qkv_proj(call.input, call.fused_qkv_weights, call.qkv_w_scale[0:1])
    else:
        x, w = activations(call), weights(call)
        projected = x @ w
    if call.bias is not None:
        projected = projected + call.bias[0:1].double()
    q_width, kv_width = call.num_q_heads * call.d_head, call.num_kv_heads * call.d_head
    q, k, v = projected.split([q_width, kv_width, kv_width], dim=-1)
    output = torch.cat([_finish(call, "q", q), _finish(call, "k", k), v], dim=-1)
    return Expected(output, {"q": q, "k": k, "v": v})


def activations(call: QKVArguments) -> torch.Tensor:
    """[B, S, H] float64 as they are multiplied."""
    count = call.input.shape[2] if call.hidden_actual is None else call.hidden_actual
    x = call.input[..., :count].double()
    for residual in (call.mlp_prev, call.attention_prev):
        if residual is not None:
            x = x + residual[..., :count].double()
    gamma, beta = (None if v is None else v[:, :count] for v in (call.gamma_norm_weights, call.layer_norm_bias))
    x = norm(x, call.fused_norm_type, gamma, beta, call.norm_eps)
    if call.quantization_type is QuantizationType.MXFP8:
        half = torch.float16 if call.input.dtype == torch.float16 else torch.bfloat16
        return block_quantised(x.to(half).double())
    return x.to(call.fused_qkv_weights.dtype).double()


def weights(call: QKVArguments) -> torch.Tensor:
    """[H, I] float64 as they are multiplied."""
    if call.quantization_type is not QuantizationType.MXFP8:
        count = call.fused_qkv_weights.shape[0] if call.hidden_actual is None else call.hidden_actual
        return call.fused_qkv_weights[:count].double()
    assert call.qkv_w_scale is not None
    codes = call.fused_qkv_weights.double().movedim(2, 1).flatten(0, 1)
    exponents = call.qkv_w_scale.view(torch.uint8).double() - E8M0_BIAS
    return codes * torch.exp2(exponents).repeat_interleave(BLOCK, dim=0)


def block_quantised(x: torch.Tensor) -> torch.Tensor:
    """[..., H] rounded to MXFP8 e4m3 in blocks of 32: OCP, with the scale rounded down and codes saturating."""
    blocks = x.unflatten(-1, (-1, BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True)
    exponent = torch.frexp(largest).exponent - 1 - E4M3_EXPONENT
    scale = torch.exp2(torch.where(largest == 0, -E8M0_BIAS, exponent.clamp(min=-E8M0_BIAS)).double())
    codes = (blocks / scale).clamp(-E4M3_MAX, E4M3_MAX).float().to(torch.float8_e4m3fn)
    return (codes.double() * scale).flatten(-2)


def norm(
    x: torch.Tensor, kind: NormType | None, gamma: torch.Tensor | None, beta: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """The norm of the last axis, float64."""
    if kind in (None, NormType.NO_NORM):
        return x
    if kind is NormType.LAYER_NORM:
        x = x - x.mean(-1, keepdim=True)
    x = x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)
    x = x if gamma is None else x * gamma.double()
    return x if beta is None else x + beta.double()


def _finish(call: QKVArguments, name: str, part: torch.Tensor) -> torch.Tensor:
    """Norm, RoPE and norm of Q or K."""
    if part.shape[-1] == 0:
        return part
    part = _head_norm(call, name, "pre", part)
    own = name == "k" and call.k_cos_cache is not None
    cos, sin = (call.k_cos_cache, call.k_sin_cache) if own else (call.cos_cache, call.sin_cache)
    if cos is not None and sin is not None:
        part = reference.rope(part, cos, sin)
    return _head_norm(call, name, "post", part)


def _head_norm(call: QKVArguments, name: str, place: str, part: torch.Tensor) -> torch.Tensor:
    config: QKNormConfig = getattr(call, f"qk_norm_{place}_rope") or QKNormConfig()
    kind = getattr(config, f"{name}_norm")
    gamma, beta = (getattr(call, f"qk_norm_{place}_rope_{name}_{vector}") for vector in ("gamma", "beta"))
    if kind is NormType.RMS_NORM_ACROSS_HEADS:
        return reference.rms_norm(part, gamma, config.eps)
    heads = part.unflatten(-1, (-1, call.d_head))
    return norm(heads, kind, gamma, beta, config.eps).flatten(-2)
