"""What a timeline says as tables: how busy each engine is, and which instructions and lines keep it so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from devicetime import analysis
from devicetime.timeline import Cause, Timeline
from nkisim.record import Record
from tools.timeline_report.labels import Labels

_LONGEST = 20
"""Rows of the table of lines."""


@dataclass(frozen=True)
class Table:
    """Text for people.

    Attributes:
        title: says what it is.
        header: names of the columns.
        rows: cells, as many as columns.
        note: what the numbers are; "" for nothing.
        text_columns: how many columns, from the left, are words; the others are numbers.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    text_columns: int = 1


def busy_share(timeline: Timeline, short_name: str) -> float:
    """Of the whole time, how much of it an engine is busy, cores averaged."""
    shares = analysis.busy_shares(timeline) if timeline.events else {}
    chosen = [track.name for track in timeline.tracks if track.short_name == short_name]
    return sum(shares.get(name, 0.0) for name in chosen) / max(len(chosen), 1)


def tables(timeline: Timeline) -> tuple[Table, ...]:
    """Engines, instructions and lines."""
    return _tracks(timeline), _instructions(timeline), _lines(timeline)


def _durations(timeline: Timeline) -> np.ndarray:
    return timeline.end_ns - timeline.start_ns


def _tracks(timeline: Timeline) -> Table:
    """Engines one by one, DMA queues of a core together."""
    shares = analysis.busy_shares(timeline) if timeline.events else {}
    stalls = analysis.stalls(timeline)
    waited = {name for causes in stalls.values() for name in causes}
    causes = [cause.name for cause in Cause if cause.name in waited and cause is not Cause.none]
    rows = []
    for name, share in shares.items():
        of_engine = stalls.get(name)
        waits = [of_engine.get(cause, 0.0) / timeline.total_ns if of_engine else None for cause in (*causes, "none")]
        rows.append((name, *("" if part is None else f"{part:.1%}" for part in (share, *waits))))
    return Table(
        "Engines",
        ("engine", "busy", *(cause.replace("_", " ") for cause in causes), "done"),
        tuple(rows),
        "Shares of the whole time. DMA: any queue of the core is busy. After busy: what an engine waited for; done: "
        "after its last instruction.",
    )


def _instructions(timeline: Timeline) -> Table:
    labels = Labels()
    rows = _summed(timeline, lambda record: (labels.instruction(record), record.engine.name))
    return Table(
        "Instructions",
        ("instruction", "engine", "events", "busy", "of all", "each"),
        rows,
        "Busy: their tracks, of all cores together.",
        text_columns=2,
    )


def _lines(timeline: Timeline) -> Table:
    labels = Labels()
    rows = _summed(timeline, lambda record: (labels.line(record), labels.instruction(record)))
    return Table(
        "Lines",
        ("line", "instruction", "events", "busy", "of all", "each"),
        rows[:_LONGEST],
        f"The {_LONGEST} that keep tracks busy longest." if len(rows) > _LONGEST else "",
        text_columns=2,
    )


def _summed(timeline: Timeline, key: Callable[[Record], tuple[str, str]]) -> tuple[tuple[str, ...], ...]:
    """Rows of events and time by a key, longest first."""
    busy: dict[tuple[str, str], list[float]] = {}
    durations = _durations(timeline)
    for core, stream in enumerate(timeline.streams):
        mine = timeline.core == core
        counts = np.bincount(timeline.record[mine], minlength=len(stream))
        times = np.bincount(timeline.record[mine], durations[mine], len(stream))
        for record, count, time_ns in zip(stream, counts.tolist(), times.tolist(), strict=True):
            sums = busy.setdefault(key(record), [0, 0.0])
            sums[0] += count
            sums[1] += time_ns
    total = float(durations.sum()) or 1.0
    ordered = sorted(busy.items(), key=lambda item: (-item[1][1], item[0]))
    return tuple(
        (*names, f"{count:,.0f}", f"{time_ns / 1e3:,.1f} µs", f"{time_ns / total:.1%}", f"{time_ns / count:,.0f} ns")
        for names, (count, time_ns) in ordered
        if count
    )
