"""Checks of a general call's KV caches, and the stage of the kernel that they ask for."""

from __future__ import annotations

from typing import Any

import torch

from common.checks import require_int
from common.hardware import Hardware
from kernels.qkv_cte.device.config import CacheStage
from kernels.qkv_cte.host import arguments
from kernels.qkv_cte.host.arguments import Segments, require_eps, require_tensor, shape
from kernels.qkv_cte.host.interface import QuantizationType
from kernels.qkv_cte.host.qkv_arguments import QKVArguments
from kernels.qkv_cte.host.qkv_checks import require_absent, require_flag, require_shaped, require_written

CACHE_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def require_cache_stage(call: QKVArguments, segments: Segments, chip: Hardware) -> CacheStage | None:
    """Caches for both of K and V, their scales if they are fp8, and a slot for each token if they are in blocks."""
    blocks = require_flag("use_block_kv", call.use_block_kv)
    if call.k_cache is None and call.v_cache is None:
        names = ("k_scale", "v_scale", "fp8_max", "fp8_min", "slot_mapping", "block_size")
        require_absent({name: getattr(call, name) for name in names}, "k_cache and v_cache")
        if blocks:
            raise ValueError("use_block_kv is True without k_cache and v_cache; accepted: False")
        return None
    if segments.num_kv_heads == 0:
        raise ValueError("k_cache or v_cache is given; accepted with num_kv_heads = 0: None, there is no K segment")
    width = segments.num_kv_heads * segments.head_dim
    _require_caches(call, width, blocks, chip)
    assert call.k_cache is not None
    if blocks:
        _require_slots(call, call.k_cache.shape[0], call.k_cache.shape[1])
    else:
        require_absent({"slot_mapping": call.slot_mapping, "block_size": call.block_size}, "use_block_kv")
    scaled = call.k_cache.dtype in CACHE_FP8
    lowest, highest = _require_scales(call, scaled)
    first = segments.num_heads * segments.head_dim
    return CacheStage(first, width, call.k_cache.itemsize, blocks, scaled, lowest, highest)


def _require_caches(call: QKVArguments, width: int, blocks: bool, chip: Hardware) -> None:
    output = torch.bfloat16 if call.quantization_type is QuantizationType.ROW_MX else call.input.dtype
    fp8 = CACHE_FP8 if chip.supports_mx else (torch.float8_e5m2,)
    batch, seqlen, _ = call.input.shape
    form = ("num_blocks", "block_size", str(width)) if blocks else (str(batch), f"{seqlen} or more", str(width))
    require_tensor("k_cache", call.k_cache, (output, *fp8), form, call.input.device)
    assert call.k_cache is not None
    rows, length, columns = call.k_cache.shape
    if columns != width or not (blocks or (rows == batch and length >= seqlen)):
        raise ValueError(f"k_cache is {shape(call.k_cache)}; accepted: [{', '.join(form)}]")
    same = (call.k_cache.dtype,)
    for name, cache in (("k_cache", call.k_cache), ("v_cache", call.v_cache)):
        require_written(name, cache, same, tuple(call.k_cache.shape), call.input.device)


def _require_scales(call: QKVArguments, scaled: bool) -> tuple[float, float]:
    """Where quotients are clamped; 0 and 0 without scales."""
    if not scaled:
        names = ("k_scale", "v_scale", "fp8_max", "fp8_min")
        require_absent({name: getattr(call, name) for name in names}, "caches of an fp8 type")
        return 0.0, 0.0
    assert call.k_cache is not None
    largest = torch.finfo(call.k_cache.dtype).max
    for name in ("k_scale", "v_scale"):
        cache_scale(name, getattr(call, name), call.input.device)
    highest = largest if call.fp8_max is None else _require_number("fp8_max", call.fp8_max, largest)
    lowest = -highest if call.fp8_min is None else _require_number("fp8_min", call.fp8_min, largest)
    if lowest >= highest:
        raise ValueError(f"fp8_min is {lowest} and fp8_max {highest}; accepted: fp8_min below fp8_max")
    return lowest, highest


def cache_scale(name: str, value: Any, device: torch.device) -> torch.Tensor:
    """A finite positive scale as [1, 1] float32."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        require_eps(name, value)
        value = torch.tensor([float(value)], dtype=torch.float32, device=device)
    if value is None:
        raise ValueError(f"{name} is None; accepted with caches of an fp8 type: a number, or a float32 tensor of one")
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or value.numel() != 1:
        given = f"{shape(value)} {value.dtype}" if isinstance(value, torch.Tensor) else repr(value)
        raise TypeError(f"{name} is {given}; accepted: a number, or a float32 tensor of one")
    row = value.reshape(1, 1)
    require_shaped(name, row, (torch.float32,), (1, 1), device)
    if device.type == "cpu":
        arguments.require_scales(name, row)
        if row.item() < arguments.SMALLEST:
            raise ValueError(
                f"{name} is {row.item()}; accepted: from {arguments.SMALLEST:.3g}, whose reciprocal is finite"
            )
    return row


def _require_number(name: str, value: Any, largest: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}; accepted: a number")
    if not -largest <= value <= largest:
        raise ValueError(f"{name} is {value!r}; accepted: {-largest} to {largest}, what the caches' type holds")
    return float(value)


def _require_slots(call: QKVArguments, num_blocks: int, block_size: int) -> None:
    """An int32 slot for each token; where they can be seen, those of two tokens differ and lie in the cache."""
    if call.block_size is None or require_int("block_size", call.block_size, at_least=1) != block_size:
        raise ValueError(f"block_size is {call.block_size}; accepted: {block_size}, as in k_cache")
    batch, seqlen, _ = call.input.shape
    if call.slot_mapping is None:
        raise ValueError(f"slot_mapping is None; accepted with use_block_kv: [{batch}, {seqlen}] torch.int32")
    require_shaped("slot_mapping", call.slot_mapping, (torch.int32,), (batch, seqlen), call.input.device)
    if call.input.device.type != "cpu":
        return
    slots = call.slot_mapping
    bad = arguments.first(slots >= num_blocks * block_size)
    if bad:
        raise ValueError(
            f"slot_mapping has {slots[bad].item()} at {list(bad)}; accepted: negative, or below {num_blocks} blocks x "
            f"{block_size}"
        )
    used, counts = slots[slots >= 0].unique(return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"slot_mapping has {used[counts > 1][0].item()} more than once; accepted: each slot once")
