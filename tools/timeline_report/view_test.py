"""The viewer reads what the writer wrote, and refuses in one line what it did not."""

import io
import json

import pytest

from tools.timeline_report import synthetic, view
from tools.timeline_report.chrome_trace import write_trace
from tools.timeline_report.trace_file import read_trace


@pytest.fixture
def trace(tmp_path):
    made = synthetic.timeline(500)
    text = io.StringIO()
    write_trace(made, "a run", text)
    path = tmp_path / "trace.json"
    path.write_text(text.getvalue(), encoding="utf-8")
    return made, path


def test_times_are_the_timelines(trace):
    made, path = trace
    found = read_trace(path)
    assert found.title == "a run"
    assert found.total_ns == made.total_ns
    busy: dict[tuple[str, str], float] = {}
    for event in range(made.events):
        track = made.tracks[made.track[event]]
        key = (f"core {track.core}", track.short_name)
        busy[key] = busy.get(key, 0.0) + made.end_ns[event] - made.start_ns[event]
    assert set(found.busy_ns) == set(busy)
    for key, ns in busy.items():
        assert found.busy_ns[key] == pytest.approx(ns, abs=made.events)  # times are written in whole ns
    assert found.counts.total() == made.events
    assert sum(found.calls_ns.values()) == pytest.approx(sum(found.lines_ns.values()))


def test_shown(trace, capsys):
    _, path = trace
    assert view.main([str(path), "--top", "3"]) == view.OK
    shown = capsys.readouterr().out
    assert "a run on" in shown
    assert "engines and DMA queues" in shown


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no json",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"traceEvents": []}',
        b'{"otherData": {"title": 1, "target": "trn2", "simulated": true, "total_ns": 1}, "traceEvents": []}',
        b'{"otherData": {"title": "a", "target": "trn2", "simulated": true, "total_ns": 1}, "traceEvents": [{}]}',
        b"[" * 100_000,
        b"1" * 5000,
    ],
)
def test_what_is_no_trace_is_refused_in_a_line(tmp_path, capsys, content):
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(SystemExit) as end:
        view.main([str(path)])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "is not a " in error
    assert "accepted: a file that a bench wrote with --trace" in error


def changed(head=None, event=None):
    """A trace of one slice, with something else in it."""
    names = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "core 0, trn2"}}
    thread = {"name": "thread_name", "ph": "M", "pid": 1, "tid": 2, "args": {"name": "Tensor"}}
    slice_ = {"name": "nc_matmul", "ph": "X", "ts": 0, "dur": 1, "pid": 1, "tid": 2, "args": {"line": "a.py:1"}}
    return {
        "otherData": {"title": "a", "target": "trn2", "simulated": True, "total_ns": 1000} | (head or {}),
        "traceEvents": [names, thread, slice_ | (event or {})],
    }


@pytest.mark.parametrize(
    ("head", "event"),
    [
        ({"total_ns": float("nan")}, {}),
        ({"total_ns": -1}, {}),
        ({"total_ns": True}, {}),
        ({"title": "a\x1b[2Jb"}, {}),
        ({"title": "a\nb"}, {}),
        ({}, {"dur": -1}),
        ({}, {"dur": "1"}),
        ({}, {"dur": float("inf")}),
        ({}, {"dur": 10**400}),
        ({}, {"name": 5}),
        ({}, {"name": "a\nb"}),
        ({}, {"args": {"line": 3}}),
        ({}, {"pid": [1]}),
        ({}, {"tid": 7}),
    ],
)
def test_one_wrong_value_makes_it_no_trace(tmp_path, capsys, head, event):
    path = tmp_path / "file.json"
    path.write_text(json.dumps(changed(head, event)))
    with pytest.raises(SystemExit) as end:
        view.main([str(path)])
    assert end.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1


def test_names_in_brackets_are_shown_as_they_are(tmp_path, capsys):
    path = tmp_path / "file.json"
    path.write_text(json.dumps(changed(event={"name": "dma_copy (load [keys] [/x] :smile:)"})))
    assert view.main([str(path)]) == view.OK
    assert "dma_copy (load [keys] [/x] :smile:)" in capsys.readouterr().out


def test_a_file_that_is_not_there(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        view.main([str(tmp_path / "none.json")])
    assert end.value.code == 2
    assert "cannot be read: No such file" in capsys.readouterr().err
