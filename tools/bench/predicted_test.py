"""Predicted times as tables and JSON."""

import json

import pytest

from tools.bench import predicted
from tools.bench.tables import show
from tools.timeline_report import synthetic


@pytest.fixture
def times():
    timeline = synthetic.timeline(1000)
    return predicted.of("a shape", timeline, {"slower": 2 * timeline.total_ns, "too large": None})


def test_a_row_says_time_limit_and_how_others_compare(times, capsys):
    show([predicted.table([times])])
    row = capsys.readouterr().out.splitlines()[-1]
    cells = row.split()
    assert cells[2] == f"{times.ns / 1e3:,.1f}"
    assert cells[3] == times.point.limit == "HBM"
    assert cells[7] == "2.00"
    assert row.endswith("does not fit")


def test_json_says_the_same(times):
    found = json.loads(json.dumps(predicted.as_dict(times), allow_nan=False))
    assert found["ns"] == pytest.approx(times.ns, abs=0.05)
    assert found["others_ns"] == {"slower": pytest.approx(2 * times.ns, abs=0.05), "too large": None}
    assert found["limit"] == "HBM"
    assert found["share_of_limit"] == pytest.approx(times.point.share_of_limit, abs=1e-4)
    assert found["share_of_limit"] != found["tensor_busy"]
    assert found["tensor_busy"] == pytest.approx(times.tensor_busy, abs=1e-4)


def test_shapes_with_different_baselines_share_a_table(times, capsys):
    other = predicted.Predicted(times.point, times.tensor_busy, {"another": 1e3})
    show([predicted.table([times, other])])
    header = capsys.readouterr().out.splitlines()[1]
    assert all(name in header for name in ("slower µs", "too large µs", "another µs"))
