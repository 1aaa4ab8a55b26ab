"""Tables against plain loops."""

import numpy as np
import pytest

from devicetime.timeline import Cause
from tools.timeline_report import summary, synthetic


@pytest.fixture(scope="module")
def timeline():
    return synthetic.timeline(2000, cores=2)


def test_busy_and_waiting_and_the_end_make_up_the_time(timeline):
    busy, waiting = summary.busy_ns(timeline), summary.waiting_ns(timeline)
    for track in range(len(timeline.tracks)):
        reached, held, idle = 0.0, 0.0, dict.fromkeys(Cause, 0.0)
        for event in range(timeline.events):
            if timeline.track[event] == track:
                idle[Cause(timeline.cause[event])] += timeline.start_ns[event] - reached
                held += timeline.end_ns[event] - timeline.start_ns[event]
                reached = timeline.end_ns[event]
        assert busy[track] == held
        assert waiting[track].tolist() == [idle[cause] for cause in Cause]


def test_share_of_an_engine_is_its_average_over_cores(timeline):
    vectors = [number for number, track in enumerate(timeline.tracks) if track.short_name == "Vector"]
    expected = np.mean([summary.busy_ns(timeline)[number] for number in vectors]) / timeline.total_ns
    assert summary.busy_share(timeline, "Vector") == pytest.approx(expected)
    assert summary.busy_share(timeline, "none of these") == 0.0


def test_tables_are_whole_and_longest_first(timeline):
    tracks, instructions, lines = summary.tables(timeline)
    for table in (tracks, instructions, lines):
        assert all(len(row) == len(table.header) for row in table.rows)
    assert [row[0] for row in tracks.rows][5] == "core 0 DMA queues"
    assert sum(int(row[2].replace(",", "")) for row in instructions.rows) == timeline.events
    times = [float(row[3].removesuffix(" µs").replace(",", "")) for row in instructions.rows]
    assert times == sorted(times, reverse=True)
    assert sum(times) == pytest.approx((timeline.end_ns - timeline.start_ns).sum() / 1e3, abs=1)
    shares = [float(row[4].removesuffix("%")) for row in instructions.rows]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert lines.rows[0][0].startswith("tools/timeline_report/synthetic.py:")


def test_an_empty_timeline_has_tables():
    tracks, instructions, lines = summary.tables(synthetic.timeline(0))
    assert tracks.rows == instructions.rows == lines.rows == ()
