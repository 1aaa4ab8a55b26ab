"""What the bench does with a whole call, norm and RoPE included: chooses a plan, predicts its time, checks values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

import nkisim
from common.hardware import Hardware
from devicetime.predict import predict as devicetime_predict
from devicetime.timeline import Timeline
from kernels.qkv_cte.device.kernel import row_mx_projection
from kernels.qkv_cte.oracle import norm_rope_cases
from kernels.qkv_cte.oracle.norm_rope_cases import NormRopeCase
from kernels.qkv_cte.oracle.norm_rope_compare import MAX_ULPS, SegmentErrors, segment_errors
from kernels.qkv_cte.planning import policy
from kernels.qkv_cte.planning.plan import Plan
from tools.timeline_report import summary

ENGINES = ("Tensor", "Vector", "Scalar", "GpSimd", "Sync")

VALUES_SEQLEN = 258
"""Tokens for which values are computed: a ragged S-tile on each core."""


@dataclass(frozen=True)
class CallResult:
    """What was measured.

    Attributes:
        call: the call of one rank.
        plan: as the policy chose it.
        ns, seed_ns, naive_ns: predicted times of all ranks of its group, all-reduce included: of it, of the seed's,
            and of that with all evictions and all other element-wise work on the Vector Engine.
        products_busy: share of the time from the first to the last product that the Tensor Engine is busy.
        busy: share of the whole time that each engine is busy, cores averaged.
        segments: errors by segment on fewer tokens; empty where none were computed.
    """

    call: NormRopeCase
    plan: Plan
    ns: float
    seed_ns: float
    naive_ns: float
    products_busy: float
    busy: dict[str, float]
    segments: tuple[SegmentErrors, ...]

    @property
    def accepted(self) -> bool:
        """Whether all errors computed are within tolerance."""
        return all(errors.max_ulps <= MAX_ULPS for errors in self.segments)


def wan22() -> list[NormRopeCase]:
    """The calls of Wan2.2."""
    return list(norm_rope_cases.WAN22)


def run(call: NormRopeCase, hardware: Hardware, chosen_by: str, *, values: bool) -> CallResult:
    """Chooses a plan, predicts, and computes values on fewer tokens where asked.

    Raises:
        ValueError: the target has no MX products.
        BudgetError: the call fits under no schedule.
    """
    alone = dataclasses.replace(call, groups=None)
    arguments = (call.case.dims, hardware, alone.norm_rope, call.case.head_dim if call.nbsd else 0)
    made = seed = policy.seed(*arguments)
    if chosen_by == "best":
        made = policy.best(seed, time_of=lambda other: predict(other).total_ns)
    timeline = predict(made, call.groups)
    return CallResult(
        call=call,
        plan=made,
        ns=timeline.total_ns,
        seed_ns=predict(seed, call.groups).total_ns,
        naive_ns=predict(policy.seed(*arguments, one_engine=True), call.groups).total_ns,
        products_busy=products_busy(timeline),
        busy={name: summary.busy_share(timeline, name) for name in ENGINES},
        segments=tuple(_values(alone, made)) if values else (),
    )


def predict(made: Plan, groups: norm_rope_cases.Groups = None) -> Timeline:
    """When each instruction of a plan would run: on one rank that holds all heads, or on all ranks of `groups`."""
    if groups is not None and made.norm_rope is not None:
        made = dataclasses.replace(made, norm_rope=dataclasses.replace(made.norm_rope, replica_groups=groups))
    ranks = 1 if groups is None else sum(map(len, groups))
    options = nkisim.Options(target=made.hardware.name, numerics=False)
    operands = [norm_rope_cases.without_values(made) for _ in range(ranks)]
    return devicetime_predict(nkisim.run_ranks(row_mx_projection[made.dims.cores], operands, options), made.hardware)


def products_busy(timeline: Timeline) -> float:
    """Share of the time from the first to the last product that the Tensor Engine is busy, cores averaged."""
    shares = []
    for number, track in enumerate(timeline.tracks):
        if track.short_name == "Tensor":
            events = np.flatnonzero(timeline.track == number)
            products = [event for event in events if timeline.record_of(int(event)).op == "nc_matmul_mx"]
            first, last = timeline.start_ns[products].min(), timeline.end_ns[products].max()
            inside = events[(timeline.start_ns[events] >= first) & (timeline.end_ns[events] <= last)]
            shares.append(float((timeline.end_ns[inside] - timeline.start_ns[inside]).sum() / (last - first)))
    return sum(shares) / len(shares)


def _values(call: NormRopeCase, made: Plan) -> list[SegmentErrors]:
    """Errors of a shorter call under the plan's flow."""
    case = dataclasses.replace(call.case, seqlen=min(VALUES_SEQLEN, call.case.seqlen))
    short = dataclasses.replace(call, case=case)
    tiles = case.dims.s_tiles
    kept = min(made.flow.kept_tiles, tiles - 1) if made.flow.kept_tiles < made.dims.s_tiles else tiles
    loads = min(made.flow.pass_buffers, tiles - kept)
    short = dataclasses.replace(short, flow=dataclasses.replace(made.flow, kept_tiles=kept, pass_buffers=loads))
    operands = norm_rope_cases.normal_operands(short)
    options = nkisim.Options(target=made.hardware.name)
    finished = nkisim.run(row_mx_projection[case.lnc], *operands.arguments(short.plan), options=options)
    return segment_errors(short, operands, finished.outputs)
