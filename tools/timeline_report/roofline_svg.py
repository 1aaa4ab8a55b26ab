"""The roofline as SVG, in colours of the page that holds it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from tools.timeline_report.roofline import Point, peaks

_WIDTH, _HEIGHT = 760, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 150, 16, 44


class _Axes:
    """Logarithmic axes: FLOP per byte to the right, TFLOP/s upwards."""

    def __init__(self, points: Sequence[Point]) -> None:
        first = points[0]
        roofs = [rate * first.cores for rate in peaks(first.hardware).values()]
        ridge = roofs[-1] / first.hbm_bytes_per_s
        intensities = [point.intensity for point in points]
        rates = [point.flops_per_s for point in points]
        self.low_x, self.high_x = _decades(min(*intensities, ridge / 30), max(*intensities, ridge * 3))
        self.low_y, self.high_y = _decades(min(*rates, roofs[0] / 10), roofs[-1])

    def x(self, intensity: float) -> float:
        """Of an intensity in FLOP per byte."""
        share = (math.log10(intensity) - self.low_x) / (self.high_x - self.low_x)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, flops_per_s: float) -> float:
        """Of a rate in FLOP per second."""
        share = (math.log10(flops_per_s) - self.low_y) / (self.high_y - self.low_y)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _decades(low: float, high: float) -> tuple[int, int]:
    return math.floor(math.log10(low)), math.ceil(math.log10(high) + 0.05)


def svg(points: Sequence[Point]) -> str:
    """Points of one target and number of cores, at least one, below its roofs.

    Each has FLOP, bytes and time, or would have no place on logarithmic axes.
    """
    axes = _Axes(points)
    parts = [*_grid(axes), *_roofs(axes, points[0]), *_points(axes, points)]
    label = "Roofline: predicted TFLOP/s against FLOP per HBM byte"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start", style: str = "quiet") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{style}">{escape(text)}</text>'


def _line(style: str, *ends: float) -> str:
    x1, y1, x2, y2 = ends
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _grid(axes: _Axes) -> list[str]:
    right, base, parts = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM, []
    for power in range(axes.low_x, axes.high_x + 1):
        x = axes.x(10.0**power)
        parts += [_line("grid", x, _TOP, x, base), _text(x, base + 18, f"{10.0**power:g}", "middle")]
    for power in range(axes.low_y, axes.high_y + 1):
        y = axes.y(10.0**power)
        parts += [_line("grid", _LEFT, y, right, y), _text(_LEFT - 8, y + 4, f"{10.0 ** (power - 12):g}", "end")]
    parts.append(_text((_LEFT + right) / 2, _HEIGHT - 6, "FLOP per byte of HBM", "middle"))
    middle = (_TOP + base) / 2
    parts.append(f'<g transform="rotate(-90 16 {middle})">{_text(16, middle, "TFLOP/s", "middle")}</g>')
    return parts


def _roofs(axes: _Axes, first: Point) -> list[str]:
    used, parts = max(first.flops, key=lambda name: first.flops[name]), []
    right = _WIDTH - _RIGHT
    bandwidth = first.hbm_bytes_per_s
    for name, rate in peaks(first.hardware).items():
        roof = rate * first.cores
        ridge = max(roof / bandwidth, 10.0**axes.low_x)
        style = "roof" if name == used else "roof lower"
        parts.append(_line(style, axes.x(ridge), axes.y(roof), right, axes.y(roof)))
        parts.append(_text(right + 8, axes.y(roof) + 4, f"{name} {roof / 1e12:,.0f} TFLOP/s"))
    # From where the slope enters the axes to where the highest roof begins.
    lowest = max(10.0**axes.low_x, 10.0**axes.low_y / bandwidth)
    highest = max(peaks(first.hardware).values()) * first.cores / bandwidth
    parts.append(
        _line("roof", axes.x(lowest), axes.y(lowest * bandwidth), axes.x(highest), axes.y(highest * bandwidth))
    )
    x = axes.x(lowest) + 8
    parts.append(_text(x + 16, axes.y(lowest * bandwidth) - 4, f"HBM {bandwidth / 1e9:,.0f} GB/s"))
    return parts


def _points(axes: _Axes, points: Sequence[Point]) -> list[str]:
    parts = []
    for point in points:
        x, y = axes.x(point.intensity), axes.y(point.flops_per_s)
        rate = max(point.flops, key=lambda name: point.flops[name])
        roof = min(peaks(point.hardware)[rate] * point.cores, point.intensity * point.hbm_bytes_per_s)
        parts.append(_line("drop", x, y, x, axes.y(roof)))
        parts.append(f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="5.5"/>')
        said = f"{point.name}: {point.flops_per_s / 1e12:,.1f} TFLOP/s"
        parts.append(_text(x + 10, y + 4, said, style=""))
    return parts
