"""The steps with front-fold that tests and bench run, and seeded operands for them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from kernels.mla_decode.oracle import cases
from kernels.mla_decode.oracle.cases import Case
from kernels.mla_decode.oracle.front_reference import Front, front_fold
from kernels.mla_decode.planning.dims import FrontDims
from kernels.mla_decode.planning.plan import Plan

NORM_EPS = 1e-6


@dataclass(frozen=True)
class FrontCase:
    """An attention case with the front-fold before it.

    Attributes:
        attention: the rest of the step.
        q_lora, nope, input_norm: see `FrontDims`.
    """

    attention: Case
    q_lora: int = 192
    nope: int = 32
    input_norm: bool = False

    @property
    def name(self) -> str:
        """The attention case's."""
        return self.attention.name

    @property
    def front(self) -> FrontDims:
        """Its own sizes as the plan takes them."""
        return FrontDims(self.q_lora, self.nope, self.input_norm)

    @property
    def plan(self) -> Plan:
        """The plan of the whole step."""
        return self.attention.planned(self.front)


FRONT_CORNERS = (
    FrontCase(Case("front_one_token", 1, 1, 5, hidden=128, context=20), q_lora=100),
    FrontCase(Case("front_bf16", 3, 2, 40)),
    FrontCase(Case("front_fp32", 3, 2, 40, dtype=torch.float32), input_norm=True),
    FrontCase(Case("front_ragged", 5, 3, 130, hidden=650, rope=6), q_lora=130, nope=128, input_norm=True),
    FrontCase(Case("front_narrow", 2, 2, 3, hidden=7, context=20, dtype=torch.float32), q_lora=1, nope=1),
    FrontCase(Case("front_heads_21", 4, 21, 30, context=40, rope=64), nope=128),
    FrontCase(Case("front_wide", 3, 2, 30, kv_lora_rank=512, rope=128, hidden=1500, context=40), q_lora=2100),
    FrontCase(Case("front_tokens_128", 128, 2, 5, context=12, rope=8, dtype=torch.float32), nope=16),
    FrontCase(Case("front_lnc_2", 6, 2, 40, lnc=2), input_norm=True),
    FrontCase(Case("front_lnc_2_of_heads", 3, 4, 40, lnc=2), input_norm=True),
    FrontCase(
        Case("front_lnc_2_of_heads_one_token", 1, 2, 5, hidden=7, dtype=torch.float32, context=20, lnc=2), q_lora=1
    ),
    FrontCase(Case("front_lnc_2_of_heads_24", 4, 24, 30, context=40, lnc=2), q_lora=2101, nope=128),
    FrontCase(Case("front_fp8_lnc_2_of_heads", 3, 2, 40, fp8_cache=True, lnc=2, target="trn3")),
    FrontCase(Case("front_fp8", 5, 2, 60, kv_lora_rank=256, fp8_cache=True, target="trn3"), input_norm=True),
    FrontCase(Case("front_fp8_lnc_2", 4, 3, 40, rope=6, fp8_cache=True, lnc=2, target="trn3"), nope=128),
    FrontCase(Case("front_chunks", 3, 2, 140, kv_lora_rank=256, dma_transposed_chunks=1, target="trn3")),
)
"""Small, and each at an edge."""

FRONT_PRODUCTION = (
    FrontCase(cases.production("layer"), q_lora=1536, nope=128, input_norm=True),
    FrontCase(cases.production("layer_heads_16", n_heads=16), q_lora=1536, nope=128, input_norm=True),
    FrontCase(
        dataclasses.replace(cases.production("layer_one_token_heads_16", 1, 16), lnc=2),
        q_lora=1536,
        nope=128,
        input_norm=True,
    ),
)
"""The whole attention block: hidden states in, output and cache row out."""


@dataclass(frozen=True)
class FrontOperands:
    """Tensors of a step with front-fold, as the shim takes them.

    Attributes:
        step: what the attention takes; its queries and kv_row_cur are not used.
        others: see `front_fold.mla_decode_qkv`.
    """

    step: cases.Operands
    hidden_states: torch.Tensor
    wq_a: torch.Tensor
    q_norm_w: torch.Tensor
    wq_b: torch.Tensor
    wkv_a: torch.Tensor
    kv_norm_w: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    q_absorb_w: torch.Tensor
    slot_mapping: torch.Tensor
    input_norm_w: torch.Tensor | None

    def replace(self, **changes: Any) -> FrontOperands:
        """A copy with some tensors replaced."""
        return dataclasses.replace(self, **changes)

    def front(self, dtype: torch.dtype = torch.float64, rounded_to: torch.dtype | None = None) -> Front:
        """The reference's front-fold."""
        return front_fold(
            self.hidden_states,
            self.wq_a,
            self.q_norm_w,
            self.wq_b,
            self.wkv_a,
            self.kv_norm_w,
            self.cos,
            self.sin,
            self.q_absorb_w,
            self.input_norm_w,
            NORM_EPS,
            dtype,
            rounded_to,
        )

    def exact(self, softmax_scale: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """The reference's output of the whole step, [n_tokens, hidden]."""
        return self._step(self.front(dtype)).exact(softmax_scale, dtype)

    def rounded(self, softmax_scale: float) -> torch.Tensor:
        """The whole step in torch, rounded to the cache's type where the kernels round."""
        dtype = self.hidden_states.dtype
        front = self.front(torch.float32, dtype)
        return self._step(Front(*(part.to(dtype) for part in front))).rounded(softmax_scale)

    def _step(self, front: Front) -> cases.Operands:
        return self.step.replace(q_absorbed=front.q_absorbed, q_pe=front.q_pe, kv_row_cur=front.kv_row_cur)


def front_operands(case: FrontCase, seed: int = 0) -> FrontOperands:
    """Standard normal hidden states, weights of variance 1 / fan-in, norm weights about 1, slots of own positions."""
    at = case.attention
    generator = torch.Generator().manual_seed(1000 + seed)
    step = cases.normal_operands(at, seed)

    def normal(*shape: int, fan_in: int = 1) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) / fan_in**0.5).to(at.dtype)

    def gamma(width: int) -> torch.Tensor:
        return 1 + 0.2 * torch.randn(width, generator=generator)

    frequencies = 10_000.0 ** -(torch.arange(at.rope // 2) / (at.rope // 2))
    angles = step.positions[:, None].double() * frequencies[None].double()
    pages = step.block_table.gather(1, (step.positions[:, None] // at.block_size).long())[:, 0]
    return FrontOperands(
        step=step,
        hidden_states=normal(at.n_tokens, at.hidden),
        wq_a=normal(at.hidden, case.q_lora, fan_in=at.hidden),
        q_norm_w=gamma(case.q_lora),
        wq_b=normal(case.q_lora, at.n_heads * (case.nope + at.rope), fan_in=case.q_lora),
        wkv_a=normal(at.hidden, at.kv_lora_rank + at.rope, fan_in=at.hidden),
        kv_norm_w=gamma(at.kv_lora_rank),
        cos=angles.cos().float(),
        sin=angles.sin().float(),
        q_absorb_w=normal(at.n_heads, case.nope, at.kv_lora_rank, fan_in=case.nope),
        slot_mapping=(pages * at.block_size + step.positions % at.block_size).int(),
        input_norm_w=gamma(at.hidden) if case.input_norm else None,
    )
