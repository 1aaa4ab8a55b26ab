"""The plan of a decode step: softmax groups, key buffers, memory map and HBM traffic, exact to the byte."""

from __future__ import annotations

from dataclasses import dataclass

from common.budget import BudgetError, MemoryMap, SbufLedger
from common.hardware import Hardware
from kernels.mla_decode.config import (
    CURRENT_BUFFERS,
    KEY_MAJOR_BUFFERS,
    P_MAX,
    WEIGHT_BUFFERS,
    AttentionConfig,
)
from kernels.mla_decode.dims import BANK_FP32, Dims

FP32_BYTES = INT32_BYTES = 4

LARGEST_GROUP = 4
"""Tokens of a softmax group. Its fixed costs are the transposes and products that cross partitions, four small
instructions; four tokens share them, and more would only hold more keys."""

LARGEST_PASS_BANKS = 7
"""PSUM banks of an o-projection pass; 7 x 512 columns cover half of DeepSeek's 7168."""


@dataclass(frozen=True)
class HbmBytes:
    """Bytes between HBM and the core, by purpose."""

    keys: int
    tables: int
    queries: int
    weights: int
    output: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.keys + self.tables + self.queries + self.weights + self.output


@dataclass(frozen=True)
class Plan:
    """How a decode step's attention runs.

    Attributes:
        dims, hardware: what it was made for.
        group_tokens: tokens that share a softmax.
        key_buffers: tokens whose rows are in SBUF at once.
        pass_columns: columns of an o-projection pass.
        sbuf: every SBUF allocation.
        hbm: bytes moved, when no slot is skipped; each selected row, weight and result once.
    """

    dims: Dims
    hardware: Hardware
    group_tokens: int
    key_buffers: int
    pass_columns: int
    sbuf: MemoryMap
    hbm: HbmBytes

    def config(self, softmax_scale: float) -> AttentionConfig:
        """The plan as the kernel takes it."""
        dims = self.dims
        return AttentionConfig(
            n_tokens=dims.n_tokens,
            n_heads=dims.n_heads,
            n_prior=dims.n_prior,
            kv_lora_rank=dims.kv_lora_rank,
            rope=dims.rope,
            v_head_dim=dims.v_head_dim,
            hidden=dims.hidden,
            softmax_scale=softmax_scale,
            group_tokens=self.group_tokens,
            key_buffers=self.key_buffers,
            pass_columns=self.pass_columns,
            addresses={a.name: a.address_bytes for a in self.sbuf.allocations},
        )

    def __str__(self) -> str:
        lines = [
            f"{self.dims.n_tokens} tokens, {self.dims.n_heads} heads, {self.dims.n_prior} keys on {self.hardware.name}",
            f"softmax groups of {self.group_tokens}, {self.key_buffers} key buffers, "
            f"o-projection in passes of {self.pass_columns} columns",
            "",
            str(self.sbuf),
        ]
        return "\n".join(lines)


def make(dims: Dims, hardware: Hardware) -> Plan:
    """Plans a step: the largest softmax group that fits, with twice as many key buffers where they fit too.

    Raises:
        BudgetError: not even groups of one token fit; the last attempt's message names what did not.
    """
    largest = max(1, min(LARGEST_GROUP, dims.n_tokens, P_MAX // dims.n_heads))
    refusal: BudgetError | None = None
    for group in range(largest, 0, -1):
        for buffers in sorted({min(2 * group, dims.n_tokens), group}, reverse=True):
            try:
                return _plan(dims, hardware, group, buffers)
            except BudgetError as error:
                refusal = error
    assert refusal is not None
    raise refusal


def _plan(dims: Dims, hardware: Hardware, group: int, key_buffers: int) -> Plan:
    pass_columns = min(dims.hidden, LARGEST_PASS_BANKS * BANK_FP32)
    return Plan(
        dims=dims,
        hardware=hardware,
        group_tokens=group,
        key_buffers=key_buffers,
        pass_columns=pass_columns,
        sbuf=_sbuf_map(dims, hardware, group, key_buffers, pass_columns),
        hbm=_hbm_bytes(dims),
    )


def _sbuf_map(dims: Dims, hardware: Hardware, group: int, key_buffers: int, pass_columns: int) -> MemoryMap:
    """Lasting buffers first; setup, attention and tails then take turns on the rest."""
    item, tiles, latents = dims.itemsize, dims.key_tiles, dims.latent_tiles
    tokens, heads = dims.n_tokens, dims.n_heads
    columns = group * heads
    ledger = SbufLedger(hardware)
    ledger.allocate("index", INT32_BYTES * tokens * tiles)
    ledger.allocate("keep", INT32_BYTES * tokens * tiles)
    ledger.allocate("identity", FP32_BYTES * P_MAX)
    ledger.allocate("ones", FP32_BYTES * P_MAX)
    ledger.allocate("q_absorbed", item * latents * tokens * heads)
    ledger.allocate("q_pe", item * tokens * heads)
    ledger.allocate("current_features", item * (latents + 1) * tokens)
    ledger.allocate("latent_features", item * latents * heads * tokens)
    with ledger.scope("setup"):
        ledger.allocate("key_pos", FP32_BYTES * tokens * tiles)
        ledger.allocate("own_positions", FP32_BYTES * tokens)
        ledger.allocate("current_rows", item * dims.row_width)
    with ledger.scope("attention"):
        _rotating(ledger, "rows", key_buffers, item * tiles * dims.row_width)
        _rotating(ledger, "current", CURRENT_BUFFERS, item * dims.row_width)
        _rotating(ledger, "features", KEY_MAJOR_BUFFERS, item * (latents + 1) * tiles * P_MAX)
        ledger.allocate("scores", FP32_BYTES * group * (tiles + 1) * heads)
        ledger.allocate("weights", item * group * (tiles + 1) * heads)
        ledger.allocate("partial", FP32_BYTES * columns)
        ledger.allocate("group_column", FP32_BYTES)
        ledger.allocate("diagonal", FP32_BYTES * columns)
        ledger.allocate("latent", item * dims.kv_lora_rank)
        ledger.allocate("inverse_sum", FP32_BYTES)
    with ledger.scope("tails"):
        ledger.allocate("values", item * heads * tokens)
        _rotating(ledger, "absorb", WEIGHT_BUFFERS, item * dims.kv_lora_rank)
        _rotating(ledger, "absorb_features", WEIGHT_BUFFERS, item * latents * dims.v_head_dim)
        _rotating(ledger, "o_proj", WEIGHT_BUFFERS, item * pass_columns)
        ledger.allocate("output", item * pass_columns)
    return ledger.freeze()


def _rotating(ledger: SbufLedger, name: str, count: int, size_bytes: int) -> None:
    for i in range(count):
        ledger.allocate(f"{name}_{i}", size_bytes)


def _hbm_bytes(dims: Dims) -> HbmBytes:
    item, slots = dims.itemsize, dims.key_tiles * P_MAX
    rows = dims.n_tokens * slots + 2 * dims.n_tokens
    return HbmBytes(
        keys=rows * dims.row_width * item,
        tables=dims.n_tokens * slots * (INT32_BYTES + FP32_BYTES) + dims.n_tokens * P_MAX * INT32_BYTES,
        queries=dims.n_tokens * dims.n_heads * (dims.kv_lora_rank + dims.rope) * item,
        weights=dims.n_heads * dims.v_head_dim * (dims.kv_lora_rank + dims.hidden) * item,
        output=dims.n_tokens * dims.hidden * item,
    )
