"""Predicted device time of a decode step at any size: simulated without values, and never a measurement.

Only what runs in kernels is predicted. What runs in torch here (indexer, router, MLPs, the head) is given as the time
that its weights and cached keys take through HBM at full bandwidth: no implementation is below it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import nkisim
from common import hardware
from common.checks import require_int
from common.tiling import ceil_div
from devicetime.predict import predict
from devicetime.timeline import Timeline
from kernels.mla_decode import plan
from kernels.mla_decode.device.config import P_MAX
from kernels.mla_decode.device.decode import fused_decode
from kernels.mla_decode.device.index_kernel import IndexConfig, prior_index
from kernels.mla_decode.planning.dims import Dims, FrontDims
from kernels.mla_decode.planning.plan import Plan
from models.deepseek_v32.attention import Device
from models.deepseek_v32.collectives import all_gather, all_reduce
from models.deepseek_v32.config import NORM_EPS, ModelConfig
from models.deepseek_v32.model import require_servable

ATTENTION = "mla_decode"

BLOCK_SIZE = 64
"""Positions of a cache block."""

ITEM_BYTES = 2
"""Weights and cache are bf16."""


@dataclass(frozen=True)
class Serving:
    """How a model is served.

    Attributes:
        ranks: that share it.
        batch: sequences of a step.
        context: positions of each that are cached.
        device: of each rank.
    """

    ranks: int
    batch: int
    context: int
    device: Device

    def __post_init__(self) -> None:
        for name in ("ranks", "batch", "context"):
            require_int(name, getattr(self, name), at_least=1)

    @property
    def bytes_per_us(self) -> float:
        """HBM bandwidth of a rank: its cores' share of the chip's."""
        chip = hardware.get(self.device.target)
        return chip.hbm_bytes_per_s_per_chip / chip.cores_per_chip * self.device.lnc / 1e6


@dataclass(frozen=True)
class KernelTime:
    """A kernel in a layer, or behind the last.

    Attributes:
        kernel: its name.
        launches: of it.
        timeline: of one launch, on rank 0 and those that it meets.
    """

    kernel: str
    launches: int
    timeline: Timeline

    @property
    def us(self) -> float:
        """All its launches."""
        return self.launches * self.timeline.total_ns / 1e3


def require_serving(config: ModelConfig, serving: Serving) -> None:
    """Whether the kernels can serve a model so.

    Raises:
        TypeError, ValueError: naming what cannot be, its value and what is accepted.
    """
    if serving.context > config.max_position_embeddings:
        raise ValueError(f"context is {serving.context}; accepted: up to {config.max_position_embeddings}, the model's")
    require_servable(config, serving.ranks, serving.batch, torch.bfloat16, serving.device)


def layer_kernels(config: ModelConfig, serving: Serving) -> list[KernelTime]:
    """The kernels of one layer of a rank, in order; the same in every layer.

    Raises:
        TypeError, ValueError: as `require_serving`.
    """
    require_serving(config, serving)
    found = [
        KernelTime("prior index", 1, _predict(serving, [_record_index(config, serving)])),
        KernelTime(ATTENTION, 1, _predict(serving, [_record_attention(config, serving)])),
    ]
    if serving.ranks > 1:
        part = torch.empty(serving.batch, config.hidden_size, dtype=torch.bfloat16, device="meta")
        found.append(KernelTime("all-reduce", 2, _predict(serving, _record_collective(all_reduce, part, serving))))
    return found


def head_kernels(config: ModelConfig, serving: Serving) -> list[KernelTime]:
    """The kernels behind the last layer."""
    if serving.ranks == 1:
        return []
    part = torch.empty(config.vocab_size // serving.ranks, serving.batch, dtype=torch.float32, device="meta")
    return [KernelTime("all-gather", 1, _predict(serving, _record_collective(all_gather, part, serving)))]


def indexer_floor_us(config: ModelConfig, serving: Serving) -> float:
    """A layer's indexer: its weights, the low-rank query's once more, and every cached key."""
    width = config.index_n_heads * config.index_head_dim
    weights = config.q_lora_rank * (width + config.hidden_size) + config.hidden_size * config.index_head_dim
    keys = serving.batch * serving.context * config.index_head_dim
    return ITEM_BYTES * (weights + keys) / serving.bytes_per_us


def mlp_floor_us(config: ModelConfig, serving: Serving, dense: bool) -> float:
    """A layer's MLP: its weights, or those of the shared expert and of all that a batch chooses evenly at random."""
    if dense:
        width = float(config.intermediate_size)
    else:
        missed = (1 - config.num_experts_per_tok / config.n_routed_experts) ** serving.batch
        chosen = config.n_routed_experts * (1 - missed)
        width = config.moe_intermediate_size * (config.n_shared_experts + chosen)
    return ITEM_BYTES * 3 * config.hidden_size * width / serving.ranks / serving.bytes_per_us


def head_floor_us(config: ModelConfig, serving: Serving) -> float:
    """A rank's part of the head."""
    return ITEM_BYTES * config.hidden_size * config.vocab_size / serving.ranks / serving.bytes_per_us


def attention_plan(config: ModelConfig, serving: Serving) -> Plan:
    """The plan of a rank's attention block.

    Raises:
        BudgetError, ValueError: it cannot be.
    """
    heads = config.num_attention_heads // serving.ranks
    dims = Dims(
        n_tokens=serving.batch,
        n_heads=heads,
        n_prior=config.index_topk,
        kv_lora_rank=config.kv_lora_rank,
        rope=config.qk_rope_head_dim,
        v_head_dim=config.v_head_dim,
        hidden=config.hidden_size,
        itemsize=ITEM_BYTES,
        cores=serving.device.cores(serving.batch, heads),
    )
    front = FrontDims(config.q_lora_rank, config.qk_nope_head_dim, input_norm=True)
    return plan.make(dims, hardware.get(serving.device.target), front=front)


def _predict(serving: Serving, runs: Sequence[nkisim.Run]) -> Timeline:
    return predict(runs, serving.device.target)


def _options(serving: Serving) -> nkisim.Options:
    return nkisim.Options(target=serving.device.target, numerics=False)


def _record_collective(kernel: Callable[..., Any], part: torch.Tensor, serving: Serving) -> Sequence[nkisim.Run]:
    return nkisim.run_ranks(kernel, [(part, serving.ranks)] * serving.ranks, _options(serving))


def _record_index(config: ModelConfig, serving: Serving) -> nkisim.Run:
    blocks = ceil_div(serving.context, BLOCK_SIZE)
    index = IndexConfig(
        n_tokens=serving.batch,
        width=config.index_topk,
        n_prior=config.index_topk,
        block_size=BLOCK_SIZE,
        block_shift=BLOCK_SIZE.bit_length() - 1,
        n_rows=serving.batch * blocks * BLOCK_SIZE,
    )
    int32 = functools.partial(torch.empty, dtype=torch.int32, device="meta")
    operands = (int32(serving.batch, config.index_topk), int32(serving.batch), int32(serving.batch, blocks), index)
    return nkisim.run(prior_index, *operands, options=_options(serving))


def _record_attention(config: ModelConfig, serving: Serving) -> nkisim.Run:
    planned = attention_plan(config, serving)
    operands = _attention_operands(config, serving, planned)
    return nkisim.run(fused_decode[planned.dims.cores], *operands, options=_options(serving))


def _attention_operands(config: ModelConfig, serving: Serving, planned: Plan) -> tuple[Any, ...]:
    """The fused step's, without data."""
    dims, tokens = planned.dims, serving.batch
    bf16 = functools.partial(torch.empty, dtype=torch.bfloat16, device="meta")
    fp32 = functools.partial(torch.empty, dtype=torch.float32, device="meta")
    int32 = functools.partial(torch.empty, dtype=torch.int32, device="meta")
    table = (P_MAX, tokens, dims.key_tiles)
    return (
        bf16(tokens, dims.hidden),
        bf16(dims.hidden, config.q_lora_rank),
        fp32(config.q_lora_rank),
        bf16(config.q_lora_rank, dims.n_heads * config.query_head_dim),
        bf16(dims.hidden, dims.row_width),
        fp32(dims.kv_lora_rank),
        fp32(tokens, dims.rope // 2),
        fp32(tokens, dims.rope // 2),
        bf16(dims.n_heads, config.qk_nope_head_dim, dims.kv_lora_rank),
        bf16(tokens * ceil_div(serving.context, BLOCK_SIZE), 1, BLOCK_SIZE, dims.row_width),
        int32(tokens),
        int32(*table),
        fp32(*table),
        torch.empty(table, dtype=torch.uint32, device="meta"),
        int32(tokens),
        bf16(dims.n_heads, dims.v_head_dim, dims.kv_lora_rank),
        bf16(dims.n_heads * dims.v_head_dim, dims.hidden),
        dims.n_prior,
        1.0,
        fp32(dims.hidden),
        NORM_EPS,
        planned.front_config,
    )
