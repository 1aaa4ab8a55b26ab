"""Policies: how the plan of a call is chosen.

`seed` is the rule of the kernel's published reference ("seed" in the root README's terms, no random seed): degree and N
of `common.schedule.choose`, and a second pass that reads Q and K again. `best` searches for the plan of least predicted
time. It varies
    early      norm and RoPE in the evictions where banks hold whole heads,
    degree     and with it the split of the PSUM banks between S-tiles and I-groups,
    N          what the rule keeps resident at that degree, or nothing, so that weights arrive in the order of use,
    chunks     how far ahead streamed weights are loaded,
    kept       Q and K of as many S-tiles in SBUF as the plan leaves room for, or of all,
and last, around the plan found, which banks the Scalar Engine evicts. A plan is not tried where the time of its
products or of its HBM bytes alone is beyond the best time so far, nor where it reads too much: HBM is its neighbours',
too, even where reads hide behind products. Where the seed's plan reads each weight once, so does every plan tried;
elsewhere one may move a tenth more bytes in all.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator

from common import schedule
from common.budget import BudgetError
from common.checks import require_type
from common.hardware import Hardware
from kernels.qkv_cte.device.config import CHUNK_BUFFERS, SEED_FLOW, Flow, NormRopePass
from kernels.qkv_cte.planning import flow_plan, plan
from kernels.qkv_cte.planning.dims import Dims
from kernels.qkv_cte.planning.plan import Plan

DEEP_CHUNK_BUFFERS = (8, 4)
"""Chunk buffers that hide the latency of a DMA, about three chunks long; the first that fits is tried."""

PASS_BUFFERS = 8
"""Rows of the pass in flight: of a few microseconds each, load, multiplication and store overlap."""

DEGREES = (1, 2, 4, 8)
"""Tried beside the seed's and a single S-block."""

SCALAR_EVERY = (0, 2, 3, 4)

MOST_BYTES = 1.1
"""HBM bytes of a plan over the seed's, where that reads weights more than once."""

TimeOf = Callable[[Plan], float]
"""Predicted ns of a plan."""


def seed(
    dims: Dims,
    hardware: Hardware,
    norm_rope: NormRopePass | None = None,
    nbsd_head_dim: int = 0,
    *,
    one_engine: bool = False,
) -> Plan:
    """The rule of the published reference: largest degree with all weights resident, else as many as fit.

    Args:
        dims, hardware, norm_rope, nbsd_head_dim: as for `plan.make`.
        one_engine: the Vector Engine does all evictions and all element-wise work.

    Raises:
        TypeError, ValueError, BudgetError: as `plan.make`.
    """
    flow = dataclasses.replace(SEED_FLOW, one_engine=one_engine)
    return plan.make(dims, hardware, norm_rope=norm_rope, nbsd_head_dim=nbsd_head_dim, flow=flow)


def best(first: Plan, *, time_of: TimeOf, announce: Callable[[str], object] = str) -> Plan:
    """The plan of least predicted time for a call; deterministic if `time_of` is.

    Args:
        first: the call's plan by the seed's rule, from `seed` or `entries.PreparedCall.plan`; one of those tried.
        time_of: predicts; called once for each plan that is tried.
        announce: told what is tried next.

    Raises:
        TypeError: `first` is no plan.
    """
    require_type("first", first, Plan)
    seed_ns = time_of(first)
    chosen, shortest, tried, skipped = first, seed_ns, 1, 0
    others = {str(other.config): other for other in _plans(first)}
    others.pop(str(first.config), None)
    for other in sorted(others.values(), key=bound_ns):
        if _moves_too_much(other, first) or bound_ns(other) >= shortest:
            skipped += 1
            continue
        announce(name_of(other))
        tried, time_ns = tried + 1, time_of(other)
        if time_ns < shortest:
            chosen, shortest = other, time_ns
    for turns in filter(None, [_with_scalar(chosen, every) for every in SCALAR_EVERY]):
        announce(name_of(turns))
        tried, time_ns = tried + 1, time_of(turns)
        if time_ns < shortest:
            chosen, shortest = turns, time_ns
    why = (
        f"least predicted time of {tried} plans; {skipped} more read too much or are bound by products or bytes: "
        f"{shortest / 1e3:,.1f} us, {shortest / seed_ns:.2f} of the seed's {seed_ns / 1e3:,.1f} us",
        *_reasons(chosen),
    )
    return dataclasses.replace(chosen, policy="best", policy_why=why)


def bound_ns(made: Plan) -> float:
    """What no order of instructions gets below: the products at full rate, or the core's share of the HBM bytes."""
    hardware, dims = made.hardware, made.dims
    products = dims.h_tiles * dims.columns_per_core * dims.s_tiles / hardware.tensor_clock_ghz
    bytes_per_ns = hardware.hbm_bytes_per_s_per_chip / 1e9 / hardware.cores_per_chip * 2 / dims.cores
    return max(products, made.hbm.total / dims.cores / bytes_per_ns)


def _moves_too_much(other: Plan, first: Plan) -> bool:
    """Whether a plan is left out for its HBM bytes, whatever its time."""
    if first.hbm.weights == first.minimum.weights:
        return other.hbm.weights > first.hbm.weights
    return other.hbm.total > MOST_BYTES * first.hbm.total


def name_of(made: Plan) -> str:
    """A plan in a line."""
    flow, chosen = made.flow, made.schedule
    parts = [f"degree {chosen.degree}", f"N {chosen.resident_h_tiles}"]
    if chosen.resident_h_tiles < made.dims.h_tiles:
        parts.append(f"{flow.chunk_buffers} chunk buffers")
    parts += ["norm and RoPE in the evictions", f"{flow.kept_tiles} S-tiles kept"] if flow.early else []
    return ", ".join(parts + ([f"every {flow.scalar_every}. bank by Scalar"] if flow.scalar_every else []))


def _plans(first: Plan) -> Iterator[Plan]:
    """Every plan of the search but for the Scalar Engine's share."""
    dims, norm_rope = first.dims, first.norm_rope
    early = flow_plan.can_be_early(dims, norm_rope)
    degrees = {*DEGREES, dims.s_tiles} & set(range(1, min(first.hardware.psum_banks, dims.s_tiles) + 1))
    for degree, resident in itertools.product(sorted(degrees), (None, 0)):
        make = functools.partial(_spread, first, degree, resident, early)
        deep = next(filter(None, (make(chunk_buffers=count) for count in DEEP_CHUNK_BUFFERS)), None)
        for base in filter(None, (make(chunk_buffers=CHUNK_BUFFERS), deep)):
            yield base
            if early and norm_rope is not None and norm_rope.sum_columns:
                room = min(dims.s_tiles, base.sbuf.free_bytes // flow_plan.row_bytes(dims, norm_rope))
                keeping = (
                    make(chunk_buffers=base.flow.chunk_buffers, kept_tiles=kept) for kept in {room, dims.s_tiles}
                )
                yield from filter(None, keeping)


def _spread(
    first: Plan, degree: int, resident_h_tiles: int | None, early: bool, *, chunk_buffers: int, kept_tiles: int = 0
) -> Plan | None:
    """The plan with another schedule and its work spread otherwise, None where that does not fit."""
    scaled = early and first.norm_rope is not None and first.norm_rope.sum_columns
    reread = first.dims.s_tiles - kept_tiles if scaled else 0
    flow = dataclasses.replace(
        first.flow,
        early=early,
        kept_tiles=kept_tiles,
        pass_buffers=min(PASS_BUFFERS, reread),
        chunk_buffers=chunk_buffers,
    )
    return _fitting(first, degree, resident_h_tiles, flow)


def _with_scalar(made: Plan, every: int) -> Plan | None:
    """The same plan with other evictions by the Scalar Engine; None where it has these, or they do not fit."""
    if every == made.flow.scalar_every:
        return None
    chosen, flow = made.schedule, dataclasses.replace(made.flow, scalar_every=every)
    return _fitting(made, chosen.degree, chosen.resident_h_tiles, flow)


def _fitting(like: Plan, degree: int, resident_h_tiles: int | None, flow: Flow) -> Plan | None:
    """A plan of the same call, None where it does not fit."""
    forced = functools.partial(schedule.force, degree=degree, resident_h_tiles=resident_h_tiles)
    try:
        return plan.make(like.dims, like.hardware, forced, like.norm_rope, like.nbsd_head_dim, flow, like.stages)
    except BudgetError:
        return None


def _reasons(made: Plan) -> Iterator[str]:
    """What each choice of a plan gains."""
    flow, chosen, dims = made.flow, made.schedule, made.dims
    if chosen.resident_h_tiles == dims.h_tiles:
        yield f"all {dims.h_tiles} H-tiles resident: weights are read once"
    elif len(chosen.blocks) == 1:
        yield f"one S-block: weights are read once, {flow.chunk_buffers} chunks ahead of the products"
    else:
        streamed = dims.h_tiles - chosen.resident_h_tiles
        yield f"{streamed} H-tiles are read {len(chosen.blocks)} times, behind the products"
    if flow.early:
        yield "norm and RoPE in the evictions: Vector and GpSimd do them while the Tensor Engine multiplies"
    if flow.kept_tiles:
        share = flow.kept_tiles / dims.s_tiles
        yield f"{flow.kept_tiles} of {dims.s_tiles} S-tiles kept in SBUF: {share:.0%} of Q and K is not read again"
    if flow.scalar_every:
        yield f"every {flow.scalar_every}. bank is evicted by the Scalar Engine, so that the Vector Engine is not late"
