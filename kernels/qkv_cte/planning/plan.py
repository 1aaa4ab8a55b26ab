"""The plan of a projection: schedule, memory maps and HBM traffic, exact to the byte."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from common import budget, schedule
from common.budget import BudgetError, MemoryMap, PsumLedger, SbufLedger
from common.checks import require_int, require_type
from common.hardware import Hardware
from common.schedule import Demand, Schedule
from common.tiling import ceil_div, round_up, tiles
from kernels.qkv_cte.device.config import (
    DEQUANT_BUFFERS,
    EARLY_BUFFERS,
    H_TILE_WORDS,
    NO_STAGES,
    ROW_BUFFERS,
    ROW_MX,
    ROW_READS,
    S_TILE,
    SCALE_SLOTS,
    SEED_FLOW,
    Flow,
    IGroup,
    NormRopePass,
    ProjectionConfig,
    SBlock,
    Stages,
)
from kernels.qkv_cte.planning import flow_plan, pass_plan, stage_plan
from kernels.qkv_cte.planning.choice import Choice
from kernels.qkv_cte.planning.dims import Dims

FP32_BYTES = 4


@dataclass(frozen=True)
class HbmBytes:
    """Bytes between HBM and the cores of a launch, by purpose.

    Attributes:
        weights, activations, channels, outputs: of the projection.
        gammas, rope_caches: read by the norm and RoPE pass.
        norm_rope_reads, norm_rope_writes: Q and K, which that pass reads again and writes in place.
        vectors: gammas and betas of the input norm and of single heads, and scales of the KV caches.
        slots, cache_writes: of the KV caches.
        squared_sums: sums of squares.
    """

    weights: int
    activations: int
    channels: int
    outputs: int
    gammas: int = 0
    rope_caches: int = 0
    norm_rope_reads: int = 0
    norm_rope_writes: int = 0
    vectors: int = 0
    slots: int = 0
    cache_writes: int = 0
    squared_sums: int = 0

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
        stages: what is done beside the products.
        row_buffers: rotating buffers for activation rows.
        policy: how it was chosen, "seed" or "best" (`kernels.qkv_cte.planning.policy`).
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
    stages: Stages = NO_STAGES
    row_buffers: int = ROW_BUFFERS
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
            width=self.dims.columns_per_core,
            blocks=blocks,
            resident_h_tiles=chosen.resident_h_tiles,
            chunk_banks=chosen.chunk_buffer_banks,
            chunk_buffers=_chunk_buffers(self.dims, chosen),
            psum_banks=len(self.psum.allocations),
            pieces=flow_plan.pieces(self.dims, self.norm_rope, self.flow, self.stages),
            segment_pieces=flow_plan.segment_pieces(self.dims, self.norm_rope, self.flow),
            output_buffers=flow_plan.outputs(self.dims, self.norm_rope, self.flow, chosen.degree),
            dequantised_buffers=flow_plan.dequantised_buffers(
                self.dims, self.norm_rope, self.flow, chosen, self.stages
            ),
            flow=self.flow,
            addresses={a.name: a.address_bytes for a in self.sbuf.allocations},
            norm_rope=self.norm_rope,
            nbsd_head_dim=self.nbsd_head_dim,
            format=self.dims.format,
            stages=self.stages,
            bank_columns=self.dims.bank_columns,
            row_buffers=self.row_buffers,
            head_buffers=stage_plan.head_buffers(self.dims, self.stages),
            shared_columns=self.dims.width if self.dims.column_unit else 0,
        )

    @property
    def choice(self) -> Choice:
        """What makes this plan again from the same call."""
        return Choice(self.schedule.degree, self.schedule.resident_h_tiles, self.flow)

    def __str__(self) -> str:
        chosen = self.schedule
        lines = [
            f"[{self.dims.tokens_per_core} tokens x {self.dims.hidden}] @ "
            f"[{self.dims.hidden} x {self.dims.columns_per_core}] "
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
    stages: Stages = NO_STAGES,
) -> Plan:
    """Plans a projection.

    Activation rows rotate through two buffers; through one where there is no room for a second.

    Args:
        dims: its sizes.
        hardware: the target; MX formats need one with MX products.
        policy: how the schedule is chosen.
        norm_rope: the pass over Q and K, from `pass_plan.make_pass`; None for none.
        nbsd_head_dim: columns of a head for layout NBSd; 0 for BSD.
        flow: how the work beside the products is spread.
        stages: what is done beside the products.

    Raises:
        TypeError: an argument is not of its type.
        ValueError: the target has no MX products, or the call cannot have the flow.
        BudgetError: not even one S-tile fits, or the pass does not.
    """
    require_type("dims", dims, Dims)
    require_type("hardware", hardware, Hardware)
    if norm_rope is not None:
        require_type("norm_rope", norm_rope, NormRopePass)
    require_int("nbsd_head_dim", nbsd_head_dim, at_least=0)
    require_type("flow", flow, Flow)
    require_type("stages", stages, Stages)
    if dims.format.lanes > 1 and not hardware.supports_mx:
        raise ValueError(f"target is {hardware.name!r}; accepted: 'trn3' (trn2 has no MX matmuls)")
    flow_plan.require_flow(dims, norm_rope, flow, stages)
    norm_rope = flow_plan.with_pieces(norm_rope, flow)
    rows = min(ROW_BUFFERS, dims.s_tiles)
    try:
        return _make(dims, hardware, policy, norm_rope, nbsd_head_dim, flow, stages, rows)
    except BudgetError:
        if rows == 1:
            raise
        return _make(dims, hardware, policy, norm_rope, nbsd_head_dim, flow, stages, 1)


def _make(
    dims: Dims,
    hardware: Hardware,
    policy: Policy,
    norm_rope: NormRopePass | None,
    nbsd_head_dim: int,
    flow: Flow,
    stages: Stages,
    rows: int,
) -> Plan:
    chosen = policy(_demand(dims, hardware, norm_rope, flow, stages, rows))
    sbuf = _sbuf_map(dims, hardware, chosen, norm_rope, flow, stages, rows)
    psum = PsumLedger(hardware)
    for bank in range(max(b.num_s_tiles * b.banks_per_group for b in chosen.blocks)):
        psum.allocate(f"bank_{bank}")
    return Plan(
        dims=dims,
        hardware=hardware,
        schedule=chosen,
        sbuf=sbuf,
        psum=psum.freeze(),
        hbm=_hbm_bytes(dims, chosen, norm_rope, flow, stages),
        minimum=_minimum_bytes(dims, norm_rope, stages),
        norm_rope=norm_rope,
        nbsd_head_dim=nbsd_head_dim,
        flow=flow,
        stages=stages,
        row_buffers=rows,
    )


def _demand(
    dims: Dims, hardware: Hardware, norm_rope: NormRopePass | None, flow: Flow, stages: Stages, rows: int
) -> Demand:
    """What the schedule's rule counts with: every bank goes through a rotating buffer, whatever schedule it will be."""
    buffers = _lasting_buffers(dims, norm_rope, flow) + _fixed_buffers(dims, norm_rope, flow, stages, rows)
    buffers += flow_plan.crossed_buffers(dims, norm_rope, flow)
    fixed = sum(_aligned(size) for _, size in buffers + _dequantised_buffers(dims, _most_dequantised(dims, flow)))
    return Demand(
        hardware=hardware,
        num_s_tiles=dims.s_tiles,
        num_i_banks=dims.i_banks,
        num_h_tiles=dims.h_tiles,
        fixed_bytes=fixed,
        bytes_per_s_tile=sum(_aligned(size) for _, size in _s_tile_buffers(dims, norm_rope, flow, stages)),
        resident_weight_tile_bytes=_aligned(_weight_bytes(dims) * dims.columns_per_core),
        chunk_weight_bytes_per_bank=_aligned(_weight_bytes(dims) * dims.bank_columns),
        chunk_weight_buffers=flow.chunk_buffers,
    )


def _weight_bytes(dims: Dims) -> int:
    """Of a column in a partition."""
    return dims.format.lanes * dims.format.weight_bytes


def _aligned(size_bytes: int) -> int:
    return round_up(size_bytes, budget.SBUF_ALIGNMENT_BYTES)


def _lasting_buffers(dims: Dims, norm_rope: NormRopePass | None, flow: Flow) -> list[tuple[str, int]]:
    """Names and bytes per partition of what lives from the first S-block to the end of the pass."""
    return pass_plan.lasting_buffers(norm_rope) + flow_plan.lasting_buffers(dims, norm_rope, flow)


def _fixed_buffers(
    dims: Dims, norm_rope: NormRopePass | None, flow: Flow, stages: Stages, rows: int
) -> list[tuple[str, int]]:
    """The same of what every schedule allocates for the whole projection, beside the dequantised banks."""
    width = dims.columns_per_core
    buffers = []
    if dims.format.name == ROW_MX:
        buffers = [("channel_scale", FP32_BYTES * width), ("mx_scale", dims.bank_columns)]
    elif dims.format.lanes > 1:
        buffers = [("mx_scale", width * ceil_div(dims.h_tiles, SCALE_SLOTS))]
    if dims.bias_bytes:
        buffers.append(("bias", dims.bias_bytes * width))
    buffers += stage_plan.row_buffers(dims, stages, rows) + stage_plan.fixed_buffers(dims, stages)
    if flow.early:
        return buffers + flow_plan.gamma_buffers(norm_rope, flow)
    return buffers + pass_plan.projection_buffers(norm_rope)


def _most_dequantised(dims: Dims, flow: Flow) -> int:
    """Rotating fp32 buffers of evictions where there are enough evictions."""
    evictions = dims.s_tiles * dims.i_banks
    if flow.early:
        return min(EARLY_BUFFERS, evictions)
    if dims.format.name == ROW_MX and (dims.bias_bytes or flow.scalar_every):
        return min(DEQUANT_BUFFERS, evictions)
    return 0


def _dequantised_buffers(dims: Dims, count: int) -> list[tuple[str, int]]:
    return [(f"dequantised_{i}", FP32_BYTES * min(dims.bank_columns, dims.columns_per_core)) for i in range(count)]


def _s_tile_buffers(dims: Dims, norm_rope: NormRopePass | None, flow: Flow, stages: Stages) -> list[tuple[str, int]]:
    """The same for each S-tile of a block."""
    activation_bytes = dims.format.lanes * dims.format.stationary_bytes
    return [
        ("output", dims.format.output_bytes * dims.columns_per_core),
        *flow_plan.s_tile_buffers(norm_rope, flow),
        ("activations", activation_bytes * dims.h_tiles * S_TILE),
        *([("row_scale", FP32_BYTES)] if dims.format.name == ROW_MX else []),
        *stage_plan.s_tile_buffers(dims, stages),
    ]


def _sbuf_map(
    dims: Dims,
    hardware: Hardware,
    chosen: Schedule,
    norm_rope: NormRopePass | None,
    flow: Flow,
    stages: Stages,
    rows: int,
) -> MemoryMap:
    ledger = SbufLedger(hardware)
    _allocate(ledger, _lasting_buffers(dims, norm_rope, flow))
    with ledger.scope("projection"):
        _allocate(ledger, _fixed_buffers(dims, norm_rope, flow, stages, rows))
        _allocate_blocks(ledger, dims, chosen, norm_rope, flow, stages)
    if norm_rope is not None and flow.early:
        with ledger.scope("norm and RoPE pass"):
            _allocate(ledger, pass_plan.inv_rms_buffers(norm_rope) + flow_plan.pass_buffers(dims, norm_rope, flow))
    elif norm_rope is not None:
        with ledger.scope("norm and RoPE pass"):
            _allocate(ledger, pass_plan.kept_buffers(norm_rope))
            _allocate(ledger, pass_plan.rotating_buffers(dims, norm_rope))
    return ledger.freeze()


def _allocate(ledger: SbufLedger, buffers: list[tuple[str, int]]) -> None:
    for name, size in buffers:
        ledger.allocate(name, size)


def _allocate_blocks(
    ledger: SbufLedger, dims: Dims, chosen: Schedule, norm_rope: NormRopePass | None, flow: Flow, stages: Stages
) -> None:
    _allocate(ledger, flow_plan.crossed_buffers(dims, norm_rope, flow))
    dequantised = flow_plan.dequantised_buffers(dims, norm_rope, flow, chosen, stages)
    _allocate(ledger, _dequantised_buffers(dims, dequantised))
    for name, size in _s_tile_buffers(dims, norm_rope, flow, stages):
        count = chosen.degree
        if name == "output":
            count = flow_plan.outputs(dims, norm_rope, flow, chosen.degree)
        for tile in range(count):
            ledger.allocate(f"{name}_{tile}", size)
    if chosen.resident_h_tiles:
        ledger.allocate("resident_weights", chosen.resident_h_tiles * _weight_bytes(dims) * dims.columns_per_core)
    chunk_columns = min(chosen.chunk_buffer_banks * dims.bank_columns, dims.columns_per_core)
    for buffer in range(_chunk_buffers(dims, chosen)):
        ledger.allocate(f"weight_chunk_{buffer}", _weight_bytes(dims) * chunk_columns)


def _chunk_buffers(dims: Dims, chosen: Schedule) -> int:
    """Buffers that streamed weights rotate through. The schedule's rule reserves all; a lone chunk needs one."""
    streamed_h_tiles = dims.h_tiles - chosen.resident_h_tiles
    return min(
        chosen.demand.chunk_weight_buffers, streamed_h_tiles * sum(len(block.i_groups) for block in chosen.blocks)
    )


def _minimum_bytes(dims: Dims, norm_rope: NormRopePass | None, stages: Stages) -> HbmBytes:
    """Everything once: each core reads every weight and row of its own, each token is read and written."""
    return HbmBytes(
        weights=dims.hidden * dims.width * dims.format.weight_bytes * dims.weight_copies + stage_plan.scale_bytes(dims),
        activations=stage_plan.activation_bytes(dims, stages),
        channels=_channel_bytes(dims),
        outputs=dims.tokens * dims.width * dims.format.output_bytes,
        gammas=pass_plan.gamma_bytes(dims, norm_rope),
        rope_caches=pass_plan.cache_bytes(dims, norm_rope) + stage_plan.rope_bytes(dims, stages),
        vectors=stage_plan.vector_bytes(dims, stages),
        slots=stage_plan.slot_bytes(dims, stages),
        cache_writes=stage_plan.cache_bytes(dims, stages),
        squared_sums=stage_plan.sum_bytes(dims, stages),
    )


def _channel_bytes(dims: Dims) -> int:
    """Column scales and bias, once for each core that has these columns."""
    scale_bytes = FP32_BYTES if dims.format.name == ROW_MX else 0
    return (scale_bytes + dims.bias_bytes) * dims.width * dims.weight_copies


def _hbm_bytes(dims: Dims, chosen: Schedule, norm_rope: NormRopePass | None, flow: Flow, stages: Stages) -> HbmBytes:
    """Traffic of all cores: resident H-tiles are read once per core, the others once per S-block."""
    weights = sum(
        h_tile.size * (1 if h_tile.index < chosen.resident_h_tiles else len(chosen.blocks))
        for h_tile in tiles(dims.hidden, H_TILE_WORDS * dims.format.lanes)
    )
    reread = flow_plan.reread_bytes(dims, norm_rope, flow) if flow.early else pass_plan.reread_bytes(dims, norm_rope)
    return dataclasses.replace(
        _minimum_bytes(dims, norm_rope, stages),
        weights=weights * dims.width * dims.format.weight_bytes * dims.weight_copies + stage_plan.scale_bytes(dims),
        channels=ROW_READS * _channel_bytes(dims),
        gammas=ROW_READS * pass_plan.gamma_bytes(dims, norm_rope),
        vectors=ROW_READS * stage_plan.vector_bytes(dims, stages),
        norm_rope_reads=reread,
        norm_rope_writes=reread,
    )
