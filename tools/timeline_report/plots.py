"""PNG plots for READMEs and CI logs: the roofline of some runs, and SBUF, PSUM and engines over the time of one.

The same input gives the same bytes, with one version of matplotlib.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from devicetime.timeline import Timeline, TrackKind
from tools.timeline_report.roofline import Point, peaks

_DPI = 110
_BINS = 400
_BLUE, _PURPLE, _TEAL, _RED, _GREY = "#2f66c9", "#9060c0", "#1c8a85", "#c0392b", "#5b6573"


def roofline_png(points: Sequence[Point]) -> bytes:
    """Points of one target and number of cores, at least one, below its roofs."""
    first = points[0]
    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    axes = figure.subplots()
    roofs = {name: rate * first.cores / 1e12 for name, rate in peaks(first.hardware).items()}
    bandwidth = first.hbm_bytes_per_s / 1e12
    ridge = max(roofs.values()) / bandwidth
    low = min(*(point.intensity for point in points), ridge / 30) / 1.5
    high = max(*(point.intensity for point in points), ridge * 3) * 2.5
    for name, roof in roofs.items():
        axes.plot([roof / bandwidth, high], [roof, roof], color=_GREY, lw=1.2)
        axes.annotate(
            f"{name} {roof:,.0f} TFLOP/s", (high, roof), (-4, 3), textcoords="offset points", ha="right", size=8
        )
    axes.plot([low, ridge], [low * bandwidth, ridge * bandwidth], color=_GREY, lw=1.2)
    said = f"HBM {bandwidth * 1e3:,.0f} GB/s"
    axes.annotate(said, (low, low * bandwidth), (10, 0), textcoords="offset points", size=8)
    for number, (label, x, y) in enumerate(_together(points)):
        axes.plot(x, y, "o", color=_BLUE, ms=6)
        # Above and below by turns: neighbours are often closer than their names are long.
        below = -15 if number % 2 else 7
        axes.annotate(label, (x, y), (0, below), textcoords="offset points", size=8, ha="center")
    axes.set(xscale="log", yscale="log", xlim=(low, high), xlabel="FLOP per byte of HBM", ylabel="TFLOP/s")
    axes.set_title(f"Roofline on {first.hardware.name}, cores: {first.cores}, predicted", size=10)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    axes.grid(color="#eceff3", which="major")
    return _png(figure)


def _together(points: Sequence[Point]) -> list[tuple[str, float, float]]:
    """(names, FLOP per byte, TFLOP/s) from left to right, points of one place as one."""
    places: dict[tuple[float, float], list[Point]] = {}
    for point in sorted(points, key=lambda point: point.intensity):
        place = round(math.log10(point.intensity), 2), round(math.log10(point.flops_per_s), 2)
        places.setdefault(place, []).append(point)
    return [
        (", ".join(point.name for point in here), here[0].intensity, here[0].flops_per_s / 1e12)
        for here in places.values()
    ]


def occupancy_png(timeline: Timeline, title: str) -> bytes:
    """Core 0: how busy each engine is, whether any DMA queue is, then bytes of SBUF and banks of PSUM."""
    total_us = (timeline.total_ns or 1.0) / 1e3
    names = _engine_names(timeline)
    figure = Figure(figsize=(8.4, 4.4), layout="constrained")
    busy, sbuf, psum = figure.subplots(3, 1, sharex=True, height_ratios=[1.6, 1, 1])
    shares = np.stack([_busy(timeline, tracks) for _, tracks in names])
    busy.imshow(
        shares, aspect="auto", cmap="Blues", vmin=0, vmax=1, extent=(0, total_us, len(names), 0), interpolation="none"
    )
    busy.set_yticks(np.arange(len(names)) + 0.5, [name for name, _ in names], size=8)
    busy.set_title(f"{title}: predicted {total_us:,.1f} µs on {timeline.hardware.name}", size=10)
    usable = timeline.hardware.sbuf_usable_bytes_per_partition / 1024
    _steps(sbuf, timeline.sbuf_bytes[0], 1 / 1024, usable, total_us, _BLUE, "SBUF KiB")
    _steps(psum, timeline.psum_banks[0], 1, timeline.hardware.psum_banks, total_us, _PURPLE, "PSUM banks")
    psum.set_xlabel("µs")
    return _png(figure)


def _engine_names(timeline: Timeline) -> list[tuple[str, list[int]]]:
    """Rows of core 0, top down, with their tracks; of tracks that nothing uses those of engines."""
    rows: dict[str, list[int]] = {}
    used = set(timeline.track.tolist())
    for number, track in enumerate(timeline.tracks):
        if track.core == 0 and (number in used or track.kind is TrackKind.engine):
            name = "DMA queues" if track.kind is TrackKind.dma_queue else track.short_name
            rows.setdefault(name, []).append(number)
    return list(rows.items())


def _busy(timeline: Timeline, tracks: list[int]) -> np.ndarray:
    """Share of each of `_BINS` parts of the time that any of the tracks is held."""
    chosen = np.isin(timeline.track, tracks)
    scale = _BINS / (timeline.total_ns or 1.0)
    start, reached = timeline.start_ns[chosen] * scale, np.maximum.accumulate(timeline.end_ns[chosen] * scale)
    begins = np.ones(len(start), bool)
    begins[1:] = start[1:] > reached[:-1]
    edges = np.arange(_BINS + 1)
    # Time held before each edge: of a stretch without a gap, what of it lies before.
    held = _before(edges, start[begins]) - _before(edges, reached[np.roll(begins, -1)])
    return np.diff(held)


def _before(edges: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Of each edge, the sum of (edge - time) over the times before it."""
    ordered = np.sort(times)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    counts = np.searchsorted(ordered, edges)
    return counts * edges - sums[counts]


def _steps(axes: Axes, steps: np.ndarray, unit: float, limit: float, total_us: float, colour: str, label: str) -> None:
    times = np.concatenate([[0.0], steps[:, 0] / 1e3, [total_us]])
    values = np.concatenate([[0.0], steps[:, 1] * unit, steps[-1:, 1] * unit if len(steps) else [0.0]])
    axes.fill_between(times, values, step="post", color=colour, alpha=0.3, lw=0)
    axes.step(times, values, where="post", color=colour, lw=1)
    axes.axhline(limit, color=_RED, lw=1)
    axes.set(xlim=(0, total_us), ylim=(0, limit * 1.12))
    axes.set_ylabel(label, size=8)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.tick_params(labelsize=8)


def _png(figure: Figure) -> bytes:
    FigureCanvasAgg(figure)
    file = io.BytesIO()
    # Without the name of the program, which has its version.
    figure.savefig(file, format="png", dpi=_DPI, metadata={"Software": None})
    return file.getvalue()
