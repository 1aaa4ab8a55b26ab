"""Checks of a general call's arguments: what each one must be, and the stage of the kernel that it asks for."""

from __future__ import annotations

from typing import Any

import torch

from common.checks import require_cores, require_int
from common.hardware import Hardware
from kernels.qkv_cte.device.config import (
    BANK_COLUMNS,
    H_PACK,
    LAYER,
    MXFP8,
    PLAIN,
    RMS,
    ROW_MX_FORMAT,
    HeadNorm,
    HeadSegment,
    HeadStage,
    InputStage,
    OperandFormat,
    SumSegment,
)
from kernels.qkv_cte.host import arguments
from kernels.qkv_cte.host.arguments import (
    FP8,
    Segments,
    require_channels,
    require_eps,
    require_finite,
    require_tensor,
    shape,
)
from kernels.qkv_cte.host.interface import NormType, QKNormConfig, QuantizationType
from kernels.qkv_cte.host.qkv_arguments import QKVArguments
from kernels.qkv_cte.planning.dims import h_multiple

FLOATS: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16, torch.float32)
BLOCK_ROWS = 32
INPUT_NORMS = (NormType.NO_NORM, NormType.RMS_NORM, NormType.RMS_NORM_SKIP_GAMMA, NormType.LAYER_NORM)
NOT_ACROSS = (
    "qk_norm_pre_rope_q_beta", "qk_norm_pre_rope_k_beta", "qk_norm_post_rope",
    "qk_norm_post_rope_q_gamma", "qk_norm_post_rope_k_gamma", "qk_norm_post_rope_q_beta", "qk_norm_post_rope_k_beta",
    "k_cache", "v_cache", "k_cos_cache", "k_sin_cache",
)  # fmt: skip
"""What cannot go with a norm across heads, which is applied after everything else."""

NAN_SCALE = 0xFF
"""e8m0."""


def require_target(target: Any, lnc: Any, quantised: bool) -> Hardware:
    """The target's facts; MX products need trn3."""
    if quantised:
        return arguments.require_target(target, lnc)
    chip = arguments.hardware.get(target)
    require_cores("lnc", lnc)
    return chip


def require_flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; accepted: True or False")
    return value


def require_enum(name: str, value: Any, accepted: tuple[Any, ...]) -> None:
    """One of some members of an enumeration."""
    if not any(value is member for member in accepted):
        text = ", ".join(str(member) for member in accepted)
        error = ValueError if isinstance(value, type(accepted[0])) else TypeError
        raise error(f"{name} is {value!r}; accepted: {text}")


def require_shaped(
    name: str, value: Any, dtypes: tuple[torch.dtype, ...], expected: tuple[int, ...], device: torch.device
) -> None:
    """A tensor of one of the types and of just this shape."""
    require_tensor(name, value, dtypes, tuple(map(str, expected)), device)
    if tuple(value.shape) != expected:
        raise ValueError(f"{name} is {shape(value)}; accepted: {list(expected)}")


def require_written(
    name: str, value: Any, dtypes: tuple[torch.dtype, ...], expected: tuple[int, ...], device: torch.device
) -> None:
    """The same, contiguous: the kernel writes to it."""
    require_shaped(name, value, dtypes, expected, device)
    if not value.is_contiguous():
        raise ValueError(f"{name} has strides {list(value.stride())}; accepted: a contiguous tensor, it is written to")


def require_absent(given: dict[str, Any], owner: str) -> None:
    """Nothing that would have no effect."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} is given without {owner}; accepted: None, it would have no effect")


def require_input(call: QKVArguments) -> tuple[int, int, int]:
    """B, S and H of [B, S, H]."""
    name = "input"
    require_tensor(name, call.input, FLOATS, ("B", "S", "H"))
    if call.input.device.type == "meta":
        raise ValueError(f"{name} is on device meta and has no values; accepted: the CPU or a Neuron device")
    batch, seqlen, hidden = call.input.shape
    if call.hidden_actual is None:
        return batch, seqlen, hidden
    actual = require_int("hidden_actual", call.hidden_actual, at_least=1)
    if actual > hidden or (actual < hidden and call.quantization_type is QuantizationType.MXFP8):
        most = f"up to {hidden}" if actual > hidden else f"{hidden} or None with MXFP8"
        raise ValueError(f"hidden_actual is {actual} with input {shape(call.input)}; accepted: {most}")
    return batch, seqlen, actual


def require_plain_weight(call: QKVArguments, segments: Segments) -> None:
    """[H, I], H that of the input, and no scales."""
    require_tensor("fused_qkv_weights", call.fused_qkv_weights, FLOATS, ("H", "I"), call.input.device)
    expected = (call.input.shape[2], segments.width)
    if tuple(call.fused_qkv_weights.shape) != expected:
        raise ValueError(
            f"fused_qkv_weights is {shape(call.fused_qkv_weights)}; accepted: {list(expected)}, the H of input and "
            f"(num_q_heads + 2 * num_kv_heads) * d_head"
        )
    require_absent({"qkv_w_scale": call.qkv_w_scale}, "quantization_type")


def require_mx_weight(call: QKVArguments, segments: Segments) -> torch.Tensor:
    """[H / 4, I, 4] finite codes, and their scales [H / 32, I], returned as e8m0."""
    device, hidden = call.input.device, call.input.shape[2]
    require_tensor("fused_qkv_weights", call.fused_qkv_weights, (FP8,), ("H / 4", "I", "4"), device)
    expected = (hidden // H_PACK, segments.width, H_PACK)
    if tuple(call.fused_qkv_weights.shape) != expected or hidden % (H_PACK * BLOCK_ROWS):
        raise ValueError(
            f"fused_qkv_weights is {shape(call.fused_qkv_weights)} with input {shape(call.input)}; accepted: "
            f"{list(expected)}, with H {h_multiple(hidden)}"
        )
    scale_types = (torch.float8_e8m0fnu, torch.uint8)
    require_shaped("qkv_w_scale", call.qkv_w_scale, scale_types, (hidden // BLOCK_ROWS, segments.width), device)
    assert call.qkv_w_scale is not None
    scales = call.qkv_w_scale.view(torch.uint8)
    if device.type == "cpu":
        arguments.require_codes("fused_qkv_weights", call.fused_qkv_weights, ("word", "channel", "lane"))
        bad = arguments.first(scales == NAN_SCALE)
        if bad:
            raise ValueError(f"qkv_w_scale has a NaN at block {bad[0]}, channel {bad[1]}; accepted: finite scales")
    return scales.view(torch.float8_e8m0fnu)


def operand_format(call: QKVArguments) -> OperandFormat:
    """How the kernel stores what it multiplies."""
    if call.quantization_type is QuantizationType.ROW_MX:
        return ROW_MX_FORMAT
    given = call.input.itemsize
    if call.quantization_type is QuantizationType.MXFP8:
        return OperandFormat(
            MXFP8,
            lanes=H_PACK,
            weight_bytes=1,
            input_bytes=given,
            transposed_bytes=2,
            stationary_bytes=1,
            output_bytes=given,
        )
    weight = call.fused_qkv_weights.itemsize
    return OperandFormat(
        PLAIN,
        lanes=1,
        weight_bytes=weight,
        input_bytes=given,
        transposed_bytes=weight,
        stationary_bytes=weight,
        output_bytes=given,
    )


def require_input_stage(call: QKVArguments) -> InputStage:
    """Residuals like the input, and its norm with the vectors that this takes."""
    residuals = {"mlp_prev": call.mlp_prev, "attention_prev": call.attention_prev}
    if not require_flag("fused_residual_add", call.fused_residual_add):
        require_absent(residuals, "fused_residual_add")
    elif call.mlp_prev is None and call.attention_prev is None:
        raise ValueError("mlp_prev and attention_prev are None; accepted with fused_residual_add: one or both")
    for name, residual in residuals.items():
        if residual is not None:
            require_shaped(name, residual, (call.input.dtype,), tuple(call.input.shape), call.input.device)
    require_enum("fused_norm_type", call.fused_norm_type, INPUT_NORMS)
    require_eps("norm_eps", call.norm_eps)
    row = (1, call.input.shape[2])
    vectors = {"gamma_norm_weights": call.gamma_norm_weights, "layer_norm_bias": call.layer_norm_bias}
    gamma, beta = _require_vectors(vectors, call.fused_norm_type, "fused_norm_type", row, call.input.device)
    return InputStage(
        residuals=sum(residual is not None for residual in residuals.values()),
        norm=_kind(call.fused_norm_type),
        eps=float(call.norm_eps),
        gamma_bytes=gamma,
        beta_bytes=beta,
    )


def require_no_input_stage(call: QKVArguments) -> None:
    """Nothing that would have to be done before activations were quantised."""
    require_flag("fused_residual_add", call.fused_residual_add)
    if call.fused_residual_add or call.fused_norm_type is not NormType.NO_NORM or call.hidden_actual is not None:
        raise ValueError(
            "fused_residual_add, fused_norm_type or hidden_actual is set; accepted with ROW_MX: none of them, its "
            "activations are quantised already"
        )
    owner = "fused_residual_add or fused_norm_type"
    names = ("mlp_prev", "attention_prev", "gamma_norm_weights", "layer_norm_bias")
    require_absent({name: getattr(call, name) for name in names}, owner)


def require_rope(call: QKVArguments, segments: Segments) -> None:
    """Caches of Q, and of K where it has its own, with RoPE and only then; all of one type."""
    batch, seqlen, _ = call.input.shape
    caches = {"cos_cache": call.cos_cache, "sin_cache": call.sin_cache}
    own = {"k_cos_cache": call.k_cos_cache, "k_sin_cache": call.k_sin_cache}
    if not require_flag("fused_rope", call.fused_rope):
        require_absent(caches | own, "fused_rope")
        return
    if segments.head_dim % 2:
        raise ValueError(f"d_head is {segments.head_dim}; accepted with fused_rope: an even number")
    if (call.k_cos_cache is None) != (call.k_sin_cache is None):
        raise ValueError("one of k_cos_cache and k_sin_cache is None; accepted: both or none")
    if call.k_cos_cache is not None and segments.num_kv_heads == 0:
        raise ValueError("k_cos_cache is given; accepted with num_kv_heads = 0: None, there is no K segment")
    given = caches if call.k_cos_cache is None else caches | own
    types = FLOATS
    for name, cache in given.items():
        if cache is None:
            raise ValueError(f"{name} is None; accepted with fused_rope: {[batch, seqlen, segments.head_dim]}")
        require_shaped(name, cache, types, (batch, seqlen, segments.head_dim), call.input.device)
        require_finite(name, cache)
        types = (cache.dtype,)


def norms_across_heads(call: QKVArguments) -> bool:
    """Whether Q or K is normalised over all heads, after the types of both configurations are checked."""
    for name in ("qk_norm_pre_rope", "qk_norm_post_rope"):
        config = getattr(call, name)
        if config is not None and not isinstance(config, QKNormConfig):
            raise TypeError(f"{name} is a {type(config).__name__}; accepted: QKNormConfig or None")
        for field in ("q_norm", "k_norm"):
            norm = None if config is None else getattr(config, field)
            if norm is not None and not isinstance(norm, NormType):
                raise TypeError(f"{name}.{field} is {norm!r}; accepted: a NormType or None")
            if norm is NormType.RMS_NORM_ACROSS_HEADS and name == "qk_norm_post_rope":
                raise ValueError(f"{name}.{field} is {norm}; accepted after RoPE: norms of single heads")
    config = call.qk_norm_pre_rope
    if config is None:
        return False
    across, norms = NormType.RMS_NORM_ACROSS_HEADS, (config.q_norm, config.k_norm)
    if across in norms and any(norm not in (None, NormType.NO_NORM, across) for norm in norms):
        raise ValueError(
            f"qk_norm_pre_rope has {config.q_norm} for Q and {config.k_norm} for K; accepted: both across heads or "
            f"both over single heads"
        )
    return across in norms


def require_across(call: QKVArguments, segments: Segments) -> None:
    """Gammas of the whole segments, and nothing that the deferred pass does not do."""
    gammas = {
        "qk_norm_pre_rope_q_gamma": call.qk_norm_pre_rope_q_gamma,
        "qk_norm_pre_rope_k_gamma": call.qk_norm_pre_rope_k_gamma,
    }
    config = call.qk_norm_pre_rope
    assert config is not None
    plain = QKNormConfig(_none(config.q_norm), _none(config.k_norm), config.eps)
    arguments.require_norm(plain, gammas, 1.0, segments, call.input.device)
    for name in NOT_ACROSS:
        if getattr(call, name) is not None:
            raise ValueError(f"{name} is given; accepted with a norm across heads: None, it is applied afterwards")
    for name in ("cos_cache", "sin_cache"):
        cache = getattr(call, name)
        if cache is not None and cache.dtype not in arguments.CHANNEL_DTYPES:
            accepted = " or ".join(map(str, arguments.CHANNEL_DTYPES))
            raise TypeError(f"{name} is {cache.dtype}; accepted with a norm across heads: {accepted}")


def require_head_stage(call: QKVArguments, segments: Segments) -> HeadStage | None:
    """Norms of single heads and RoPE; None where neither is asked for."""
    q_width, kv_width = segments.num_heads * segments.head_dim, segments.num_kv_heads * segments.head_dim
    found = []
    for name, first, width in (("q", 0, q_width), ("k", q_width, kv_width)):
        before = _require_head_norm(call, name, "pre", segments)
        after = _require_head_norm(call, name, "post", segments)
        if width and (call.fused_rope or before or after):
            found.append(HeadSegment(name, first, width, before, after))
    if not found:
        return None
    if segments.head_dim > BANK_COLUMNS:
        raise ValueError(
            f"d_head is {segments.head_dim}; accepted with RoPE or norms of single heads: up to {BANK_COLUMNS}, the "
            f"columns of a PSUM bank"
        )
    rope_bytes = 0 if call.cos_cache is None else call.cos_cache.itemsize
    return HeadStage(segments.head_dim, tuple(found), rope_bytes, call.k_cos_cache is not None)


def _require_head_norm(call: QKVArguments, name: str, place: str, segments: Segments) -> HeadNorm | None:
    owner = f"qk_norm_{place}_rope"
    config = getattr(call, owner) or QKNormConfig()
    require_eps(f"{owner}.eps", config.eps)
    norm = getattr(config, f"{name}_norm") or NormType.NO_NORM
    if norm is not NormType.NO_NORM and name == "k" and segments.num_kv_heads == 0:
        raise ValueError(f"{owner}.k_norm is set; accepted with num_kv_heads = 0: None, there is no K segment")
    vectors = {f"{owner}_{name}_{vector}": getattr(call, f"{owner}_{name}_{vector}") for vector in ("gamma", "beta")}
    row = (1, segments.head_dim)
    gamma, beta = _require_vectors(vectors, norm, f"{owner}.{name}_norm", row, call.input.device)
    kind = _kind(norm)
    return HeadNorm(kind, float(config.eps), gamma, beta) if kind else None


def _require_vectors(
    vectors: dict[str, Any], norm: NormType, owner: str, row: tuple[int, int], device: torch.device
) -> tuple[int, int]:
    """Element bytes of gamma and beta, 0 where there is none: gamma where the norm has one, beta with LAYER_NORM."""
    (gamma_name, gamma), (beta_name, beta) = vectors.items()
    if norm not in (NormType.RMS_NORM, NormType.LAYER_NORM):
        require_absent({gamma_name: gamma}, f"{owner} RMS_NORM or LAYER_NORM")
    elif gamma is None:
        raise ValueError(f"{gamma_name} is None; accepted with {owner} {norm}: {list(row)}")
    if norm is not NormType.LAYER_NORM:
        require_absent({beta_name: beta}, f"{owner} LAYER_NORM")
    for name, vector in vectors.items():
        if vector is not None:
            require_shaped(name, vector, FLOATS, row, device)
            require_finite(name, vector)
    return 0 if gamma is None else gamma.itemsize, 0 if beta is None else beta.itemsize


def _kind(norm: NormType) -> str:
    """The kernel's name of a norm."""
    if norm is NormType.LAYER_NORM:
        return LAYER
    return "" if norm is NormType.NO_NORM else RMS


def _none(norm: NormType | None) -> NormType | None:
    return None if norm is NormType.NO_NORM else norm


def require_sums(call: QKVArguments, segments: Segments, bank_columns: int) -> tuple[SumSegment, ...]:
    """[B, S] float32 for each segment whose sum of squares is wanted."""
    q, kv = segments.num_heads * segments.head_dim, segments.num_kv_heads * segments.head_dim
    expected = tuple(call.input.shape[:2])
    found = []
    for name, first, width in (("q", 0, q), ("k", q, kv), ("v", q + kv, kv)):
        target = getattr(call, f"{name}_squared_sum_out")
        if target is not None:
            if not width:
                raise ValueError(f"{name}_squared_sum_out is given; accepted with num_kv_heads = 0: None")
            require_written(f"{name}_squared_sum_out", target, (torch.float32,), expected, call.input.device)
            banks = (first + width - 1) // bank_columns - first // bank_columns + 1
            found.append(SumSegment(name, first, width, banks))
    return tuple(found)


def require_bias(call: QKVArguments, width: int) -> torch.Tensor | None:
    """[1, I], finite; or None."""
    if call.bias is None:
        return None
    row = require_channels("bias", call.bias, FLOATS, width, call.input.device)
    require_finite("bias", row)
    return row


def require_apart(call: QKVArguments) -> None:
    """What is written shares no memory with another argument; views of one tensor may lie side by side."""
    written = ("k_cache", "v_cache", "q_squared_sum_out", "k_squared_sum_out", "v_squared_sum_out")
    spans = {
        name: _span(value)
        for name, value in vars(call).items()
        if isinstance(value, torch.Tensor) and value.device.type == "cpu"
    }
    for name in written:
        for other, (first, last) in spans.items():
            if name in spans and name != other and spans[name][0] < last and first < spans[name][1]:
                raise ValueError(f"{name} shares memory with {other}; accepted: memory of its own, it is written to")


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Addresses of the first byte of a tensor and of the one behind its last."""
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (steps + 1) * tensor.itemsize
