"""What the bench does with one shape: plan it, record it, and compute and check values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from common import hardware
from devicetime import report
from devicetime.predict import Prediction
from devicetime.timeline import Timeline
from kernels.mla_decode.bench import measure
from kernels.mla_decode.bench.measure import Measurement
from kernels.mla_decode.device.config import Schedule
from kernels.mla_decode.oracle import cases, compare, front_cases, reference, run
from kernels.mla_decode.oracle.cases import Case
from kernels.mla_decode.oracle.front_cases import FrontCase
from kernels.mla_decode.planning import policy
from kernels.mla_decode.planning.plan import DEFAULT_SCHEDULE, Plan
from tools.bench import predicted
from tools.bench.predicted import Predicted

SUITES: dict[str, tuple[Case | FrontCase, ...]] = {
    "production": cases.PRODUCTION,
    "fp8": cases.FP8,
    "tp": cases.TP,
    "cores": cases.CORES,
    "batch": cases.BATCH,
    "layer": front_cases.FRONT_PRODUCTION,
    "corners": (*cases.CORNERS, *front_cases.FRONT_CORNERS),
}

VALUES_LIMIT = 2**16
"""Selected keys of a step up to which values are computed: twice the production shape's, a few seconds."""

BASELINES = {
    "seed": Schedule(stationary_weights=True),
    "head major": Schedule(stationary_weights=True, head_major=True),
    "bands": Schedule(stationary_weights=True, head_major=True, latent_bands=True),
    "token tails": Schedule(stationary_weights=True, per_token_tails=True),
    "late sums": Schedule(stationary_weights=True, late_weighted_sum=True),
}
"""The seed's schedule and those that it measured against it, by the name that tables and JSON give them."""

REPEATS = 3
"""Runs of which the shortest counts as host time."""


@dataclass(frozen=True)
class Values:
    """Computed values against the fp64 reference.

    Attributes:
        relative_rms: of the kernel.
        rounded_relative_rms: of a torch implementation with the same rounding points.
        limit: of `relative_rms`; in bf16 the kernel may also exceed the other by a tenth only.
        kernel_seconds, torch_seconds: host time of the simulated attention and of the torch fp32 reference.
    """

    relative_rms: float
    rounded_relative_rms: float
    limit: float
    kernel_seconds: float
    torch_seconds: float
    dtype: torch.dtype

    @property
    def accepted(self) -> bool:
        """Whether the kernel is as exact as it has to be."""
        same = self.relative_rms <= compare.MAX_OF_ROUNDED * self.rounded_relative_rms
        return self.relative_rms <= self.limit and (same or self.dtype is torch.float32)


@dataclass(frozen=True)
class Result:
    """What was measured.

    Attributes:
        measured: the simulated run, without values.
        timeline, prediction: when its instructions would run, and what that was made from.
        predicted: its time, and that of the seed's other schedules.
        values: None where none were computed.
    """

    name: str
    plan: Plan
    measured: Measurement
    timeline: Timeline
    prediction: Prediction
    predicted: Predicted
    values: Values | None


def adapted(
    case: Case | FrontCase,
    target: str | None,
    lnc: int | None,
    chunks: int | None,
    group: int | None,
    schedule: Schedule,
    cores_share: str | None = None,
) -> Case | FrontCase:
    """The case with the bench's switches where they are set."""
    if isinstance(case, FrontCase):
        inner = adapted(case.attention, target, lnc, chunks, group, schedule, cores_share)
        assert isinstance(inner, Case)
        return dataclasses.replace(case, attention=inner)
    return dataclasses.replace(
        case,
        target=target or case.target,
        lnc=case.lnc if lnc is None else lnc,
        dma_transposed_chunks=case.dma_transposed_chunks if chunks is None else chunks,
        group_tokens=case.group_tokens if group is None else group,
        schedule=schedule,
        cores_share=cores_share or case.cores_share,
    )


def of_least_time(case: Case | FrontCase) -> tuple[Case | FrontCase, str]:
    """The case with the group, DMA transposes and sharing of least predicted time, and what the search says of them.

    Raises:
        ValueError: as `policy.best`.
    """
    front = case.front if isinstance(case, FrontCase) else None
    attention = case.attention if isinstance(case, FrontCase) else case
    choice = policy.best(attention.dims, hardware.get(attention.target), front, time_of=_predicted_ns)
    chunks, group = choice.plan.dma_transposed_chunks, choice.plan.group_tokens
    shared = choice.plan.cores_share
    return adapted(case, None, None, chunks, group, DEFAULT_SCHEDULE, shared), f"{case.name}: {choice.why}"


def _predicted_ns(planned: Plan) -> float:
    return predicted.timeline(measure.run_without_values(planned).cores, planned.hardware).total_ns


def bench(case: Case | FrontCase, planned: Plan, *, values: bool) -> Result:
    """Records the shape, and computes its values where that is wanted and not too much."""
    measured = measure.run_without_values(planned)
    small = planned.dims.n_tokens * planned.dims.n_prior <= VALUES_LIMIT
    made = None
    if values and small:
        made = _layer_values(case) if isinstance(case, FrontCase) else _values(case)
    prediction = predicted.prediction(measured.cores, planned.hardware)
    timeline = report.timeline(prediction)
    times = predicted.of(case.name, timeline, {name: _baseline_ns(case, other) for name, other in BASELINES.items()})
    return Result(case.name, planned, measured, timeline, prediction, times, made)


def _baseline_ns(case: Case | FrontCase, schedule: Schedule) -> float | None:
    """Predicted time under another schedule; None where the sizes do not go with it."""
    try:
        planned = adapted(case, None, None, None, None, schedule).plan
    except ValueError:
        return None
    return predicted.timeline(measure.run_without_values(planned).cores, planned.hardware).total_ns


def _values(case: Case) -> Values:
    operands = cases.normal_operands(case)
    index = operands.index(case.n_prior)
    kernel_seconds, result = measure.seconds(lambda: run.attention(case, operands, index), REPEATS)
    rows = operands.rows()
    step = (operands.q_absorbed, operands.q_pe, rows, operands.out_absorb_w, operands.o_proj_w, case.softmax_scale)
    torch_seconds, _ = measure.seconds(lambda: reference.attention(*step, torch.float32), REPEATS)
    exact = reference.attention(*step)
    rounded = operands.rounded(case.softmax_scale)
    return Values(
        compare.relative_rms(result, exact),
        compare.relative_rms(rounded, exact),
        compare.MAX_RELATIVE_RMS[case.dtype],
        kernel_seconds,
        torch_seconds,
        case.dtype,
    )


def _layer_values(case: FrontCase) -> Values:
    """A chain of roundings has no limit of its own in bf16 but that of the same chain in torch."""
    dtype, scale = case.attention.dtype, case.attention.softmax_scale
    operands = front_cases.front_operands(case)
    kernel_seconds, (result, _) = measure.seconds(lambda: run.decode(case, operands), REPEATS)
    torch_seconds, _ = measure.seconds(lambda: operands.exact(scale, torch.float32), REPEATS)
    exact = operands.exact(scale)
    rounded_error = compare.relative_rms(operands.rounded(scale), exact)
    limit = compare.MAX_RELATIVE_RMS[dtype] if dtype is torch.float32 else compare.MAX_OF_ROUNDED * rounded_error
    return Values(compare.relative_rms(result, exact), rounded_error, limit, kernel_seconds, torch_seconds, dtype)
