"""What a timeline says as tables: how busy each track is, and which instructions and lines keep it so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from devicetime.timeline import Cause, Timeline, TrackKind
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


def busy_ns(timeline: Timeline) -> np.ndarray:
    """Of each track, how long it is held: float64 [tracks]."""
    return np.bincount(timeline.track, _durations(timeline), len(timeline.tracks))


def busy_share(timeline: Timeline, short_name: str) -> float:
    """Of the whole time, how much of it a kind of track is busy, cores averaged."""
    chosen = [number for number, track in enumerate(timeline.tracks) if track.short_name == short_name]
    if not chosen or not timeline.events:
        return 0.0
    return float(busy_ns(timeline)[chosen].mean() / timeline.total_ns)


def waiting_ns(timeline: Timeline) -> np.ndarray:
    """Of each track, how long it is idle before an event, by the cause of that event: float64 [tracks, causes]."""
    waiting = np.zeros((len(timeline.tracks), len(Cause)))
    for number in range(len(timeline.tracks)):
        mine = np.flatnonzero(timeline.track == number)
        reached = np.concatenate([[0.0], np.maximum.accumulate(timeline.end_ns[mine])])[:-1]
        gaps = np.maximum(timeline.start_ns[mine] - reached, 0.0)
        waiting[number] = np.bincount(timeline.cause[mine], gaps, len(Cause))
    return waiting


def tables(timeline: Timeline) -> tuple[Table, ...]:
    """Tracks, instructions and lines."""
    return _tracks(timeline), _instructions(timeline), _lines(timeline)


def _durations(timeline: Timeline) -> np.ndarray:
    return timeline.end_ns - timeline.start_ns


def _tracks(timeline: Timeline) -> Table:
    """Engines one by one, DMA queues of a core together."""
    busy, waiting = busy_ns(timeline), waiting_ns(timeline)
    counts = np.bincount(timeline.track, minlength=len(timeline.tracks))
    causes = [cause for cause in Cause if waiting[:, cause].any() and cause not in (Cause.none, Cause.engine)]
    total = timeline.total_ns or 1.0
    rows = []
    for name, members in _groups(timeline):
        if not counts[members].any():
            continue
        share = [busy[members].mean() / total, *(waiting[members][:, cause].mean() / total for cause in causes)]
        rows.append((name, f"{counts[members].sum():,}", *(f"{part:.1%}" for part in share)))
    return Table(
        "Tracks",
        ("track", "events", "busy", *(cause.name.replace("_", " ") for cause in causes)),
        tuple(rows),
        "Shares of the whole time; of DMA queues their average. After busy: idle before an event, by what kept it "
        "from beginning earlier. The rest is idle after the last event.",
    )


def _groups(timeline: Timeline) -> list[tuple[str, list[int]]]:
    groups: dict[str, list[int]] = {}
    for number, track in enumerate(timeline.tracks):
        name = f"core {track.core} DMA queues" if track.kind is TrackKind.dma_queue else track.name
        groups.setdefault(name, []).append(number)
    return list(groups.items())


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
