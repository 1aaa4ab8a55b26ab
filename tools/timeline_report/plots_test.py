"""PNG plots: whole, small, the same each time, and busy shares against a plain loop."""

import io

import numpy as np
import pytest
from matplotlib import image

from common.hardware import TRN3
from tools.timeline_report import plots, synthetic
from tools.timeline_report.roofline import Point

POINT = Point("self_tp4", TRN3, 2, {"MX": 3.7e11}, 160_000_000, 9e-4)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plots.roofline_png([POINT]),
        lambda: plots.occupancy_png(synthetic.timeline(3000), "a kernel"),
        lambda: plots.occupancy_png(synthetic.timeline(0), "nothing"),
    ],
)
def test_a_png_that_is_small_and_the_same_each_time(draw):
    png = draw()
    assert png == draw()
    assert len(png) < 60_000
    pixels = image.imread(io.BytesIO(png))
    assert pixels.shape[0] > 300
    assert pixels.std() > 0.01
    assert b"atplotlib" not in png


def test_busy_shares():
    timeline = synthetic.timeline(500)
    found = plots._busy(timeline, [0, 1])
    width = timeline.total_ns / len(found)
    expected = np.zeros(len(found))
    for event in np.flatnonzero(timeline.track <= 1):
        for part in range(len(found)):
            low, high = max(timeline.start_ns[event], part * width), min(timeline.end_ns[event], (part + 1) * width)
            expected[part] += max(high - low, 0) / width / 2
    assert found == pytest.approx(expected, abs=1e-9)
