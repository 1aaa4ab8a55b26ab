"""Where a kernel's time goes: engines, the critical path, stalls by cause.

Everything here is read off a finished timeline; `what_if` asks what the kernel would gain without something.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType

import numpy as np

from devicetime.timeline import Cause, Timeline, TrackKind
from nkisim.record import Record
from nkisim.source import Site


@dataclass(frozen=True)
class CriticalPath:
    """The chain of events that ends last, each of which began when it did because of the one before it.

    Attributes:
        events: in order of time.
        run_ns: what each of them adds to the kernel's time.
        wait_ns: time between the one before and it, which its cause explains.
    """

    events: np.ndarray
    run_ns: np.ndarray
    wait_ns: np.ndarray


def busy_shares(timeline: Timeline) -> dict[str, float]:
    """Share of the time in which each engine holds an instruction; of a core's DMA queues, in which any does."""
    shares: dict[str, float] = {}
    for number, track in enumerate(timeline.tracks):
        if track.kind is not TrackKind.dma_queue:
            mine = timeline.track == number
            held = float((timeline.end_ns[mine] - timeline.start_ns[mine]).sum())
            if mine.any():
                shares[track.name] = held / timeline.total_ns
    kinds = np.array([track.kind is TrackKind.dma_queue for track in timeline.tracks])
    for core in range(len(timeline.streams)):
        mine = kinds[timeline.track] & (timeline.core == core)
        if mine.any():
            shares[f"core {core} DMA"] = _covered(timeline.start_ns[mine], timeline.end_ns[mine]) / timeline.total_ns
    return shares


def _covered(start_ns: np.ndarray, end_ns: np.ndarray) -> float:
    """Length of the union of intervals, which are in order of start."""
    reached = np.maximum.accumulate(np.concatenate([[0.0], end_ns]))[:-1]
    return float(np.maximum(0.0, end_ns - np.maximum(start_ns, reached)).sum())


def critical_path(timeline: Timeline) -> CriticalPath:
    """The chain that ends with the last result."""
    events: list[int] = []
    run_ns: list[float] = []
    wait_ns: list[float] = []
    event, upper = int(timeline.visible_ns.argmax()), timeline.total_ns
    while event >= 0:
        start = float(timeline.start_ns[event])
        blocker = int(timeline.blocker[event])
        freed = timeline.end_ns if timeline.track[event] == timeline.track[blocker] else timeline.visible_ns
        reached = min(start, float(freed[blocker])) if blocker >= 0 else 0.0
        events.append(event)
        run_ns.append(upper - start)
        wait_ns.append(start - reached)
        event, upper = blocker, reached
    return CriticalPath(*(np.array(each[::-1]) for each in (events, run_ns, wait_ns)))


def path_by_call(timeline: Timeline, path: CriticalPath) -> dict[str, float]:
    """Nanoseconds of the path per call and track, and per cause of waiting, the most first."""
    return _path_by(timeline, path, lambda record: record.op)


def path_by_line(timeline: Timeline, path: CriticalPath) -> dict[str, float]:
    """Nanoseconds of the path per line of the kernel, and per cause of waiting, the most first."""
    return _path_by(timeline, path, line_of)


def _path_by(timeline: Timeline, path: CriticalPath, label: Callable[[Record], str]) -> dict[str, float]:
    spent: defaultdict[str, float] = defaultdict(float)
    for event, run, wait in zip(path.events.tolist(), path.run_ns, path.wait_ns, strict=True):
        on = timeline.tracks[timeline.track[event]].kind
        where = "DMA" if on is TrackKind.dma_queue else timeline.tracks[timeline.track[event]].short_name
        spent[f"{label(timeline.record_of(event))} on {where}"] += float(run)
        if wait > 0:
            spent[f"waiting: {Cause(int(timeline.cause[event])).name}"] += float(wait)
    return _most_first(spent)


def _most_first(spent: dict[str, float]) -> dict[str, float]:
    return {name: ns for name, ns in sorted(spent.items(), key=lambda item: -item[1]) if ns > 0}


def line_of(record: Record) -> str:
    """File and line of the kernel that issued a record."""
    return _line(record.code, record.instruction)


@cache
def _line(code: CodeType, instruction: int) -> str:
    return f"{Path(code.co_filename).name}:{Site(code, instruction).line}"


def stalls(timeline: Timeline) -> dict[str, dict[str, float]]:
    """Nanoseconds in which each engine waited, by cause; what is left at the end of the kernel is "none".

    Where an instruction waited for another, the time after that one's result was there is latency: `semaphore`.
    """
    found: dict[str, dict[str, float]] = {}
    for number, track in enumerate(timeline.tracks):
        mine = np.flatnonzero(timeline.track == number)
        if track.kind is not TrackKind.engine or not len(mine):
            continue
        ends = np.concatenate([[0.0], timeline.end_ns[mine]])
        gaps = np.maximum(0.0, timeline.start_ns[mine] - ends[:-1])
        blocker = timeline.blocker[mine]
        result = np.where(blocker >= 0, timeline.visible_ns[blocker], timeline.start_ns[mine])
        cause = timeline.cause[mine]
        data = (cause == Cause.dependency) | (cause == Cause.buffer_reuse)
        latency = np.where(data, np.clip(timeline.start_ns[mine] - result, 0.0, gaps), 0.0)
        causes = defaultdict(float, none=timeline.total_ns - float(ends[-1]))
        for value in Cause:
            causes[value.name] += float((gaps - latency)[cause == value].sum())
        causes[Cause.semaphore.name] += float(latency.sum())
        found[track.name] = _most_first(causes)
    return found
