"""The steps that tests and bench run, one record each, and seeded operands for them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from common import hardware
from common.tiling import ceil_div
from kernels.mla_decode.device.config import Schedule
from kernels.mla_decode.host.cache_format import pack_rows, unpack_rows
from kernels.mla_decode.host.tables import PriorIndex, build_prior_index
from kernels.mla_decode.oracle import reference
from kernels.mla_decode.planning import plan
from kernels.mla_decode.planning.dims import Dims, FrontDims
from kernels.mla_decode.planning.plan import Plan


@dataclass(frozen=True)
class Case:
    """One step.

    Attributes:
        name: unique.
        n_tokens ... hidden: see `Dims`; small widths unless a case is about them.
        dtype: of the cache, the weights and the queries.
        context: positions of every sequence; own positions are the last one and others in the second half.
        block_size: rows of a cache page.
        dma_transposed_chunks: of the plan; None leaves it the choice.
        group_tokens: forced on the plan; None leaves it the choice.
        schedule: of the plan.
        fp8_cache: whether the cache is in the format of `cache_format`.
        lnc: cores; cores_share: what two of them share, "tokens" or "heads"; None leaves the plan the choice.
        target: "trn2" or "trn3".
    """

    name: str
    n_tokens: int
    n_heads: int
    n_prior: int
    kv_lora_rank: int = 128
    rope: int = 64
    v_head_dim: int = 64
    hidden: int = 512
    dtype: torch.dtype = torch.bfloat16
    context: int = 400
    block_size: int = 16
    dma_transposed_chunks: int | None = 0
    group_tokens: int | None = None
    schedule: Schedule = plan.DEFAULT_SCHEDULE
    fp8_cache: bool = False
    lnc: int = 1
    cores_share: str | None = None
    target: str = "trn2"

    @property
    def dims(self) -> Dims:
        """The sizes as the plan takes them."""
        return Dims(
            self.n_tokens,
            self.n_heads,
            self.n_prior,
            self.kv_lora_rank,
            self.rope,
            self.v_head_dim,
            self.hidden,
            self.dtype.itemsize,
            self.fp8_cache,
            self.lnc,
        )

    @property
    def plan(self) -> Plan:
        """Its plan."""
        return self.planned(None)

    def planned(self, front: FrontDims | None) -> Plan:
        """Its plan with a front-fold."""
        return plan.make(
            self.dims,
            hardware.get(self.target),
            self.dma_transposed_chunks,
            front,
            self.group_tokens,
            self.schedule,
            self.cores_share,
        )

    @property
    def softmax_scale(self) -> float:
        """That of a head of 128 + rope features."""
        return float((128 + self.rope) ** -0.5)


FP32 = torch.float32

CORNERS = (
    Case("one_token", 1, 1, 1),
    Case("prior_127", 3, 2, 127),
    Case("prior_128", 3, 2, 128),
    Case("prior_129", 3, 2, 129),
    Case("prior_255_fp32", 3, 2, 255, dtype=FP32),
    Case("prior_300", 2, 1, 300, block_size=1),
    Case("prior_beyond_context", 2, 3, 500, context=130),
    Case("group_of_2", 9, 3, 130, group_tokens=2),
    Case("group_of_1", 3, 100, 130),
    Case("heads_8_fp32", 4, 8, 200, dtype=FP32),
    Case("heads_16", 5, 16, 200, kv_lora_rank=256),
    Case("heads_128", 2, 128, 129, v_head_dim=16),
    Case("tokens_128", 128, 1, 20, context=30, rope=32),
    Case("tokens_127_fp32", 127, 2, 9, context=12, rope=8, v_head_dim=8, dtype=FP32),
    Case("latent_512", 2, 4, 140, kv_lora_rank=512, v_head_dim=128),
    Case("rope_128", 2, 2, 100, rope=128),
    Case("rope_2", 2, 2, 100, rope=2),
    Case("v_1", 3, 3, 100, v_head_dim=1),
    Case("hidden_1", 100, 3, 30, hidden=1, context=40, rope=8),
    Case("hidden_4000", 3, 2, 100, hidden=4000),
    Case("chunks_1", 3, 2, 300, kv_lora_rank=256, dma_transposed_chunks=1),
    Case("chunks_all", 3, 2, 300, kv_lora_rank=256, dma_transposed_chunks=2),
    Case("trn3", 3, 2, 200, target="trn3"),
    Case("lnc_2", 6, 3, 200, lnc=2),
    Case("lnc_2_of_2_fp32", 2, 2, 129, dtype=FP32, lnc=2),
    Case("lnc_2_hidden_7169", 2, 1, 20, v_head_dim=8, hidden=7169, context=30, lnc=2),
    Case("lnc_2_of_heads", 3, 4, 200, kv_lora_rank=256, hidden=4001, lnc=2),
    Case("lnc_2_of_heads_one_token_fp32", 1, 2, 129, dtype=FP32, lnc=2),
    Case("lnc_2_of_heads_128", 2, 128, 40, v_head_dim=16, hidden=2, lnc=2, target="trn3"),
    Case("lnc_2_of_heads_fp8", 3, 2, 129, kv_lora_rank=256, fp8_cache=True, lnc=2, target="trn3"),
    Case("lnc_2_chunks", 4, 2, 200, kv_lora_rank=256, lnc=2, dma_transposed_chunks=1),
    Case("head_major", 5, 3, 300, kv_lora_rank=256, schedule=Schedule(head_major=True)),
    Case("head_major_fp32", 5, 40, 700, dtype=FP32, schedule=Schedule(head_major=True)),
    Case("latent_bands", 3, 32, 600, kv_lora_rank=512, schedule=Schedule(head_major=True, latent_bands=True)),
    Case("seed", 5, 3, 600, kv_lora_rank=256, schedule=Schedule(stationary_weights=True)),
    Case("seed_fp32_heads_70", 2, 70, 130, dtype=FP32, schedule=Schedule(stationary_weights=True)),
    Case("head_major_seed", 3, 5, 300, schedule=Schedule(head_major=True, stationary_weights=True)),
    Case("per_token_tails", 5, 3, 200, lnc=1, schedule=Schedule(per_token_tails=True)),
    Case("per_token_tails_lnc_2", 4, 2, 200, lnc=2, schedule=Schedule(per_token_tails=True)),
    Case("per_token_tails_lnc_2_of_heads", 3, 2, 200, lnc=2, schedule=Schedule(per_token_tails=True)),
    Case("head_major_lnc_2_of_heads", 5, 4, 300, lnc=2, schedule=Schedule(head_major=True)),
    Case("late_weighted_sum", 11, 3, 200, group_tokens=4, schedule=Schedule(late_weighted_sum=True)),
    Case(
        *("late_in_little_memory", 9, 1, 3000, 512),
        context=3100,
        group_tokens=4,
        schedule=Schedule(late_weighted_sum=True),
        target="trn3",
    ),
    Case("late_by_token", 3, 3, 200, group_tokens=1, schedule=Schedule(late_weighted_sum=True, head_major=True)),
    Case("fp8", 5, 3, 200, kv_lora_rank=256, fp8_cache=True, target="trn3"),
    Case("fp8_656_bytes", 2, 2, 129, kv_lora_rank=512, v_head_dim=128, fp8_cache=True, target="trn3"),
    Case("fp8_one_token", 1, 1, 1, rope=2, fp8_cache=True, target="trn3"),
)
"""Small, and each at an edge: ragged key tiles, group sizes, extreme counts and widths, both types and targets."""


def production(name: str, n_tokens: int = 16, n_heads: int = 1, n_prior: int = 2048) -> Case:
    """DeepSeek-V3.2's widths in bf16; the indexer chose every second position."""
    sizes = (n_tokens, n_heads, n_prior, 512, 64, 128, 7168)
    return Case(name, *sizes, context=2 * n_prior, block_size=64, dma_transposed_chunks=None)


PRODUCTION = (
    production("production"),
    dataclasses.replace(production("production_no_dma_transposes"), dma_transposed_chunks=0),
)
"""The shape that the seed's own arithmetic gives; without DMA transposes each selected row is read once."""

FP8 = (dataclasses.replace(PRODUCTION[0], name="production_fp8", fp8_cache=True, target="trn3"),)
"""The same over a cache of 656-byte rows."""

CORES = tuple(
    dataclasses.replace(
        production(f"tokens_{tokens}_heads_{heads}_by_{shared}", tokens, heads), lnc=2, cores_share=shared
    )
    for tokens, heads, shared in (
        (1, 8, "heads"),
        (1, 16, "heads"),
        (2, 24, "tokens"),
        (2, 24, "heads"),
        (16, 1, "tokens"),
        (16, 16, "tokens"),
        (16, 16, "heads"),
    )
)
"""Two cores, and what they share; one token cannot be shared."""

TP = (production("tp16_heads_8", n_heads=8), production("tp8_heads_16", n_heads=16))
"""128 heads over 16 and 8 ranks."""

BATCH = tuple(
    production(f"tokens_{tokens}_prior_{keys}", n_tokens=tokens, n_prior=keys)
    for tokens, keys in ((1, 512), (1, 2048), (4, 2048), (16, 1024), (32, 2048), (64, 1024), (128, 512), (128, 2048))
)
"""One to 128 sequences."""

SUITES = {"corners": CORNERS, "production": PRODUCTION, "fp8": FP8, "cores": CORES, "tp": TP, "batch": BATCH}


def suite(name: str) -> tuple[Case, ...]:
    """The cases of a suite.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in SUITES:
        raise ValueError(f"suite is {name!r}; accepted: {', '.join(SUITES)}")
    return SUITES[name]


@dataclass(frozen=True)
class Operands:
    """Tensors of one step, as the shim takes them, and what the tables are made from.

    Attributes:
        q_absorbed: [n_tokens, n_heads, kv_lora_rank]; q_pe: [n_tokens, n_heads, rope].
        kv_cache: [n_blocks, 1, block_size, row].
        kv_row_cur: [n_tokens, row].
        selected: [n_tokens, up to n_prior] int32, -1 where there is no key.
        positions: [n_tokens] int32; block_table: [n_tokens, max_blocks] int32.
        out_absorb_w: [n_heads, v_head_dim, kv_lora_rank]; o_proj_w: [n_heads * v_head_dim, hidden].
    """

    q_absorbed: torch.Tensor
    q_pe: torch.Tensor
    kv_cache: torch.Tensor
    kv_row_cur: torch.Tensor
    selected: torch.Tensor
    positions: torch.Tensor
    block_table: torch.Tensor
    out_absorb_w: torch.Tensor
    o_proj_w: torch.Tensor

    def replace(self, **changes: torch.Tensor) -> Operands:
        """A copy with some tensors replaced."""
        return dataclasses.replace(self, **changes)

    def index(self, n_prior: int) -> PriorIndex:
        """The tables of the selection."""
        blocks, _, block_size, _ = self.kv_cache.shape
        return build_prior_index(
            self.selected, self.positions, self.block_table, block_size, blocks * block_size, n_prior
        )

    def keys(self) -> list[list[int]]:
        """Each token's valid selected positions, by a plain loop."""
        size, blocks, per_sequence = self.kv_cache.shape[2], self.kv_cache.shape[0], self.block_table.shape[1]
        found: list[list[int]] = []
        for token, own in enumerate(self.positions.tolist()):
            table = self.block_table[token].tolist()
            row = self.selected[token].tolist()
            found.append(
                [key for key in row if 0 <= key < min(own, size * per_sequence) and 0 <= table[key // size] < blocks]
            )
        return found

    def exact(self, softmax_scale: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """The reference's answer, [n_tokens, hidden]."""
        return reference.attention(
            self.q_absorbed, self.q_pe, self.rows(), self.out_absorb_w, self.o_proj_w, softmax_scale, dtype
        )

    def rounded(self, softmax_scale: float) -> torch.Tensor:
        """The same in torch with the kernel's rounding points."""
        rows = [rows.to(self.kv_row_cur.dtype) for rows in self.rows()]
        return reference.rounded_attention(
            self.q_absorbed, self.q_pe, rows, self.out_absorb_w, self.o_proj_w, softmax_scale
        )

    def rows(self) -> list[torch.Tensor]:
        """Each token's cache rows, its own last."""
        cache, current = self.kv_cache, self.kv_row_cur
        if cache.dtype is torch.uint8:
            cache, current = unpack_rows(cache, self.q_absorbed.shape[-1]), current.double()
        return reference.visible_rows(cache, self.keys(), self.positions.tolist(), self.block_table, current)


def normal_operands(case: Case, seed: int = 0) -> Operands:
    """Standard normal queries and cache and weights of variance 1 / fan-in; keys selected without repetition."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, fan_in: int = 1) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) / fan_in**0.5).to(case.dtype)

    own = [case.context - 1 - 13 * token % ceil_div(case.context, 2) for token in range(case.n_tokens)]
    pages = ceil_div(case.context, case.block_size)
    row = case.rope + case.kv_lora_rank
    chosen = torch.full((case.n_tokens, case.n_prior), -1, dtype=torch.int32)
    for token in range(case.n_tokens):
        count = min(own[token], case.n_prior)
        chosen[token, :count] = torch.randperm(own[token], generator=generator)[:count].to(torch.int32)
    operands = Operands(
        q_absorbed=normal(case.n_tokens, case.n_heads, case.kv_lora_rank),
        q_pe=normal(case.n_tokens, case.n_heads, case.rope),
        kv_cache=normal(case.n_tokens * pages, 1, case.block_size, row),
        kv_row_cur=normal(case.n_tokens, row),
        selected=chosen,
        positions=torch.tensor(own, dtype=torch.int32),
        block_table=torch.randperm(case.n_tokens * pages, generator=generator).reshape(case.n_tokens, pages).int(),
        out_absorb_w=normal(case.n_heads, case.v_head_dim, case.kv_lora_rank, fan_in=case.kv_lora_rank),
        o_proj_w=normal(case.n_heads * case.v_head_dim, case.hidden, fan_in=case.n_heads * case.v_head_dim),
    )
    if case.fp8_cache:
        return operands.replace(kv_cache=pack_rows(operands.kv_cache, case.rope))
    return operands
