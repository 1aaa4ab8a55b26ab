"""What the bench does with one shape: plan it, record it, predict its time, and compute and check values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import nkisim
from common.hardware import Hardware
from devicetime.timeline import Timeline
from kernels.adaln_quant.bench import measure
from kernels.adaln_quant.bench.measure import Measurement
from kernels.adaln_quant.device.kernel import adaln, row_quantise
from kernels.adaln_quant.oracle import cases, compare
from kernels.adaln_quant.oracle.cases import NONE, Case
from kernels.adaln_quant.oracle.compare import Errors
from kernels.adaln_quant.planning.dims import Modulation
from kernels.adaln_quant.planning.plan import HbmBytes, Plan
from tools.bench import predicted
from tools.bench.predicted import Predicted

VALUES_LIMIT = 2**22
"""Elements up to which all values of a shape are computed; about a second."""

VALUES_SEQLEN = 258
"""Sequence length at which values are computed of shapes beyond the limit; ragged on one core and on two."""

TOKENS_LIMIT = 2**17
"""Tokens of a shape of one's own: more than any video of Wan2.2 on one rank."""

SEPARATE = "separate"
"""The baseline: AdaLN into HBM in bf16, then row quantisation in a launch of its own."""


@dataclass(frozen=True)
class Shape:
    """A shape ready to run.

    Attributes:
        case, plan: of the whole shape.
        separate: plans of the two launches that a fused one replaces; none where nothing is fused.
        values: what values are computed for: the case itself or a shorter one of the same width; None for none.
    """

    case: Case
    plan: Plan
    separate: tuple[Plan, ...]
    values: Case | None


@dataclass(frozen=True)
class Result:
    """What was measured.

    Attributes:
        shape: what ran.
        measured: the whole shape's simulated run, without values.
        timeline: when its instructions would run.
        predicted: its time, and that of the separate launches one after the other.
        separate_hbm: their bytes; None where nothing is fused.
        errors: of the values; None where none were computed.
    """

    shape: Shape
    measured: Measurement
    timeline: Timeline
    predicted: Predicted
    separate_hbm: HbmBytes | None
    errors: Errors | None


def own_case(sizes: Sequence[int], modulation: Modulation, lnc: int) -> Case:
    """A case of any sizes (B, S, H), quantised.

    Raises:
        ValueError: more tokens than can be simulated in minutes.
    """
    batch, seqlen, hidden = sizes
    name = ",".join(map(str, sizes))
    if batch * seqlen > TOKENS_LIMIT:
        raise ValueError(f"--shape {name} has {batch * seqlen:,} tokens (B * S); accepted: up to {TOKENS_LIMIT:,}")
    return Case(name, seqlen, hidden, batch, modulation, lnc=lnc)


def prepare(case: Case, hardware: Hardware, *, values: bool) -> Shape:
    """Makes every plan that the shape needs, so that what cannot run is refused before anything does.

    Raises:
        ValueError: a size or the target is not accepted, or rows are too wide.
    """
    separate: tuple[Plan, ...] = ()
    if case.quantised and case.modulation is not NONE:
        halves = (
            dataclasses.replace(case, quantised=False),
            dataclasses.replace(case, modulation=NONE, dtype=cases.BF16),
        )
        separate = tuple(half.plan(hardware) for half in halves)
    checked = None
    if values:
        whole = case.batch * case.seqlen * case.hidden <= VALUES_LIMIT
        checked = case if whole else dataclasses.replace(case, batch=1, seqlen=min(VALUES_SEQLEN, case.seqlen))
    return Shape(case, case.plan(hardware), separate, checked)


def run(shape: Shape) -> Result:
    """Simulates the shape without values, predicts its time, then computes values where the shape asks for them."""
    hardware = shape.plan.hardware
    measured = measure.run_without_values(shape.plan)
    timeline = predicted.timeline(measured.cores, hardware)
    separate = [measure.run_without_values(plan) for plan in shape.separate]
    others: dict[str, float | None] = {}
    separate_hbm = None
    if separate:
        others[SEPARATE] = sum(predicted.timeline(one.cores, hardware).total_ns for one in separate)
        separate_hbm = HbmBytes(*(map(sum, zip(*(dataclasses.astuple(one.hbm) for one in separate), strict=True))))
    errors = None if shape.values is None else _errors(shape.values, hardware)
    times = predicted.of(shape.case.name, timeline, others)
    return Result(shape, measured, timeline, times, separate_hbm, errors)


def _errors(case: Case, hardware: Hardware) -> Errors:
    operands, config = cases.normal_operands(case), case.plan(hardware).config
    kernel: Any = row_quantise if case.modulation is NONE else adaln
    last = () if case.modulation is NONE else (case.quantised,)
    options = nkisim.Options(target=hardware.name)
    finished = nkisim.run(kernel[case.lnc], *operands.tensors, config, *last, options=options)
    return compare.compare(finished.outputs, operands)
