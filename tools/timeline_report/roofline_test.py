"""Limits against hand counts."""

import re

import pytest

from common.hardware import TRN2, TRN3
from tools.timeline_report import roofline, roofline_svg, synthetic
from tools.timeline_report.roofline import Point


def point(flops, hbm_bytes, seconds=1e-3, hardware=TRN2, cores=1):
    return Point("x", hardware, cores, flops, hbm_bytes, seconds)


def test_a_matrix_product_and_a_copy():
    found = roofline.point("x", synthetic.timeline(100))
    assert found.flops == {"bf16": 2 * 128 * 128 * 512}
    assert found.hbm_bytes == 128 * 512 * 2


def test_limits_add_up_over_types_of_products():
    found = point({"bf16": 79e12 * 1e-4, "fp32": 20e12 * 2e-4}, 1000)
    assert found.tensor_seconds == pytest.approx(3e-4)
    assert (found.limit, found.share_of_limit) == ("PE", pytest.approx(0.3))
    assert point({"bf16": 79e12 * 1e-4, "fp32": 20e12 * 2e-4}, 1000, cores=2).tensor_seconds == pytest.approx(1.5e-4)


def test_hbm_is_shared_by_the_chips_cores():
    found = point({"bf16": 1.0}, 3_000_000_000 // 8)
    assert found.hbm_seconds == pytest.approx(1e-3)
    assert (found.limit, found.share_of_limit) == ("HBM", pytest.approx(1.0))
    assert point({"bf16": 1.0}, 3_000_000_000 // 8, cores=2).hbm_seconds == pytest.approx(5e-4)


def svg_points(*points):
    svg = roofline_svg.svg(points)
    return [tuple(map(float, found)) for found in re.findall(r'<circle[^>]*cx="([\d.]+)" cy="([\d.]+)"', svg)]


def test_more_intense_is_further_right_and_faster_is_higher():
    slow, fast, intense = (
        point({"MX": 1e9}, bytes_, seconds, TRN3) for bytes_, seconds in ((10**7, 1e-3), (10**7, 1e-4), (10**6, 1e-3))
    )
    first, second, third = svg_points(slow, fast, intense)
    assert first[0] == second[0] < third[0]
    assert second[1] < first[1] == third[1]


def test_a_point_on_the_roof_lies_on_its_line():
    intensity = 20.0
    bandwidth = TRN2.hbm_bytes_per_s_per_chip / 8
    on_roof = point({"bf16": intensity * 1e7}, 10**7, 1e7 / bandwidth)
    ((x, y),) = svg_points(on_roof)
    line = r'<line class="roof" x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)"/>'
    x1, y1, x2, y2 = map(float, re.findall(line, roofline_svg.svg([on_roof]))[-1])
    assert y == pytest.approx(y1 + (x - x1) / (x2 - x1) * (y2 - y1), abs=0.5)
