"""Tables against plain loops."""

import pytest

from tools.timeline_report import summary, synthetic


@pytest.fixture(scope="module")
def timeline():
    return synthetic.timeline(2000, cores=2)


def test_busy_and_waiting_and_the_end_make_up_the_time(timeline):
    engines, *_ = summary.tables(timeline)
    for row in engines.rows:
        shares = [float(cell.removesuffix("%")) for cell in row[1:] if cell]
        assert row[0].endswith("DMA") or sum(shares) == pytest.approx(100, abs=0.5)


def test_busy_shares_are_those_of_a_plain_loop(timeline):
    engines, *_ = summary.tables(timeline)
    shown = {row[0]: row[1] for row in engines.rows}
    for number, track in enumerate(timeline.tracks):
        held = 0.0
        for event in range(timeline.events):
            if timeline.track[event] == number:
                held += timeline.end_ns[event] - timeline.start_ns[event]
        if track.short_name in ("Tensor", "Vector"):
            assert shown[track.name] == f"{held / timeline.total_ns:.1%}"


def test_share_of_an_engine_is_its_average_over_cores(timeline):
    held = sum(
        timeline.end_ns[event] - timeline.start_ns[event]
        for event in range(timeline.events)
        if timeline.tracks[timeline.track[event]].short_name == "Vector"
    )
    assert summary.busy_share(timeline, "Vector") == pytest.approx(held / 2 / timeline.total_ns)
    assert summary.busy_share(timeline, "none of these") == 0.0


def test_tables_are_whole_and_longest_first(timeline):
    engines, instructions, lines = summary.tables(timeline)
    for table in (engines, instructions, lines):
        assert all(len(row) == len(table.header) for row in table.rows)
    assert [row[0] for row in engines.rows][-1] == "core 1 DMA"
    assert sum(int(row[2].replace(",", "")) for row in instructions.rows) == timeline.events
    times = [float(row[3].removesuffix(" µs").replace(",", "")) for row in instructions.rows]
    assert times == sorted(times, reverse=True)
    assert sum(times) == pytest.approx((timeline.end_ns - timeline.start_ns).sum() / 1e3, abs=1)
    shares = [float(row[4].removesuffix("%")) for row in instructions.rows]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert lines.rows[0][0].startswith("tools/timeline_report/synthetic.py:")


def test_an_empty_timeline_has_tables():
    engines, instructions, lines = summary.tables(synthetic.timeline(0))
    assert engines.rows == instructions.rows == lines.rows == ()
