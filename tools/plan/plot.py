"""Outcomes as a plot."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tools.plan.points import Outcome
from tools.plan.results import shown, swept
from tools.plan.subject import Values

MOST_LINES = 8
"""Of a plot, to stay readable."""


def axes_of(points: Sequence[Values]) -> tuple[str, list[str]]:
    """The knob along the x axis, that with most values, and the others that are swept: a line per combination of them.

    Raises:
        ValueError: nothing is swept, or there are too many lines.
    """
    knobs = swept(points)
    if not knobs:
        raise ValueError("--plot needs a sweep; accepted: several values for at least one option")
    across = max(knobs, key=lambda name: len({values[name] for values in points}))
    others = [name for name in knobs if name != across]
    lines = len({tuple(values[name] for name in others) for values in points})
    if lines > MOST_LINES:
        raise ValueError(f"--plot would have {lines} lines; accepted: up to {MOST_LINES}, sweep fewer knobs")
    return across, others


def plot_png(outcomes: Sequence[Outcome]) -> bytes:
    """Predicted time over the knob with most values, a line per combination of the others.

    Raises:
        ValueError: as `axes_of`.
    """
    across, others = axes_of([outcome.values for outcome in outcomes])
    lines: dict[str, list[tuple[int, float]]] = {}
    for outcome in outcomes:
        label = ", ".join(f"{name} {shown(outcome.values[name])}" for name in others)
        points = lines.setdefault(label, [])
        x = outcome.values[across]
        if outcome.ns is not None and x is not None:
            points.append((x, outcome.ns / 1e3))
    figure = Figure(figsize=(7.2, 4), layout="constrained")
    axes = figure.subplots()
    for label, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True) if points else ((), ()), "o-", ms=4, lw=1.4, label=label)
    axes.set(xlabel=across, ylabel="predicted µs")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(f"{outcomes[0].kernel} on {outcomes[0].target}", size=10)
    axes.grid(color="#eceff3")
    if any(lines):
        axes.legend(fontsize=8)
    FigureCanvasAgg(figure)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return file.getvalue()
