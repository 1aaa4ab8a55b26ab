"""Writes a timeline as Chrome trace events, which Perfetto opens: https://ui.perfetto.dev, "Open trace file".

A process per core, a thread per engine and DMA queue, slices for instructions, flows for dependencies, counters for
SBUF and PSUM. Times are whole nanoseconds, so that slices that touch still touch. The same timeline gives the same
bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from devicetime.timeline import Cause, Timeline
from tools.timeline_report.labels import Labels

_SLICE, _FLOW_START, _FLOW_END, _SBUF, _PSUM = range(5)
"""Kinds of events in the order in which those of one time are written: a flow binds to a slice that is open."""

_CHUNK = 1024
"""Events turned into text at a time."""


def write_trace(timeline: Timeline, title: str, file: IO[str]) -> None:
    """Writes the trace, an event per line, in order of time.

    Args:
        timeline: what to write.
        title: what ran, for whoever finds the file later.
        file: opened for text in UTF-8.
    """
    head = {"title": title, "target": timeline.hardware.name, "simulated": True, "total_ns": timeline.total_ns}
    file.write(f'{{"displayTimeUnit":"ns","otherData":{_json(head)},"traceEvents":[\n')
    file.write(",\n".join(map(_json, _metadata(timeline))))
    for chunk in _chunks(timeline):
        file.write(",\n")
        file.write(",\n".join(chunk))
    file.write("\n]}\n")


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _process(core: int) -> int:
    return core + 1


def _thread(track: int) -> int:
    """No process has this number: a thread of its process's number would be its main thread."""
    return track + 1001


def _metadata(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Names of processes and threads, and the order in which to show them."""
    for core in range(len(timeline.streams)):
        name = f"core {core}, {timeline.hardware.name}, simulated"
        yield {"name": "process_name", "ph": "M", "pid": _process(core), "args": {"name": name}}
        yield {"name": "process_sort_index", "ph": "M", "pid": _process(core), "args": {"sort_index": core}}
    for index, track in enumerate(timeline.tracks):
        place = {"ph": "M", "pid": _process(track.core), "tid": _thread(index)}
        yield {"name": "thread_name", **place, "args": {"name": track.short_name}}
        yield {"name": "thread_sort_index", **place, "args": {"sort_index": index}}


def _chunks(timeline: Timeline) -> Iterator[list[str]]:
    """Lines of text of all events, in order of time."""
    write = _Writer(timeline)
    for kinds, indices, times in _in_order(timeline, write.start, write.end):
        yield [
            write.event(kind, index, time)
            for kind, index, time in zip(kinds.tolist(), indices.tolist(), times.tolist(), strict=True)
        ]


def _in_order(
    timeline: Timeline, start: np.ndarray, end: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(kind, index, ns) of everything to write, in chunks; steps of counters are numbered through all cores."""
    before, after = timeline.edges[:, 0], timeline.edges[:, 1]
    # A flow starts in the last nanosecond of what was waited for, while that slice is open.
    flow_start = np.maximum(start[before], np.minimum(end[before] - 1, start[after]))
    steps = [_rounded(np.concatenate([s[:, 0] for s in all_steps])) for all_steps in _counters(timeline)]
    times = (start, flow_start, start[after], *steps)
    kinds = np.repeat(np.arange(len(times), dtype=np.uint8), [len(part) for part in times])
    indices = np.concatenate([np.arange(len(part), dtype=np.int32) for part in times])
    together = np.concatenate(times)
    order = np.lexsort((indices, kinds, together))
    for first in range(0, len(order), _CHUNK):
        chosen = order[first : first + _CHUNK]
        yield kinds[chosen], indices[chosen], together[chosen]


def _rounded(times_ns: np.ndarray) -> np.ndarray:
    return np.rint(times_ns).astype(np.int64)


def _counters(timeline: Timeline) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    return timeline.sbuf_bytes, timeline.psum_banks


class _Writer:
    """Turns events into text."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.start, self.end = _rounded(timeline.start_ns), _rounded(timeline.end_ns)
        self.labels = Labels()
        self.steps = [
            [(core, value) for core, steps in enumerate(cores) for value in steps[:, 1].tolist()]
            for cores in _counters(timeline)
        ]

    def event(self, kind: int, index: int, time_ns: int) -> str:
        """One event's line."""
        if kind == _SLICE:
            return self._slice(index, time_ns)
        if kind in (_FLOW_START, _FLOW_END):
            return self._flow(kind, index, time_ns)
        name, unit = ("SBUF", "bytes per partition") if kind == _SBUF else ("PSUM", "banks")
        core, value = self.steps[kind - _SBUF][index]
        return f'{{"name":"{name}","ph":"C",{_at(time_ns)},"pid":{_process(core)},"args":{{"{unit}":{value:g}}}}}'

    def _slice(self, event: int, time_ns: int) -> str:
        record = self.timeline.record_of(event)
        args = {
            "line": self.labels.line(record),
            "operands": self.labels.operands(record),
            "began after": Cause(self.timeline.cause[event]).name.replace("_", " "),
        }
        blocker = int(self.timeline.blocker[event])
        if blocker >= 0:
            args["waited for"] = self._reference(blocker)
        name = _json(self.labels.instruction(record))
        duration = _microseconds(int(self.end[event]) - time_ns)
        return f'{{"name":{name},"ph":"X",{_at(time_ns)},"dur":{duration},{self._place(event)},"args":{_json(args)}}}'

    def _reference(self, event: int) -> str:
        record = self.timeline.record_of(event)
        track = self.timeline.tracks[self.timeline.track[event]]
        return f"{self.labels.instruction(record)} on {track.name}, {self.labels.line(record)}"

    def _flow(self, kind: int, edge: int, time_ns: int) -> str:
        phase, end = ('"s"', 0) if kind == _FLOW_START else ('"f","bp":"e"', 1)
        place = self._place(int(self.timeline.edges[edge, end]))
        return f'{{"name":"needs","cat":"dependency","ph":{phase},"id":{edge + 1},{_at(time_ns)},{place}}}'

    def _place(self, event: int) -> str:
        track = int(self.timeline.track[event])
        return f'"pid":{_process(self.timeline.tracks[track].core)},"tid":{_thread(track)}'


def _at(time_ns: int) -> str:
    return f'"ts":{_microseconds(time_ns)}'


def _microseconds(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"
