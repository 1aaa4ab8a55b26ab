"""Checks of a call's arguments, before anything runs; messages name the argument, what it is and what is accepted.

Values (NaN codes, scales, bias) are checked where they lie on the host. On a device a check would be a launch of its
own, waited for in every layer: weights are checked there when they are loaded.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch

from common import hardware, schedule
from common.budget import BudgetError
from common.checks import require_cores, require_int
from common.hardware import Hardware
from common.row_mx import H_PACK, ROW_TAIL_BYTES, require_scales
from kernels.qkv_cte.device.config import NO_STAGES, S_TILE, SEED_FLOW, Flow, NormRopePass, Stages
from kernels.qkv_cte.host.interface import NormType, QKNormConfig, QKVOutputLayout
from kernels.qkv_cte.planning import plan
from kernels.qkv_cte.planning.choice import Choice
from kernels.qkv_cte.planning.dims import H_MULTIPLE, Dims, h_multiple
from kernels.qkv_cte.planning.plan import Plan

FP8 = torch.float8_e4m3fn
CHANNEL_DTYPES = (torch.float32, torch.bfloat16)
NBSD_HEAD_DIM = 128
NAN_CODE = 0x7F
"""Of float8_e4m3fn, without the sign."""

SMALLEST, LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Segments:
    """Heads of a fused output `[Q | K | V]`, or of a single segment where there are no K/V heads."""

    num_heads: int
    head_dim: int
    num_kv_heads: int

    @property
    def width(self) -> int:
        """I, the output columns."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


def require_target(target: Any, lnc: Any) -> Hardware:
    """The target's facts.

    Raises:
        ValueError, TypeError: no such target, one without MX products, or an impossible number of cores.
    """
    chip = hardware.get(target)
    if not chip.supports_mx:
        raise ValueError(f"target is {target!r}; accepted: 'trn3' (trn2 has no MX matmuls)")
    require_cores("lnc", lnc)
    return chip


def require_segments(num_heads: Any, head_dim: Any, num_kv_heads: Any) -> Segments:
    """The head counts."""
    return Segments(
        require_int("num_heads", num_heads, at_least=1),
        require_int("head_dim", head_dim, at_least=1),
        require_int("num_kv_heads", num_kv_heads, at_least=0),
    )


def require_hidden(packed_hidden: Any) -> None:
    """[B, S, H + 4] float8_e4m3fn with finite codes and, at the end of each row, a finite positive fp32 scale."""
    require_tensor("packed_hidden", packed_hidden, (FP8,), ("B", "S", "H + 4"))
    if packed_hidden.device.type == "meta":
        raise ValueError("packed_hidden is on device meta and has no values; accepted: the CPU or a Neuron device")
    hidden = packed_hidden.shape[-1] - ROW_TAIL_BYTES
    if hidden < 1 or hidden % H_MULTIPLE:
        raise ValueError(
            f"packed_hidden is {shape(packed_hidden)}; accepted: [B, S, H + 4], H codes and the 4 bytes of a row "
            f"scale, H {h_multiple(hidden)}"
        )
    if packed_hidden.device.type != "cpu":
        return
    require_codes("packed_hidden", packed_hidden[..., :hidden], ("batch", "token", "column"))
    tail = packed_hidden[..., hidden:].contiguous().view(torch.float32)
    require_scales("row scales of packed_hidden [batch, token]", tail[..., 0])


def require_dims(packed_hidden: torch.Tensor, segments: Segments, lnc: int) -> Dims:
    """The sizes of a call without bias.

    Raises:
        ValueError: H or S does not suit the kernel.
    """
    batch, seqlen, row = packed_hidden.shape
    try:
        return Dims(batch, seqlen, row - ROW_TAIL_BYTES, segments.width, lnc, bias_bytes=0)
    except ValueError as error:
        raise ValueError(f"packed_hidden is {shape(packed_hidden)}, [B, S, H + 4]: {error}") from None


def require_weight(weight: Any, hidden: int, segments: Segments, device: torch.device) -> None:
    """[H / 4, I, 4] float8_e4m3fn with finite codes."""
    require_tensor("weight", weight, (FP8,), ("H / 4", "I", "4"), device)
    if (weight.shape[0] * H_PACK, weight.shape[2]) != (hidden, H_PACK):
        raise ValueError(
            f"weight is {shape(weight)}; accepted: [{hidden // H_PACK}, I, {H_PACK}] with packed_hidden of H = {hidden}"
        )
    if weight.shape[1] != segments.width:
        raise ValueError(
            f"num_heads {segments.num_heads}, num_kv_heads {segments.num_kv_heads} and head_dim {segments.head_dim} "
            f"give I = (num_heads + 2 * num_kv_heads) * head_dim = {segments.width}; "
            f"accepted: the I of weight {shape(weight)}, which is {weight.shape[1]}"
        )
    if device.type == "cpu":
        require_codes("weight", weight, ("word", "channel", "lane"))


def require_weight_scales(weight_scales: Any, width: int, device: torch.device) -> torch.Tensor:
    """[1, I] fp32, finite and positive, from that or from the same row 128 times."""
    row = require_channels("weight_scales", weight_scales, (torch.float32,), width, device)
    if device.type == "cpu":
        require_scales("weight_scales [1, channel]", row)
    return row


def require_bias(bias: Any, width: int, device: torch.device) -> torch.Tensor | None:
    """[1, I], finite, from that or from the same row 128 times; or None."""
    if bias is None:
        return None
    row = require_channels("bias", bias, CHANNEL_DTYPES, width, device)
    require_finite("bias", row)
    return row


def require_channels(
    name: str, value: Any, dtypes: tuple[torch.dtype, ...], width: int, device: torch.device
) -> torch.Tensor:
    """[1, I]; of a tensor broadcast over 128 partitions already, the row that all of them repeat."""
    require_tensor(name, value, dtypes, ("1", "I"), device)
    if value.shape[0] not in (1, S_TILE) or value.shape[1] != width:
        raise ValueError(f"{name} is {shape(value)}; accepted: [1, {width}], or the same row {S_TILE} times")
    if value.shape[0] > 1 and device.type == "cpu":
        other = first((value != value[0:1]) & ~(value.isnan() & value[0:1].isnan()))
        if other:
            row, channel = other
            raise ValueError(
                f"{name} has {value[row, channel].item()} in row {row} and {value[0, channel].item()} in row 0 at "
                f"channel {channel}; accepted: {S_TILE} equal rows, or [1, {width}]"
            )
    return value[0:1]


def require_rope(fused_rope: Any, caches: dict[str, Any], expected: tuple[int, int, int], device: torch.device) -> None:
    """Both caches [B, S, head_dim] with RoPE, none without."""
    if not isinstance(fused_rope, bool):
        raise TypeError(f"fused_rope is {fused_rope!r}; accepted: True or False")
    if fused_rope and expected[-1] % 2:
        raise ValueError(f"head_dim is {expected[-1]}; accepted with fused_rope: an even number")
    for name, cache in caches.items():
        require_companion(name, cache, "fused_rope", fused_rope, expected, device)
    cos, sin = caches.values()
    if fused_rope and sin.dtype != cos.dtype:
        raise TypeError(f"sin_cache is {sin.dtype}; accepted: {cos.dtype}, as cos_cache is")


def require_norm(config: Any, gammas: dict[str, Any], norm_eps: Any, segments: Segments, device: torch.device) -> None:
    """A QKNormConfig or None, and a segment-wide gamma for each segment that it normalises."""
    if config is not None and not isinstance(config, QKNormConfig):
        raise TypeError(f"qk_norm_pre_rope is a {type(config).__name__}; accepted: QKNormConfig or None")
    asked = config or QKNormConfig()
    require_eps("norm_eps", norm_eps)
    require_eps("qk_norm_pre_rope.eps", asked.eps)
    norms: dict[str, Any] = {"q_norm": asked.q_norm, "k_norm": asked.k_norm}
    for field, norm in norms.items():
        if norm is not None and not isinstance(norm, NormType):
            raise TypeError(f"qk_norm_pre_rope.{field} is {norm!r}; accepted: a NormType or None")
        if norm not in (None, NormType.RMS_NORM_ACROSS_HEADS):
            accepted = "NormType.RMS_NORM_ACROSS_HEADS or None; `qkv` has norms of single heads"
            raise ValueError(f"qk_norm_pre_rope.{field} is {norm}; accepted: {accepted}")
    if norms["k_norm"] is not None and segments.num_kv_heads == 0:
        raise ValueError("qk_norm_pre_rope.k_norm is set; accepted with num_kv_heads = 0: None, there is no K segment")
    heads = (segments.num_heads, segments.num_kv_heads)
    for (name, gamma), (field, norm), count in zip(gammas.items(), norms.items(), heads, strict=True):
        expected = (1, count * segments.head_dim)
        require_companion(name, gamma, f"qk_norm_pre_rope.{field}", norm is not None, expected, device)


def require_companion(
    name: str, value: Any, owner: str, needed: bool, expected: tuple[int, ...], device: torch.device
) -> None:
    """A finite tensor of the expected shape if its owner is set, otherwise None: given alone it would do nothing."""
    if not needed:
        if value is not None:
            raise ValueError(f"{name} is given without {owner}; accepted: None, it would have no effect")
        return
    if value is None:
        raise ValueError(f"{name} is None; accepted with {owner}: {list(expected)}")
    require_tensor(name, value, CHANNEL_DTYPES, tuple(map(str, expected)), device)
    if tuple(value.shape) != expected:
        raise ValueError(f"{name} is {shape(value)}; accepted: {list(expected)}")
    require_finite(name, value)


def require_eps(name: str, value: Any) -> None:
    """A finite number above 0 that fp32 holds: as 0 there, it would make NaN of rows of zeros."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}; accepted: a number above 0")
    try:
        number = float(value)
    except OverflowError:
        # Its digits may be too many to print.
        bits = int(value).bit_length()
        raise ValueError(f"{name} is an integer of {bits} bits; accepted: a finite number above 0") from None
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} is {value!r}; accepted: a finite number above 0")
    if not SMALLEST <= number <= LARGEST:
        raise ValueError(f"{name} is {value!r}; accepted: {SMALLEST:.3g} to {LARGEST:.3g}, the normal fp32 numbers")


def require_replica_groups(groups: Any) -> None:
    """A tuple of equally long tuples of ranks, each rank once; or None."""
    if groups is None:
        return
    accepted = "accepted: None or equally long tuples in a tuple, each rank once, such as ((0, 1), (2, 3))"
    if not isinstance(groups, tuple) or not all(isinstance(group, tuple) for group in groups):
        raise TypeError(f"replica_groups is {groups!r}; {accepted} (lists cannot be parameters of a compiled kernel)")
    ranks = [require_int("a rank in replica_groups", rank, at_least=0) for group in groups for rank in group]
    if not ranks or len(set(ranks)) < len(ranks) or len({len(group) for group in groups}) > 1:
        raise ValueError(f"replica_groups is {groups!r}; {accepted}")


def require_layout(output_layout: Any, head_dim: int) -> None:
    """A QKVOutputLayout, NBSd with heads of 128 columns: shorter runs in HBM would make its DMAs too fine."""
    if not isinstance(output_layout, QKVOutputLayout):
        accepted = ", ".join(str(layout) for layout in QKVOutputLayout)
        raise TypeError(f"output_layout is {output_layout!r}; accepted: {accepted}")
    if output_layout is QKVOutputLayout.NBSd and head_dim != NBSD_HEAD_DIM:
        raise ValueError(f"head_dim is {head_dim}; accepted with QKVOutputLayout.NBSd: {NBSD_HEAD_DIM}")


def make_plan(
    dims: Dims,
    chip: Hardware,
    norm_rope: NormRopePass | None,
    nbsd_head_dim: int,
    choice: Any,
    flow: Flow = SEED_FLOW,
    stages: Stages = NO_STAGES,
) -> Plan:
    """The plan of a call; by the seed's rule, with the flow that is given, where `choice` is None.

    Raises:
        TypeError, ValueError: rows are too wide for SBUF, in the projection or in the norm and RoPE pass; or the
            choice is none for these sizes.
    """
    rule: plan.Policy = schedule.choose
    if choice is not None:
        if not isinstance(choice, Choice):
            raise TypeError(f"choice is a {type(choice).__name__}; accepted: a Choice, such as Plan.choice, or None")
        if not isinstance(choice.flow, Flow):
            raise TypeError(f"choice.flow is a {type(choice.flow).__name__}; accepted: a Flow")
        choice = Choice.from_integers(choice.integers())
        rule = functools.partial(schedule.force, degree=choice.degree, resident_h_tiles=choice.resident_h_tiles)
        flow = choice.flow
    try:
        return plan.make(dims, chip, rule, norm_rope, nbsd_head_dim, flow, stages)
    except BudgetError as error:
        raise ValueError(f"packed_hidden of H = {dims.hidden} and weight of I = {dims.width}: {error}") from None
    except ValueError as error:
        raise ValueError(f"choice does not suit these sizes: {error}" if choice else str(error)) from None


def require_tensor(
    name: str, value: Any, dtypes: tuple[torch.dtype, ...], form: tuple[str, ...], device: torch.device | None = None
) -> None:
    """A tensor with elements, of one of the dtypes, with as many dimensions as `form` names, on the device given."""
    layout = f"[{', '.join(form)}]"
    accepted = f"{layout} {' or '.join(str(dtype) for dtype in dtypes)}"
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; accepted: a torch tensor {accepted}")
    if value.is_nested or value.layout != torch.strided:
        layout_given = "nested" if value.is_nested else str(value.layout)
        raise TypeError(f"{name} is {layout_given}; accepted: a strided tensor {accepted}")
    if value.dtype not in dtypes:
        raise TypeError(f"{name} is {value.dtype}; accepted: {accepted}")
    if value.is_neg():
        raise ValueError(f"{name} is a negated view; accepted: its resolve_neg()")
    if value.dim() != len(form):
        raise ValueError(f"{name} is {shape(value)}; accepted: {layout}")
    if value.numel() == 0:
        raise ValueError(f"{name} is {shape(value)}, which is empty; accepted: {layout}, none of them 0")
    if device is not None and value.device != device:
        raise ValueError(f"{name} is on {value.device}; accepted: {device}, where the activations are")


def require_codes(name: str, codes: torch.Tensor, axes: tuple[str, ...]) -> None:
    """No NaN among fp8 codes: quantisation makes none, so one means another format or layout."""
    bad = first((codes.view(torch.uint8) & NAN_CODE) == NAN_CODE)
    if bad:
        place = ", ".join(f"{axis} {index}" for axis, index in zip(axes, bad, strict=True))
        raise ValueError(f"{name} has a NaN code at {place}; accepted: finite float8_e4m3fn codes")


def require_finite(name: str, value: torch.Tensor) -> None:
    """No NaN or infinity, where the values lie on the host."""
    bad = first(~torch.isfinite(value)) if value.device.type == "cpu" else None
    if bad:
        raise ValueError(f"{name} has {value[bad].item()} at {list(bad)}; accepted: finite values")


def dense(tensors: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
    """The tensors as the kernel takes them, contiguous; None as it is."""
    return {name: None if tensor is None else tensor.contiguous() for name, tensor in tensors.items()}


def first(mask: torch.Tensor) -> tuple[int, ...] | None:
    """Index of the first True, None if there is none."""
    if not mask.any():
        return None
    return tuple(mask.nonzero()[0].tolist())


def shape(tensor: torch.Tensor) -> str:
    """The tensor's shape as a list."""
    return str(list(tensor.shape))
