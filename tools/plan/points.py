"""Points of a sweep: every combination of the values of all knobs, and what came of each."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common import hardware
from tools.bench import predicted
from tools.bench.command_line import integer
from tools.plan.subject import Knob, Subject, Values
from tools.plan.subjects import SUBJECTS

BY_PLAN = "plan"
"""In a list of values, for what the plan itself chooses."""

MOST_POINTS = 10_000
"""Of one sweep on one machine; more are for Bazel actions, see defs.bzl."""


@dataclass(frozen=True)
class Outcome:
    """What came of a point.

    Attributes:
        kernel, target: what was planned for what.
        values: of the knobs as given.
        chosen: what the plan decided.
        predicted: time, limit and shares, as `predicted.as_dict`; None where there is no plan.
        hbm_bytes, sbuf_bytes: of all cores; per partition, at the peak; 0 where there is no plan.
        refusal: why there is no plan; "" where there is one.
    """

    kernel: str
    target: str
    values: dict[str, int | None]
    chosen: dict[str, int | str]
    predicted: dict[str, Any] | None
    hbm_bytes: int
    sbuf_bytes: int
    refusal: str

    @property
    def ns(self) -> float | None:
        """Predicted time."""
        return None if self.predicted is None else self.predicted["ns"]


def values_of(knob: Knob) -> Callable[[str], tuple[int | None, ...]]:
    """An argument type: values separated by commas, ranges as FIRST..LAST, `plan` where the plan can choose."""
    one = integer(knob.at_least)

    def part(text: str) -> Sequence[int | None]:
        if text == BY_PLAN and knob.default is None:
            return (None,)
        first, dots, last = text.partition("..")
        if not dots:
            return (one(first),)
        if one(last) < one(first):
            raise argparse.ArgumentTypeError(f"{text!r} is empty; accepted: FIRST..LAST, the smaller one first")
        if one(last) - one(first) >= MOST_POINTS:
            raise argparse.ArgumentTypeError(f"{text!r} has too many values; accepted: up to {MOST_POINTS:,}")
        return range(one(first), one(last) + 1)

    def parse(text: str) -> tuple[int | None, ...]:
        return tuple(dict.fromkeys(value for word in text.split(",") for value in part(word)))

    return parse


def combinations(lists: Mapping[str, Sequence[int | None]]) -> list[dict[str, int | None]]:
    """Every combination, the last knob changing fastest.

    Raises:
        ValueError: there are more than `MOST_POINTS`.
    """
    count = 1
    for values in lists.values():
        count *= len(values)
    if count > MOST_POINTS:
        raise ValueError(
            f"the sweep has {count:,} points; accepted: up to {MOST_POINTS:,} on one machine, "
            "more as Bazel actions (plan_sweep in tools/plan/defs.bzl)"
        )
    return [dict(zip(lists, chosen, strict=True)) for chosen in itertools.product(*lists.values())]


def run(kernel: str, target: str, values: Values) -> Outcome:
    """Plans and predicts a point. What has no plan is an outcome, too."""
    subject = SUBJECTS[kernel]
    try:
        planned = subject.plan(values, hardware.get(target))
    except ValueError as error:
        return Outcome(kernel, target, dict(values), {}, None, 0, 0, str(error))
    return of_plan(subject, target, values, planned)


def of_plan(subject: Subject, target: str, values: Values, planned: Any) -> Outcome:
    """Predicts a plan that was made for a point."""
    timeline = predicted.timeline(subject.simulate(planned), hardware.get(target))
    times = predicted.of(subject.name, timeline, {})
    return Outcome(
        subject.name,
        target,
        dict(values),
        subject.chosen(planned),
        predicted.as_dict(times),
        times.point.hbm_bytes,
        planned.sbuf.peak_bytes,
        "",
    )
