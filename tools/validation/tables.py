"""The validation report as tables, for a terminal and as Markdown from one description."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from devicetime.constants import TRN2
from tools.bench.tables import new_table, note
from tools.validation import published, seed
from tools.validation.calibration import estimate
from tools.validation.published import Measurement

_TEXT_COLUMNS = ("what", "source", "why", "schedule", "schedules")

COMMAND = "bazel run //tools/nkisim:validate"


@dataclass(frozen=True)
class Section:
    """A table and what is said below it."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: tuple[str, ...]


def _calibrated_section() -> Section:
    return Section(
        "calibrated",
        ("measurement", "what", "measured", "predicted", "error", "left out", "error", "source"),
        [_calibrated(m) for m in published.CALIBRATING],
        (
            "The model's constants are computed from these measurements (calibration.py). Left out: the prediction "
            "with constants computed from the other measurements; none if a constant has no other measurement.",
            *_notes(published.CALIBRATING),
        ),
    )


def _predicted_section() -> Section:
    return Section(
        "predicted",
        ("measurement", "what", "measured", "predicted", "error", "source"),
        [_predicted(m) for m in published.PREDICTED],
        ("No constant was fitted to these.", *_notes(published.PREDICTED)),
    )


def _orders_section() -> Section:
    return Section(
        "MLA decode: ratios",
        ("slower over faster", "measured", "predicted", "accepted", "", "schedules"),
        [
            (
                c.name,
                "slower" if c.measured is None else f"{c.measured:.3f}",
                f"{c.predicted:.3f}",
                f"{c.low:.2f} to {c.high:.2f}",
                "ok" if c.holds else "NOT AS MEASURED",
                c.note,
            )
            for c in seed.comparisons()
        ],
        (
            "Ratios of times of two schedules at the production shape, trn2, bf16, as the kernel's published reference "
            '("seed") measured them on hardware; no constant was fitted to these.',
            "Bands are slower at every setting tried, 1.007 to 1.103 times (groups of 1, 2 and 4 tokens by 0 to 2 "
            "chunks transposed by DMA), and less so than measured: their sums take the Vector Engine 190 us more, most "
            "of which hides behind a Tensor Engine at half rate, where the seed found Vector to be its limit. Nothing "
            "documented was found that makes up for it. Column tiles that multiply side by side are not modelled; they "
            "would make bands faster. Vector and Scalar Engine colliding on a PSUM bank is documented without a cost, "
            "and here they use different ones.",
        ),
    )


def _times_section() -> Section:
    return Section(
        "MLA decode: times",
        ("what", "measured", "predicted", "error", "schedule"),
        [
            (a.name, f"{a.measured:g} {a.unit}", f"{a.predicted:.1f} {a.unit}", _error(a.predicted, a.measured), a.note)
            for a in seed.absolutes()
        ],
        (),
    )


def _not_rebuilt_section() -> Section:
    return Section("not rebuilt", ("measurement", "why"), published.NOT_REBUILT, ())


def _contradictions_section() -> Section:
    rows = [(text,) for text in published.CONTRADICTIONS]
    return Section("contradictions", ("between sources, and what the model takes",), rows, ())


SECTIONS: dict[str, Callable[[], Section]] = {
    "calibrated": _calibrated_section,
    "predicted": _predicted_section,
    "MLA decode: ratios": _orders_section,
    "MLA decode: times": _times_section,
    "not rebuilt": _not_rebuilt_section,
    "contradictions": _contradictions_section,
}
"""What makes each part of the report, by its title."""


def terminal(report: Iterable[Section]) -> Iterator[RenderableType]:
    """For a terminal."""
    for section in report:
        table = new_table(section.title, *section.columns)
        for row in section.rows:
            table.add_row(*row)
        for column in table.columns:
            if column.header in _TEXT_COLUMNS:
                column.justify = "left"
        # What is all text goes on in the next line.
        if len(table.columns) == 1:
            table.columns[0].no_wrap = False
        yield table
        for text in section.notes:
            yield note(text)


def markdown(report: Iterable[Section]) -> str:
    """For the repository."""
    lines = [f"<!-- Written by: {COMMAND} -- --markdown FILE -->", "# Predicted against published times", ""]
    lines += ["Everything predicted is simulated; nothing here was run on a Trainium.", ""]
    for section in report:
        lines += [f"## {section.title[0].upper()}{section.title[1:]}", ""]
        lines += [_row(section.columns), _row(["---"] * len(section.columns)), *map(_row, section.rows), ""]
        for text in section.notes:
            lines += [text, ""]
    return "\n".join(lines).rstrip() + "\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _calibrated(m: Measurement) -> tuple[str, ...]:
    constants, missing = estimate(m.name)
    alone = ("none", "") if missing else _pair(m, m.read(constants))
    return (m.name, m.what, f"{m.measured:g} {m.unit}", *_pair(m, m.read(TRN2)), *alone, m.source)


def _predicted(m: Measurement) -> tuple[str, ...]:
    return (m.name, m.what, f"{m.measured:g} {m.unit}", *_pair(m, m.read(TRN2)), m.source)


def _pair(m: Measurement, predicted: float) -> tuple[str, str]:
    return f"{predicted:.5g} {m.unit}", _error(predicted, m.measured)


def _error(predicted: float, measured: float) -> str:
    # Plus nothing, so that there is no -0.0.
    return f"{round(100 * (predicted / measured - 1), 1) + 0.0:+.1f} %"


def _notes(measurements: Iterable[Measurement]) -> Iterator[str]:
    return (f"{m.name}: {m.note}" for m in measurements if m.note)
