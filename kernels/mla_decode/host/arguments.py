"""Checks of a step's arguments, before anything runs; messages name the argument, what it is and what is accepted.

Values are checked where they lie on the host. On a device a check would be a launch of its own, in every layer.
"""

from __future__ import annotations

from typing import Any

import torch

from common import hardware
from common.budget import BudgetError
from common.checks import require_cores, require_int
from common.hardware import Hardware
from common.tiling import ceil_div
from kernels.mla_decode.device.config import P_MAX
from kernels.mla_decode.host.cache_format import row_bytes
from kernels.mla_decode.host.tables import LAST_POSITION, is_dense
from kernels.mla_decode.planning import plan
from kernels.mla_decode.planning.dims import Dims, FrontDims
from kernels.mla_decode.planning.plan import Plan

CACHE_DTYPES = (torch.bfloat16, torch.float32, torch.uint8)
LEAST_FACTOR, LARGEST_FACTOR = 1e-30, 1e30
"""Range of scale and epsilon: fp32 numbers, and a masked score stays out of reach of the exponential when scaled."""

FP32_INPUTS = ("q_norm_w", "kv_norm_w", "cos", "sin")
"""Of the front-fold, whatever the cache's type."""


def require_target(target: Any, lnc: Any) -> Hardware:
    """The target's facts.

    Raises:
        ValueError, TypeError: no such target, or an impossible number of cores.
    """
    chip = hardware.get(target)
    require_cores("lnc", lnc)
    return chip


def require_cache(kv_cache: Any) -> torch.Tensor:
    """[n_blocks, 1, block_size, kv_row_dim], bf16, fp32, or uint8 for fp8 rows; other tensors follow it."""
    require_tensor("kv_cache", kv_cache, CACHE_DTYPES, ("n_blocks", "1", "block_size", "kv_row_dim"))
    if kv_cache.device.type == "meta":
        raise ValueError("kv_cache is on device meta and has no values; accepted: the CPU or a Neuron device")
    if kv_cache.shape[1] != 1:
        raise ValueError(f"kv_cache is {shape(kv_cache)}; accepted: [n_blocks, 1, block_size, kv_row_dim]")
    if not kv_cache.is_contiguous():
        raise ValueError("kv_cache is not contiguous; accepted: a contiguous tensor, it is read in place")
    return kv_cache


def weights_dtype(kv_cache: torch.Tensor) -> torch.dtype:
    """The type of queries, weights and results: the cache's, bf16 for fp8 rows."""
    return torch.bfloat16 if kv_cache.dtype is torch.uint8 else kv_cache.dtype


def require_row_dim(kv_cache: torch.Tensor, rank: int, rope: int, sources: str) -> bool:
    """That rows are as wide as the tensors that `sources` names say; returns whether they are fp8."""
    fp8 = kv_cache.dtype is torch.uint8
    row_dim = row_bytes(rank, rope) if fp8 else rope + rank
    if kv_cache.shape[3] != row_dim:
        what = "bytes of an fp8 row of" if fp8 else "the widths of"
        raise ValueError(f"kv_cache is {shape(kv_cache)}; accepted: kv_row_dim {row_dim}, {what} {sources}")
    return fp8


def require_dims(
    q_absorbed: Any, q_pe: Any, kv_cache: torch.Tensor, out_absorb_w: Any, o_proj_w: Any, n_prior: Any, lnc: int
) -> Dims:
    """The sizes of a step, from tensors that then agree with each other and with the cache.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    same = (weights_dtype(kv_cache),)
    device = kv_cache.device
    require_tensor("q_absorbed", q_absorbed, same, ("n_tokens", "n_heads", "kv_lora_rank"), device)
    tokens, heads, rank = q_absorbed.shape
    require_tensor("q_pe", q_pe, same, ("n_tokens", "n_heads", "rope"), device)
    require_shape("q_pe", q_pe, (tokens, heads, None))
    rope = q_pe.shape[2]
    fp8 = require_row_dim(kv_cache, rank, rope, "q_pe and q_absorbed")
    require_tensor("out_absorb_w", out_absorb_w, same, ("n_heads", "v_head_dim", "kv_lora_rank"), device)
    require_shape("out_absorb_w", out_absorb_w, (heads, None, rank))
    value = out_absorb_w.shape[1]
    require_tensor("o_proj_w", o_proj_w, same, ("n_heads * v_head_dim", "hidden"), device)
    require_shape("o_proj_w", o_proj_w, (heads * value, None))
    keys = require_int("n_prior", n_prior, at_least=1)
    return Dims(tokens, heads, keys, rank, rope, value, o_proj_w.shape[1], q_pe.itemsize, fp8, lnc)


def require_front_dims(
    hidden_states: Any, q_absorb_w: Any, cos: Any, kv_cache: torch.Tensor, value: int, n_prior: int, lnc: int
) -> Dims:
    """The sizes of a step whose queries come from the front-fold, not yet checked against its other tensors.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    same, device = (weights_dtype(kv_cache),), kv_cache.device
    require_tensor("hidden_states", hidden_states, same, ("n_tokens", "hidden"), device)
    require_tensor("q_absorb_w", q_absorb_w, same, ("n_heads", "nope", "kv_lora_rank"), device)
    require_tensor("cos", cos, (torch.float32,), ("n_tokens", "rope / 2"), device)
    tokens, hidden = hidden_states.shape
    heads, _, rank = q_absorb_w.shape
    rope = 2 * cos.shape[1]
    fp8 = require_row_dim(kv_cache, rank, rope, "cos and q_absorb_w")
    return Dims(tokens, heads, n_prior, rank, rope, value, hidden, hidden_states.itemsize, fp8, lnc)


def require_tails(dims: Dims, out_absorb_w: torch.Tensor, o_proj_w: Any) -> None:
    """[n_heads, v_head_dim, kv_lora_rank] and [n_heads * v_head_dim, hidden]."""
    require_shape("out_absorb_w", out_absorb_w, (dims.n_heads, None, dims.kv_lora_rank))
    require_tensor("o_proj_w", o_proj_w, (out_absorb_w.dtype,), ("n_heads * v_head_dim", "hidden"), out_absorb_w.device)
    require_shape("o_proj_w", o_proj_w, (dims.n_heads * dims.v_head_dim, dims.hidden))


def require_index(dims: Dims, device: torch.device, tables: dict[str, Any]) -> None:
    """The three tables, [128, n_tokens, ceil(n_prior / 128)] each. Rows outside the cache are skipped, so any is."""
    dtypes = {"prior_rows": torch.int32, "prior_key_pos": torch.float32, "prior_rows_natural": torch.uint32}
    for name, table in tables.items():
        require_tensor(name, table, (dtypes[name],), ("128", "n_tokens", "n_prior_tiles"), device)
        require_shape(name, table, (P_MAX, dims.n_tokens, ceil_div(dims.n_prior, P_MAX)))


def require_positions(positions: Any, tokens: int, device: torch.device) -> None:
    """[n_tokens] int32, not negative and exact in fp32."""
    require_tensor("positions", positions, (torch.int32,), ("n_tokens",), device)
    require_shape("positions", positions, (tokens,))
    if device.type == "cpu":
        for position in (int(positions.min()), int(positions.max())):
            if not 0 <= position <= LAST_POSITION:
                raise ValueError(f"positions has {position}; accepted: 0 to {LAST_POSITION}")


def require_front(
    dims: Dims, kv_cache: torch.Tensor, tensors: dict[str, Any], input_norm_w: Any, slot_mapping: Any
) -> FrontDims:
    """The sizes of the front-fold, from tensors that then agree with each other and with the step's.

    Args:
        dims: of the step.
        kv_cache: which the tensors follow in device and, norms and angles aside, in type.
        tensors: hidden_states, wq_a, q_norm_w, wq_b, wkv_a, kv_norm_w, cos, sin, q_absorb_w.
        input_norm_w, slot_mapping: as for the kernel.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    tokens, heads, hidden, rank, rope = dims.n_tokens, dims.n_heads, dims.hidden, dims.kv_lora_rank, dims.rope
    low = _width(tensors["wq_a"], 1)
    nope = _width(tensors["q_absorb_w"], 1)
    expected = {
        "hidden_states": (("n_tokens", "hidden"), (tokens, hidden)),
        "wq_a": (("hidden", "q_lora"), (hidden, None)),
        "q_norm_w": (("q_lora",), (low,)),
        "wq_b": (("q_lora", "n_heads * (nope + rope)"), (low, heads * (nope + rope))),
        "wkv_a": (("hidden", "kv_lora_rank + rope"), (hidden, rank + rope)),
        "kv_norm_w": (("kv_lora_rank",), (rank,)),
        "cos": (("n_tokens", "rope / 2"), (tokens, rope // 2)),
        "sin": (("n_tokens", "rope / 2"), (tokens, rope // 2)),
        "q_absorb_w": (("n_heads", "nope", "kv_lora_rank"), (heads, None, rank)),
    }
    for name, (form, sizes) in expected.items():
        dtype = torch.float32 if name in FP32_INPUTS else weights_dtype(kv_cache)
        require_tensor(name, tensors[name], (dtype,), form, kv_cache.device)
        require_shape(name, tensors[name], sizes)
    if input_norm_w is not None:
        require_tensor("input_norm_w", input_norm_w, (torch.float32,), ("hidden",), kv_cache.device)
        require_shape("input_norm_w", input_norm_w, (hidden,))
    require_slots(slot_mapping, tokens, kv_cache)
    return FrontDims(low, nope, input_norm_w is not None)


def require_slots(slot_mapping: Any, tokens: int, kv_cache: torch.Tensor) -> None:
    """[n_tokens] int32, each a row of the cache of its own."""
    require_tensor("slot_mapping", slot_mapping, (torch.int32,), ("n_tokens",), kv_cache.device)
    require_shape("slot_mapping", slot_mapping, (tokens,))
    if slot_mapping.device.type != "cpu":
        return
    rows = kv_cache.shape[0] * kv_cache.shape[2]
    slots = slot_mapping.tolist()
    for slot in slots:
        if not 0 <= slot < rows:
            raise ValueError(f"slot_mapping has {slot}; accepted: 0 to {rows - 1}, rows of kv_cache")
        if slots.count(slot) > 1:
            raise ValueError(f"slot_mapping has {slot} {slots.count(slot)} times; accepted: each row once")


def _width(value: Any, axis: int) -> int:
    """A dimension of a tensor; 0 where it has none, which the check of its shape then reports."""
    return int(value.shape[axis]) if isinstance(value, torch.Tensor) and value.dim() > axis else 0


def require_above_zero(name: str, value: Any) -> float:
    """A number above 0 that is neither too small nor too large for the kernel's fp32."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}; accepted: a number above 0")
    if not LEAST_FACTOR <= value <= LARGEST_FACTOR:
        raise ValueError(f"{name} is {value!r}; accepted: {LEAST_FACTOR} to {LARGEST_FACTOR}")
    return float(value)


def make_plan(dims: Dims, chip: Hardware, dma_transposed_chunks: int | None, front: FrontDims | None = None) -> Plan:
    """The plan of a step.

    Raises:
        ValueError: it does not fit in SBUF, or cannot transpose by DMA as asked.
    """
    try:
        return plan.make(dims, chip, dma_transposed_chunks, front)
    except BudgetError as error:
        raise ValueError(
            f"n_tokens {dims.n_tokens}, n_heads {dims.n_heads} and n_prior {dims.n_prior} do not fit: {error}"
        ) from None


def require_tensor(
    name: str, value: Any, dtypes: tuple[torch.dtype, ...], form: tuple[str, ...], device: torch.device | None = None
) -> None:
    """A dense tensor with elements, of one of the dtypes, with the dimensions of `form`, on the device given."""
    layout = f"[{', '.join(form)}]"
    accepted = f"{layout} {' or '.join(str(dtype) for dtype in dtypes)}"
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; accepted: a torch tensor {accepted}")
    if value.dtype not in dtypes:
        raise TypeError(f"{name} is {value.dtype}; accepted: {accepted}")
    if not is_dense(value):
        raise TypeError(f"{name} is sparse, nested or a lazy negation; accepted: a dense tensor {layout}")
    if value.dim() != len(form):
        raise ValueError(f"{name} is {shape(value)}; accepted: {layout}")
    if value.numel() == 0:
        raise ValueError(f"{name} is {shape(value)}, which is empty; accepted: {layout}, none of them 0")
    if device is not None and value.device != device:
        raise ValueError(f"{name} is on {value.device}; accepted: {device}, where kv_cache is")


def require_shape(name: str, value: torch.Tensor, expected: tuple[int | None, ...]) -> None:
    """The dimensions of `value`; None accepts any."""
    if any(want is not None and got != want for got, want in zip(value.shape, expected, strict=True)):
        accepted = ", ".join("any" if want is None else str(want) for want in expected)
        raise ValueError(f"{name} is {shape(value)}; accepted: [{accepted}]")


def shape(tensor: torch.Tensor) -> str:
    """The tensor's shape as a list."""
    return str(list(tensor.shape))
