"""Runs plans on the simulator and reads off what they moved, issued and computed."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

import nkisim
from kernels.mla_decode.device.decode import fused_decode
from kernels.mla_decode.device.kernel import staged_attention
from kernels.mla_decode.planning.plan import Plan
from kernels.mla_decode.planning.traffic import HbmBytes
from nkisim.execution import CoreReport
from nkisim.record import Record, count_by_engine, hbm_traffic

_DTYPES = {2: torch.bfloat16, 4: torch.float32}
_INDEX_DTYPES = (torch.int32, torch.float32, torch.uint32)

_READ = {
    "keys": ("kv_cache", "kv_row_cur"),
    "tables": ("prior_rows", "prior_key_pos", "prior_rows_natural", "positions"),
    "queries": ("q_absorbed", "q_pe"),
    "weights": (
        *("out_absorb_w", "o_proj_w", "wq_a", "wq_b", "wkv_a", "q_absorb_w"),
        *("q_norm_w", "kv_norm_w", "input_norm_w"),
    ),
    "inputs": ("hidden_states", "cos", "sin", "slot_mapping"),
}
_WRITTEN = {"rows_written": ("kv_cache", "kv_row_cur"), "output": ("output",)}
"""HBM tensors of the kernels by the purpose of their bytes."""


@dataclass(frozen=True)
class Measurement:
    """What a simulated launch did, all cores together.

    Attributes:
        hbm: bytes between HBM and the core, by purpose; skipped slots count as read.
        instructions: instructions issued, by engine.
        cores: the simulator's reports.
    """

    hbm: HbmBytes
    instructions: Counter[str]
    cores: tuple[CoreReport, ...]


def run_without_values(plan: Plan) -> Measurement:
    """Records the instructions of a plan's kernel on tensors that hold no data."""
    if plan.front is None:
        kernel: Any = staged_attention
        operands: tuple[Any, ...] = _attention_operands(plan)
    else:
        kernel, operands = fused_decode, _fused_operands(plan)
    options = nkisim.Options(target=plan.hardware.name, numerics=False)
    cores = nkisim.run(kernel[plan.dims.cores], *operands, options=options).cores
    instructions: Counter[str] = Counter()
    for core in cores:
        for engine, calls in count_by_engine(core.stream).items():
            instructions[engine] += calls.total()
    return Measurement(_hbm_bytes([record for core in cores for record in core.stream]), instructions, cores)


def _attention_operands(plan: Plan) -> tuple[Any, ...]:
    dims, empty = plan.dims, _empty(plan)
    queries = (
        empty(128, dims.latent_tiles, dims.n_tokens, dims.n_heads),
        empty(128, dims.n_tokens, dims.n_heads),
    )
    return (*queries, _cache(plan), empty(dims.n_tokens, dims.row_width), *_shared_operands(plan), plan.config)


def _fused_operands(plan: Plan) -> tuple[Any, ...]:
    dims, front, empty = plan.dims, plan.front, _empty(plan)
    assert front is not None
    fp32 = functools.partial(torch.empty, device="meta", dtype=torch.float32)
    return (
        empty(dims.n_tokens, dims.hidden),
        empty(dims.hidden, front.q_lora),
        fp32(front.q_lora),
        empty(front.q_lora, dims.n_heads * (front.nope + dims.rope)),
        empty(dims.hidden, dims.row_width),
        fp32(dims.kv_lora_rank),
        fp32(dims.n_tokens, dims.rope // 2),
        fp32(dims.n_tokens, dims.rope // 2),
        empty(dims.n_heads, front.nope, dims.kv_lora_rank),
        _cache(plan),
        torch.empty(dims.n_tokens, device="meta", dtype=torch.int32),
        *_shared_operands(plan),
        fp32(dims.hidden) if front.input_norm else None,
        1e-6,
        plan.front_config,
    )


def _shared_operands(plan: Plan) -> tuple[Any, ...]:
    """From the tables to the softmax scale."""
    dims, empty = plan.dims, _empty(plan)
    table = (128, dims.n_tokens, dims.key_tiles)
    return (
        *(torch.empty(table, device="meta", dtype=dtype) for dtype in _INDEX_DTYPES),
        torch.empty(dims.n_tokens, device="meta", dtype=torch.int32),
        empty(dims.n_heads, dims.v_head_dim, dims.kv_lora_rank),
        empty(dims.n_heads * dims.v_head_dim, dims.hidden),
        dims.n_prior,
        1.0,
    )


def _cache(plan: Plan) -> torch.Tensor:
    """Of as many rows as the step may read."""
    blocks = plan.dims.n_tokens * plan.dims.key_tiles * 2
    if plan.dims.fp8_cache:
        return torch.empty(blocks, 1, 64, plan.dims.cache_row_bytes, device="meta", dtype=torch.uint8)
    return torch.empty(blocks, 1, 64, plan.dims.row_width, device="meta", dtype=_DTYPES[plan.dims.itemsize])


def _empty(plan: Plan) -> functools.partial[torch.Tensor]:
    return functools.partial(torch.empty, device="meta", dtype=_DTYPES[plan.dims.itemsize])


def _hbm_bytes(stream: Iterable[Record]) -> HbmBytes:
    moved = hbm_traffic(stream)
    by_purpose = {
        **{purpose: sum(moved[name].read_bytes for name in names if name in moved) for purpose, names in _READ.items()},
        **{
            purpose: sum(moved[name].written_bytes for name in names if name in moved)
            for purpose, names in _WRITTEN.items()
        },
    }
    made = HbmBytes(**by_purpose)
    everything = sum(traffic.read_bytes + traffic.written_bytes for traffic in moved.values())
    if made.total != everything:
        raise AssertionError(f"{everything - made.total} bytes of {sorted(moved)} have no purpose")
    return made


def seconds(call: Any, repeats: int) -> tuple[float, Any]:
    """The shortest of several calls, in seconds of this machine, and what the last one returned."""
    best, result = float("inf"), None
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        best = min(best, time.perf_counter() - start)
    return best, result


def as_dict(hbm: HbmBytes) -> dict[str, int]:
    """By purpose, and the total."""
    return dataclasses.asdict(hbm) | {"total": hbm.total}
