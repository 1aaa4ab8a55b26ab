"""Outcomes as a plot."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tools.plan.points import Outcome
from tools.plan.results import fastest, shown, swept

MOST_LINES = 8
"""Of a plot, to stay readable."""


def plot_png(outcomes: Sequence[Outcome]) -> bytes:
    """Predicted time over the knob with most values, a line per combination of the others.

    Raises:
        ValueError: nothing was swept, nothing has a plan, or there are too many lines.
    """
    knobs = swept(outcomes)
    if not knobs or not fastest(outcomes):
        raise ValueError("there is nothing to plot; accepted: a sweep with at least one plan")
    across = max(knobs, key=lambda name: len({outcome.values[name] for outcome in outcomes}))
    lines: dict[str, list[tuple[int, float]]] = {}
    for outcome in outcomes:
        label = ", ".join(f"{name} {shown(outcome.values[name])}" for name in knobs if name != across)
        points = lines.setdefault(label, [])
        x = outcome.values[across]
        if outcome.ns is not None and x is not None:
            points.append((x, outcome.ns / 1e3))
    if len(lines) > MOST_LINES:
        raise ValueError(f"the plot would have {len(lines)} lines; accepted: up to {MOST_LINES}, sweep fewer knobs")
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
