"""The plan of a projection: schedule, memory maps and HBM traffic, exact to the byte."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from common import budget, schedule
from common.budget import MemoryMap, PsumLedger, SbufLedger
from common.hardware import Hardware
from common.schedule import Demand, Schedule
from common.tiling import round_up, tiles
from kernels.qkv_cte import flow_plan, pass_plan
from kernels.qkv_cte.config import (
    BANK_COLUMNS,
    DEQUANT_BUFFERS,
    EARLY_BUFFERS,
    H_PACK,
    H_TILE_WORDS,
    ROW_BUFFERS,
    ROW_READS,
    S_TILE,
    SEED_FLOW,
    Flow,
    IGroup,
    NormRopePass,
    ProjectionConfig,
    SBlock,
)
from kernels.qkv_cte.dims import Dims

FP32_BYTES, BF16_BYTES = 4, 2
ROW_TAIL_BYTES = 4


@dataclass(frozen=True)
class HbmBytes:
    """Bytes between HBM and the cores of a launch, by purpose.

    Attributes:
        weights, activations, channels, outputs: of the projection.
        gammas, rope_caches: read by the norm and RoPE pass.
        norm_rope_reads, norm_rope_writes: Q and K, which that pass reads again and writes in place.
    """

    weights: int
    activations: int
    channels: int
    outputs: int
    gammas: int = 0
    rope_caches: int = 0
    norm_rope_reads: int = 0
    norm_rope_writes: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(dataclasses.astuple(self))


@dataclass(frozen=True)
class Plan:
    """How a projection runs.

    Attributes:
        dims, hardware: what it was made for.
        schedule: degree, I-groups and prefetch of each core.
        sbuf, psum: every allocation of a core.
        hbm: bytes moved by all cores.
        minimum: bytes that no schedule avoids: each core reads every weight once.
        norm_rope: the pass over Q and K after the projection, if any.
        nbsd_head_dim: columns of a head for layout NBSd; 0 for BSD.
        flow: how the work beside the products is spread over time and engines.
        policy: how it was chosen, "seed" or "best" (`kernels.qkv_cte.policy`).
        policy_why: what the policy says for it.
    """

    dims: Dims
    hardware: Hardware
    schedule: Schedule
    sbuf: MemoryMap
    psum: MemoryMap
    hbm: HbmBytes
    minimum: HbmBytes
    norm_rope: NormRopePass | None = None
    nbsd_head_dim: int = 0
    flow: Flow = SEED_FLOW
    policy: str = "seed"
    policy_why: tuple[str, ...] = ()

    @property
    def config(self) -> ProjectionConfig:
        """The plan as the kernel takes it."""
        chosen = self.schedule
        blocks = tuple(
            SBlock(b.first_s_tile, b.num_s_tiles, tuple(IGroup(g.start, g.size) for g in b.i_groups))
            for b in chosen.blocks
        )
        return ProjectionConfig(
            tokens_per_core=self.dims.tokens_per_core,
            hidden=self.dims.hidden,
            width=self.dims.width,
            blocks=blocks,
            resident_h_tiles=chosen.resident_h_tiles,
            chunk_banks=chosen.chunk_buffer_banks,
            chunk_buffers=_chunk_buffers(self.dims, chosen),
            psum_banks=len(self.psum.allocations),
            pieces=flow_plan.pieces(self.dims, self.norm_rope, self.flow),
            segment_pieces=flow_plan.segment_pieces(self.dims, self.norm_rope, self.flow),
            output_buffers=flow_plan.outputs(self.dims, self.norm_rope, self.flow, chosen.degree),
            dequantised_buffers=flow_plan.dequantised_buffers(self.dims, self.norm_rope, self.flow, chosen),
            flow=self.flow,
            addresses={a.name: a.address_bytes for a in self.sbuf.allocations},
            norm_rope=self.norm_rope,
            nbsd_head_dim=self.nbsd_head_dim,
        )

    def __str__(self) -> str:
        chosen = self.schedule
        lines = [
            f"[{self.dims.tokens_per_core} tokens x {self.dims.hidden}] @ [{self.dims.hidden} x {self.dims.width}] "
            f"per core of {self.hardware.name}, {self.dims.cores} cores",
            f"degree {chosen.degree}, {chosen.banks_per_group} banks per group, {chosen.num_i_groups} I-groups, "
            f"{len(chosen.blocks)} S-blocks, {chosen.prefetch} prefetch",
            *(f"  {reason}" for reason in chosen.why),
            f"policy {self.policy}",
            *(f"  {reason}" for reason in self.policy_why),
            "",
            str(self.sbuf),
            "",
            str(self.psum),
        ]
        return "\n".join(lines)


Policy = Callable[[Demand], Schedule]
"""Makes a schedule for a demand; `common.schedule.choose` is the seed's."""


def make(
    dims: Dims,
    hardware: Hardware,
    policy: Policy = schedule.choose,
    norm_rope: NormRopePass | None = None,
    nbsd_head_dim: int = 0,
    flow: Flow = SEED_FLOW,
) -> Plan:
    """Plans a projection.

    Args:
        dims: its sizes.
        hardware: the target; the kernel needs MX products.
        policy: how the schedule is chosen.
        norm_rope: the pass over Q and K, from `pass_plan.make_pass`; None for none.
        nbsd_head_dim: columns of a head for layout NBSd; 0 for BSD.
        flow: how the work beside the products is spread.

    Raises:
        ValueError: the target has no MX products, or the call cannot have the flow.
        BudgetError: not even one S-tile fits, or the pass does not.
    """
    if not hardware.supports_mx:
        raise ValueError(
            f"target is {hardware.name!r}; accepted: 'trn3', the MX products of this kernel exist from there on"
        )
    flow_plan.require_flow(dims, norm_rope, flow)
    norm_rope = flow_plan.with_pieces(norm_rope, flow)
    chosen = policy(_demand(dims, hardware, norm_rope, flow))
    sbuf = _sbuf_map(dims, hardware, chosen, norm_rope, flow)
    psum = PsumLedger(hardware)
    for bank in range(max(b.num_s_tiles * b.banks_per_group for b in chosen.blocks)):
        psum.allocate(f"bank_{bank}")
    return Plan(
        dims=dims,
        hardware=hardware,
        schedule=chosen,
        sbuf=sbuf,
        psum=psum.freeze(),
        hbm=_hbm_bytes(dims, chosen, norm_rope, flow),
        minimum=_minimum_bytes(dims, norm_rope),
        norm_rope=norm_rope,
        nbsd_head_dim=nbsd_head_dim,
        flow=flow,
    )


def _demand(dims: Dims, hardware: Hardware, norm_rope: NormRopePass | None, flow: Flow) -> Demand:
    """What the schedule's rule counts with: every bank goes through a rotating buffer, whatever schedule it will be."""
    buffers = _lasting_buffers(dims, norm_rope, flow) + _fixed_buffers(dims, norm_rope, flow)
    buffers += flow_plan.crossed_buffers(dims, norm_rope, flow)
    fixed = sum(_aligned(size) for _, size in buffers + _dequantised_buffers(dims, _most_dequantised(dims, flow)))
    return Demand(
        hardware=hardware,
        num_s_tiles=dims.s_tiles,
        num_i_banks=dims.i_banks,
        num_h_tiles=dims.h_tiles,
        fixed_bytes=fixed,
        bytes_per_s_tile=sum(_aligned(size) for _, size in _s_tile_buffers(dims, norm_rope, flow)),
        resident_weight_tile_bytes=H_PACK * dims.width,
        chunk_weight_bytes_per_bank=H_PACK * BANK_COLUMNS,
        chunk_weight_buffers=flow.chunk_buffers,
    )


def _aligned(size_bytes: int) -> int:
    return round_up(size_bytes, budget.SBUF_ALIGNMENT_BYTES)


def _lasting_buffers(dims: Dims, norm_rope: NormRopePass | None, flow: Flow) -> list[tuple[str, int]]:
    """Names and bytes per partition of what lives from the first S-block to the end of the pass."""
    return pass_plan.lasting_buffers(norm_rope) + flow_plan.lasting_buffers(dims, norm_rope, flow)


def _fixed_buffers(dims: Dims, norm_rope: NormRopePass | None, flow: Flow) -> list[tuple[str, int]]:
    """The same of what every schedule allocates for the whole projection, beside the dequantised banks."""
    buffers = [("channel_scale", FP32_BYTES * dims.width), ("mx_scale", BANK_COLUMNS)]
    if dims.bias_bytes:
        buffers.append(("bias", dims.bias_bytes * dims.width))
    buffers += [(f"rows_{i}", dims.hidden + ROW_TAIL_BYTES) for i in range(min(ROW_BUFFERS, dims.s_tiles))]
    if flow.early:
        return buffers + flow_plan.gamma_buffers(norm_rope, flow)
    return buffers + pass_plan.projection_buffers(norm_rope)


def _most_dequantised(dims: Dims, flow: Flow) -> int:
    """Rotating fp32 buffers of evictions where there are enough evictions."""
    if not (dims.bias_bytes or flow.early or flow.scalar_every):
        return 0
    return min(EARLY_BUFFERS if flow.early else DEQUANT_BUFFERS, dims.s_tiles * dims.i_banks)


def _dequantised_buffers(dims: Dims, count: int) -> list[tuple[str, int]]:
    return [(f"dequantised_{i}", FP32_BYTES * min(BANK_COLUMNS, dims.width)) for i in range(count)]


def _s_tile_buffers(dims: Dims, norm_rope: NormRopePass | None, flow: Flow) -> list[tuple[str, int]]:
    """The same for each S-tile of a block."""
    return [
        ("output", BF16_BYTES * dims.width),
        *flow_plan.s_tile_buffers(norm_rope, flow),
        ("activations", FP32_BYTES * dims.h_tiles * S_TILE),
        ("row_scale", FP32_BYTES),
    ]


def _sbuf_map(
    dims: Dims, hardware: Hardware, chosen: Schedule, norm_rope: NormRopePass | None, flow: Flow
) -> MemoryMap:
    ledger = SbufLedger(hardware)
    _allocate(ledger, _lasting_buffers(dims, norm_rope, flow))
    with ledger.scope("projection"):
        _allocate_projection(ledger, dims, chosen, norm_rope, flow)
    if norm_rope is not None and flow.early:
        with ledger.scope("norm and RoPE pass"):
            _allocate(ledger, pass_plan.inv_rms_buffers(norm_rope) + flow_plan.pass_buffers(norm_rope, flow))
    elif norm_rope is not None:
        with ledger.scope("norm and RoPE pass"):
            _allocate(ledger, pass_plan.kept_buffers(norm_rope))
            _allocate(ledger, pass_plan.rotating_buffers(dims, norm_rope))
    return ledger.freeze()


def _allocate(ledger: SbufLedger, buffers: list[tuple[str, int]]) -> None:
    for name, size in buffers:
        ledger.allocate(name, size)


def _allocate_projection(
    ledger: SbufLedger, dims: Dims, chosen: Schedule, norm_rope: NormRopePass | None, flow: Flow
) -> None:
    _allocate(ledger, _fixed_buffers(dims, norm_rope, flow))
    _allocate(ledger, flow_plan.crossed_buffers(dims, norm_rope, flow))
    _allocate(ledger, _dequantised_buffers(dims, flow_plan.dequantised_buffers(dims, norm_rope, flow, chosen)))
    for name, size in _s_tile_buffers(dims, norm_rope, flow):
        count = chosen.degree
        if name == "output":
            count = flow_plan.outputs(dims, norm_rope, flow, chosen.degree)
        for tile in range(count):
            ledger.allocate(f"{name}_{tile}", size)
    if chosen.resident_h_tiles:
        ledger.allocate("resident_weights", chosen.resident_h_tiles * H_PACK * dims.width)
    for buffer in range(_chunk_buffers(dims, chosen)):
        ledger.allocate(f"weight_chunk_{buffer}", chosen.chunk_buffer_bytes)


def _chunk_buffers(dims: Dims, chosen: Schedule) -> int:
    """Buffers that streamed weights rotate through. The schedule's rule reserves all; a lone chunk needs one."""
    streamed_h_tiles = dims.h_tiles - chosen.resident_h_tiles
    return min(
        chosen.demand.chunk_weight_buffers, streamed_h_tiles * sum(len(block.i_groups) for block in chosen.blocks)
    )


def _minimum_bytes(dims: Dims, norm_rope: NormRopePass | None) -> HbmBytes:
    """Everything once: each core reads every weight and row, each token is read and written."""
    return HbmBytes(
        weights=dims.hidden * dims.width * dims.cores,
        activations=dims.tokens * (dims.hidden + ROW_TAIL_BYTES),
        channels=(FP32_BYTES + dims.bias_bytes) * dims.width * dims.cores,
        outputs=dims.tokens * dims.width * BF16_BYTES,
        gammas=pass_plan.gamma_bytes(dims, norm_rope),
        rope_caches=pass_plan.cache_bytes(dims, norm_rope),
    )


def _hbm_bytes(dims: Dims, chosen: Schedule, norm_rope: NormRopePass | None, flow: Flow) -> HbmBytes:
    """Traffic of all cores: resident H-tiles are read once per core, the others once per S-block."""
    weights = sum(
        h_tile.size * dims.width * (1 if h_tile.index < chosen.resident_h_tiles else len(chosen.blocks))
        for h_tile in tiles(dims.hidden, H_TILE_WORDS * H_PACK)
    )
    channels = (FP32_BYTES + dims.bias_bytes) * dims.width
    reread = flow_plan.reread_bytes(dims, norm_rope, flow) if flow.early else pass_plan.reread_bytes(dims, norm_rope)
    return HbmBytes(
        weights=weights * dims.cores,
        activations=dims.tokens * (dims.hidden + ROW_TAIL_BYTES),
        channels=ROW_READS * channels * dims.cores,
        outputs=dims.tokens * dims.width * BF16_BYTES,
        gammas=ROW_READS * pass_plan.gamma_bytes(dims, norm_rope),
        rope_caches=pass_plan.cache_bytes(dims, norm_rope),
        norm_rope_reads=reread,
        norm_rope_writes=reread,
    )
