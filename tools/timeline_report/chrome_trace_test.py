"""Traces against the Trace Event Format, as its document states it, and against the timeline."""

import io
import json
import tracemalloc
from collections import defaultdict

import numpy as np
import pytest

from devicetime.timeline import Cause
from tools.timeline_report import synthetic
from tools.timeline_report.chrome_trace import write_trace

REQUIRED = {
    "M": {"name", "pid", "args"},
    "X": {"name", "ts", "dur", "pid", "tid", "args"},
    "s": {"name", "cat", "id", "ts", "pid", "tid"},
    "f": {"name", "cat", "id", "ts", "pid", "tid", "bp"},
    "C": {"name", "ts", "pid", "args"},
}
"""Keys of each phase that the traces use."""


def text(timeline):
    file = io.StringIO()
    write_trace(timeline, "a title", file)
    return file.getvalue()


@pytest.fixture(scope="module")
def timeline():
    return synthetic.timeline(3000, cores=2)


@pytest.fixture(scope="module")
def trace(timeline):
    return json.loads(text(timeline), parse_constant=pytest.fail)


@pytest.fixture(scope="module")
def by_phase(trace):
    phases = defaultdict(list)
    for event in trace["traceEvents"]:
        phases[event["ph"]].append(event)
    return phases


def ns(microseconds):
    return round(microseconds * 1000)


def test_every_event_has_the_keys_of_its_phase(trace, by_phase):
    assert set(by_phase) == set(REQUIRED)
    for event in trace["traceEvents"]:
        assert REQUIRED[event["ph"]] <= set(event)
        assert all(isinstance(event[key], int) for key in ("pid", "tid", "id") if key in event)
        assert all(isinstance(event[key], int | float) and event[key] >= 0 for key in ("ts", "dur") if key in event)


def test_time_never_goes_back(trace):
    times = [event["ts"] for event in trace["traceEvents"] if event["ph"] != "M"]
    assert times == sorted(times)


def test_every_core_and_track_has_a_name_and_a_place(timeline, by_phase):
    named = {(event["name"], event["pid"], event.get("tid")): event["args"] for event in by_phase["M"]}
    threads = {(event["pid"], event["tid"]) for event in by_phase["X"]}
    assert len(threads) == len(timeline.tracks)
    for pid, tid in threads:
        assert f"core {pid - 1}" in named["process_name", pid, None]["name"]
        track = timeline.tracks[named["thread_sort_index", pid, tid]["sort_index"]]
        assert named["thread_name", pid, tid] == {"name": track.short_name}
        assert track.core == pid - 1
    assert len({tid for _, tid in threads}) == len(threads)


def test_slices_of_a_thread_never_overlap(by_phase):
    reached: defaultdict[object, int] = defaultdict(int)
    for event in by_phase["X"]:
        thread = event["pid"], event["tid"]
        assert ns(event["ts"]) >= reached[thread]
        reached[thread] = ns(event["ts"]) + ns(event["dur"])


def test_slices_say_what_the_timeline_says(timeline, by_phase):
    assert len(by_phase["X"]) == timeline.events
    for number, event in enumerate(by_phase["X"]):
        assert ns(event["ts"]) == timeline.start_ns[number]
        assert ns(event["ts"]) + ns(event["dur"]) == timeline.end_ns[number]
        record = timeline.record_of(number)
        assert event["name"].split(" ")[0] == record.op
        assert event["args"]["line"] == f"tools/timeline_report/synthetic.py:{record.site.line}"
        assert event["args"]["began after"] == Cause(timeline.cause[number]).name.replace("_", " ")
        assert ("waited for" in event["args"]) == (timeline.blocker[number] >= 0)
    named = next(event for event in by_phase["X"] if event["name"].startswith("dma_copy"))
    assert named["name"] == "dma_copy (keys)"
    assert named["args"]["operands"] == "keys bfloat16[128,512] ← cache bfloat16[128,512]"


def test_flows_are_pairs_that_bind_to_the_slices_of_a_dependency(timeline, by_phase):
    starts = {event["id"]: event for event in by_phase["s"]}
    ends = {event["id"]: event for event in by_phase["f"]}
    assert len(starts) == len(by_phase["s"]) == len(ends) == len(by_phase["f"]) == len(timeline.edges)
    slices = by_phase["X"]
    for (before, after), key in zip(timeline.edges, sorted(starts), strict=True):
        start, end, source, target = starts[key], ends[key], slices[before], slices[after]
        assert (start["pid"], start["tid"]) == (source["pid"], source["tid"])
        assert ns(source["ts"]) <= ns(start["ts"]) < ns(source["ts"]) + ns(source["dur"])
        assert (end["pid"], end["tid"], end["ts"], end["bp"]) == (target["pid"], target["tid"], target["ts"], "e")
        assert start["ts"] <= end["ts"]


def test_a_flow_is_written_after_the_slice_it_binds_to(trace):
    opened = set()
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            opened.add((event["pid"], event["tid"], event["ts"]))
        if event["ph"] == "f":
            assert (event["pid"], event["tid"], event["ts"]) in opened


def test_counters_are_the_steps_of_each_core(timeline, by_phase):
    for name, unit, cores in (
        ("SBUF", "bytes per partition", timeline.sbuf_bytes),
        ("PSUM", "banks", timeline.psum_banks),
    ):
        for core, steps in enumerate(cores):
            events = [event for event in by_phase["C"] if event["name"] == name and event["pid"] == core + 1]
            assert [(ns(event["ts"]), event["args"][unit]) for event in events] == [tuple(step) for step in steps]


def test_it_says_that_it_is_simulated(timeline, trace):
    assert trace["displayTimeUnit"] == "ns"
    assert trace["otherData"] == {
        "title": "a title",
        "target": "trn2",
        "simulated": True,
        "total_ns": timeline.total_ns,
    }


def test_fractions_of_a_nanosecond_never_make_slices_overlap(timeline):
    finer = synthetic.timeline(500)
    for times in (finer.start_ns, finer.end_ns):
        times *= 0.3137
    reached: defaultdict[object, int] = defaultdict(int)
    for event in json.loads(text(finer))["traceEvents"]:
        if event["ph"] == "X":
            assert ns(event["ts"]) >= reached[event["tid"]]
            reached[event["tid"]] = ns(event["ts"]) + ns(event["dur"])


def test_the_same_bytes_each_time(timeline):
    assert text(timeline) == text(synthetic.timeline(3000, cores=2))


def test_an_empty_timeline_is_a_trace():
    events = json.loads(text(synthetic.timeline(0)))["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "C"}


def test_memory_does_not_grow_with_the_text():
    class Counted(io.StringIO):
        written = 0

        def write(self, part):
            self.written += len(part)
            return len(part)

    timeline, file = synthetic.timeline(10_000), Counted()
    tracemalloc.start()
    write_trace(timeline, "large", file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    arrays = sum(array.nbytes for array in vars(timeline).values() if isinstance(array, np.ndarray))
    assert file.written > 4_000_000
    assert peak < 3_000_000 + 2 * arrays
