"""What the bench does with one shape: plan it, simulate it and both baselines, and compute and check values."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common import schedule
from common.budget import BudgetError
from common.hardware import Hardware
from devicetime import report
from devicetime.predict import Prediction
from devicetime.timeline import Timeline
from kernels.qkv_cte.bench import measure
from kernels.qkv_cte.bench.baselines import BASELINES
from kernels.qkv_cte.bench.measure import Measurement
from kernels.qkv_cte.oracle import cases, compare
from kernels.qkv_cte.oracle.cases import Case
from kernels.qkv_cte.oracle.compare import Errors
from kernels.qkv_cte.planning import plan
from kernels.qkv_cte.planning import policy as policies
from kernels.qkv_cte.planning.plan import HbmBytes, Plan
from tools.bench import predicted
from tools.bench.predicted import Predicted

VALUES_LIMIT = 2**34
"""Multiply-adds up to which all values of a shape are computed; about three seconds of two cores."""

TOKENS_LIMIT = 2**17
"""Tokens of a shape of one's own: 1024 S-tiles in all, more than any video of Wan2.2 on one rank."""

VALUES_SEQLEN = 512
"""Sequence length at which values are computed where the whole shape is beyond the limit."""


@dataclass(frozen=True)
class Shape:
    """A shape ready to run.

    Attributes:
        case: sizes and schedule.
        plan: of the whole shape.
        baselines: plans of each baseline's calls by its name, None where it does not fit.
        others: plans that differ in time, not in bytes worth a column, by name.
        values: what values are computed for: the case itself or a shorter one of the same widths; None for none.
    """

    case: Case
    plan: Plan
    baselines: dict[str, tuple[Plan, ...] | None]
    others: dict[str, Plan]
    values: Case | None


@dataclass(frozen=True)
class Values:
    """Computed values against the fp64 reference."""

    plan: Plan
    errors: Errors

    @property
    def accepted(self) -> bool:
        """Whether they are within tolerance."""
        return within_tolerance(self.errors)


@dataclass(frozen=True)
class ShapeResult:
    """What was measured.

    Attributes:
        shape: what ran.
        measured: the whole shape's simulated run, without values.
        timeline, prediction: when its instructions would run, and what that was made from.
        predicted: its time, and that of baselines and others; sub-calls of a baseline run one after the other.
        baseline_hbm: measured bytes of each baseline by its name, None where it does not fit.
        values: None where none were computed.
    """

    shape: Shape
    measured: Measurement
    timeline: Timeline
    prediction: Prediction
    predicted: Predicted
    baseline_hbm: dict[str, HbmBytes | None]
    values: Values | None


def within_tolerance(errors: Errors) -> bool:
    """Whether a result is as exact as its output type and fp32 accumulation allow."""
    return errors.max_ulps <= compare.MAX_ULPS and not errors.wrong_nonfinite


def own_case(sizes: Sequence[int], lnc: int) -> Case:
    """A case of any sizes (B, S, H, I), with an fp32 bias.

    Raises:
        ValueError: more tokens than can be simulated in minutes.
    """
    batch, seqlen, hidden, width = sizes
    name = ",".join(map(str, sizes))
    if batch * seqlen > TOKENS_LIMIT:
        raise ValueError(f"--shape {name} has {batch * seqlen:,} tokens (B * S); accepted: up to {TOKENS_LIMIT:,}")
    # Only tests expect a prefetch mode; here it is whatever the plan says.
    return Case(name, seqlen, hidden, 1, "full", head_dim=width, batch=batch, lnc=lnc)


def prepare(
    case: Case, hardware: Hardware, *, values: bool, policy: str = "seed", announce: Callable[[str], object] = str
) -> Shape:
    """Makes every plan that the shape needs, so that what cannot run is refused before anything does.

    Args:
        case: sizes, and what is forced on the schedule.
        hardware: the target.
        values: whether to compute values, too.
        policy: "seed", or "best" for a search, which is free of what the case forces.
        announce: told what a search tries next.

    Raises:
        ValueError: a size or the target is not accepted.
        BudgetError: the shape fits under no schedule.
    """
    planned = _plan(case, hardware)
    others = {"one engine": policies.seed(case.dims, hardware, one_engine=True)}
    if policy == "best":
        others = {"seed": planned} | others
        planned = policies.best(policies.seed(case.dims, hardware), time_of=_time_ns, announce=announce)
    return Shape(case, planned, _baseline_plans(planned), others, _values_case(case) if values else None)


def run(shape: Shape) -> ShapeResult:
    """Simulates the shape and its baselines without values, then values where the shape asks for them."""
    hardware = shape.plan.hardware
    baseline_hbm: dict[str, HbmBytes | None] = {}
    baseline_ns: dict[str, float | None] = {}
    for name, calls in shape.baselines.items():
        runs = None if calls is None else [measure.run(call) for call in calls]
        baseline_hbm[name] = None if runs is None else measure.add_hbm(run.hbm for run in runs)
        baseline_ns[name] = None if calls is None else sum(map(_time_ns, calls))
    values = None if shape.values is None else _values(shape.values, hardware)
    measured = measure.run(shape.plan)
    prediction = predicted.prediction(measured.cores, hardware)
    timeline = report.timeline(prediction)
    other_ns = {name: _time_ns(planned) for name, planned in shape.others.items()}
    times = predicted.of(shape.case.name, timeline, other_ns | baseline_ns)
    return ShapeResult(shape, measured, timeline, prediction, times, baseline_hbm, values)


def _time_ns(planned: Plan) -> float:
    return predicted.timeline(measure.run(planned).cores, planned.hardware).total_ns


def _plan(case: Case, hardware: Hardware) -> Plan:
    forced = functools.partial(schedule.force, degree=case.degree, resident_h_tiles=case.resident_h_tiles)
    return plan.make(case.dims, hardware, forced)


def _baseline_plans(planned: Plan) -> dict[str, tuple[Plan, ...] | None]:
    plans: dict[str, tuple[Plan, ...] | None] = {}
    for name, baseline in BASELINES.items():
        try:
            plans[name] = baseline(planned.dims, planned.hardware)
        except BudgetError:
            plans[name] = None
    return plans


def _values_case(case: Case) -> Case:
    if case.batch * case.seqlen * case.hidden * case.width <= VALUES_LIMIT:
        return case
    seqlen = min(VALUES_SEQLEN, case.seqlen)
    return dataclasses.replace(case, batch=1, seqlen=seqlen, degree=None, resident_h_tiles=None)


def _values(case: Case, hardware: Hardware) -> Values:
    planned = _plan(case, hardware)
    operands = cases.normal_operands(case)
    output = measure.run(planned, operands).output
    return Values(planned, compare.compare(output, *operands.tensors))
