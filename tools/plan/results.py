"""Outcomes as a table, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType

from tools.bench.tables import new_table, note
from tools.plan.points import BY_PLAN, Outcome
from tools.plan.subject import Values
from tools.plan.subjects import SUBJECTS

KIB, MIB = 2**10, 2**20


def swept(points: Sequence[Values]) -> list[str]:
    """The knobs that differ between points."""
    return [name for name in points[0] if any(values[name] != points[0][name] for values in points)]


def fastest(outcomes: Sequence[Outcome]) -> dict[tuple[int | None, ...], Outcome]:
    """By the sizes of a point (see `sizes_of`), the fastest, the first one of several; none where no plan fits."""
    found: dict[tuple[int | None, ...], Outcome] = {}
    for outcome in outcomes:
        other = found.get(sizes_of(outcome))
        if outcome.ns is not None and (other is None or outcome.ns < (other.ns or 0.0)):
            found[sizes_of(outcome)] = outcome
    return found


def sizes_of(outcome: Outcome) -> tuple[int | None, ...]:
    """The sizes of a point: what is compared has the same."""
    return tuple(outcome.values[knob.name] for knob in SUBJECTS[outcome.kernel].knobs if knob.size)


def table(outcomes: Sequence[Outcome]) -> Iterator[RenderableType]:
    """A row per point: the swept knobs, what the plan chose, the predicted time."""
    knobs, best = swept([outcome.values for outcome in outcomes]), fastest(outcomes)
    chosen = [name for name in _chosen(outcomes) if name not in knobs]
    compared = ["x best", ""] if len(outcomes) > 1 else []
    columns = [*knobs, *chosen, "µs", "limit", "share", "PE busy", "HBM MiB", "SBUF KiB", *compared]
    made = new_table(f"{outcomes[0].kernel} on {outcomes[0].target}", columns[0], *columns[1:])
    for outcome in outcomes:
        cells = [shown(outcome.values[name]) for name in knobs]
        cells += [str(outcome.chosen.get(name, "")) for name in chosen]
        if outcome.predicted is None:
            made.add_row(*cells, *[""] * (len(columns) - len(cells) - 1), "no plan")
            continue
        found, ns, least = outcome.predicted, outcome.ns or 0.0, best[sizes_of(outcome)]
        cells += [f"{ns / 1e3:,.1f}", found["limit"], f"{found['share_of_limit']:.0%}", f"{found['tensor_busy']:.0%}"]
        cells += [f"{outcome.hbm_bytes / MIB:,.1f}", f"{outcome.sbuf_bytes / KIB:,.1f}"]
        if compared:
            cells += [f"{ns / (least.ns or 1.0):.3f}", "best" if outcome is least else ""]
        made.add_row(*cells)
    yield made
    refused = " The CSV and JSON files say why a point has no plan." if any(one.refusal for one in outcomes) else ""
    yield note(f"Predicted by the device-time model; no Trainium was used. Best: of the same sizes.{refused}")


def _chosen(outcomes: Sequence[Outcome]) -> list[str]:
    return list(dict.fromkeys(name for outcome in outcomes for name in outcome.chosen))


def shown(value: int | None) -> str:
    """A knob's value for people."""
    return BY_PLAN if value is None else f"{value:,}"


def csv_text(outcomes: Sequence[Outcome]) -> str:
    """A line per point with all knobs, whatever was swept; empty cells where there is no plan."""
    knobs, chosen = list(outcomes[0].values), _chosen(outcomes)
    header = ["kernel", "target", *knobs, *(f"plan {name}" for name in chosen)]
    header += ["predicted_ns", "limit", "share_of_limit", "tensor_busy", "hbm_bytes", "sbuf_bytes", "refusal"]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for outcome in outcomes:
        row: list[Any] = [outcome.kernel, outcome.target]
        row += [BY_PLAN if value is None else value for value in outcome.values.values()]
        row += [outcome.chosen.get(name, "") for name in chosen]
        found = outcome.predicted or {}
        row += [found.get(name, "") for name in ("ns", "limit", "share_of_limit", "tensor_busy")]
        row += ["", ""] if outcome.refusal else [outcome.hbm_bytes, outcome.sbuf_bytes]
        writer.writerow([*row, outcome.refusal])
    return file.getvalue()


def json_text(outcomes: Sequence[Outcome]) -> str:
    """All there is to say."""
    document = {"version": 1, "simulated": True, "points": [asdict(outcome) for outcome in outcomes]}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
