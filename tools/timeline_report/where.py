"""Why a kernel takes as long as it does, and what would help, as tables."""

from __future__ import annotations

from devicetime import analysis
from devicetime.predict import Prediction
from devicetime.timeline import Timeline
from devicetime.what_if import what_if
from tools.timeline_report.summary import Table

_LONGEST = 12
"""Rows of a table of the critical path."""

_MARKED_GAIN = 0.005
"""Share of the time below which a gain is shown as none."""


def tables(prediction: Prediction, timeline: Timeline) -> tuple[Table, ...]:
    """The critical path by instruction and by line, and the gain of each thing that could cost nothing."""
    path = analysis.critical_path(timeline)
    return (
        _path("Critical path by instruction", analysis.path_by_call(timeline, path), timeline),
        _path("Critical path by line", analysis.path_by_line(timeline, path), timeline),
        _gains(prediction),
    )


def _path(title: str, spent_ns: dict[str, float], timeline: Timeline) -> Table:
    rows = [(name, f"{ns / 1e3:,.1f} µs", f"{ns / timeline.total_ns:.1%}") for name, ns in spent_ns.items()]
    more = f" The {_LONGEST} longest of {len(rows)}." if len(rows) > _LONGEST else ""
    note = f"The chain of instructions that ends last, each of which began when it did because of the one before.{more}"
    return Table(title, ("on the path", "time", "of all"), tuple(rows[:_LONGEST]), note)


def _gains(prediction: Prediction) -> Table:
    answers = sorted(what_if(prediction), key=lambda answer: -answer.gain)
    rows = (
        (
            answer.without.replace("_", " "),
            f"{answer.total_ns / 1e3:,.1f} µs",
            f"{answer.gain:.1%}" if abs(answer.gain) >= _MARKED_GAIN else "none",
        )
        for answer in answers
    )
    return Table(
        "What would help",
        ("if this cost nothing", "time", "gain"),
        tuple(rows),
        "Predicted again without the engine, the bytes or the cause of waiting. A small loss is the scheduler's: the "
        "order that is best step by step need not be the best one.",
    )
