"""PNG plots: whole, small, the same each time, and busy shares against a plain loop."""

import dataclasses
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
    # Times are whole nanoseconds: whether any of the tracks is held in each of them.
    held = np.zeros(int(timeline.total_ns))
    for event in np.flatnonzero(timeline.track <= 1):
        held[int(timeline.start_ns[event]) : int(timeline.end_ns[event])] = 1
    edges = np.arange(len(found) + 1) * width
    before = np.interp(edges, np.arange(len(held) + 1), np.concatenate([[0], np.cumsum(held)]))
    assert found == pytest.approx(np.diff(before) / width, abs=1e-9)
    assert 0 < found.mean() < 1


def test_points_of_one_place_share_a_label():
    other = dataclasses.replace(POINT, name="other", seconds=1e-3)
    same = dataclasses.replace(POINT, name="same")
    places = plots._together([POINT, other, same])
    assert [label for label, _, _ in places] == ["self_tp4, same", "other"]
