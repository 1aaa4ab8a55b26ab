"""Reads back what `chrome_trace` wrote."""

from __future__ import annotations

import math
import reprlib
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.bench.files import read_json

LARGEST_FILE_BYTES = 2**32

ACCEPTED = "a file that a bench wrote with --trace"


@dataclass(frozen=True)
class Trace:
    """Where a trace's time goes.

    Attributes:
        title, target: of the run.
        total_ns: predicted time.
        busy_ns: time in slices by (process, thread): a core and its engine or DMA queue.
        calls_ns, lines_ns: time in slices by instruction name, and by source line.
        counts: slices by instruction name.
    """

    title: str
    target: str
    total_ns: float
    busy_ns: dict[tuple[str, str], float]
    calls_ns: dict[str, float]
    lines_ns: dict[str, float]
    counts: Counter[str]


def read_trace(path: Path) -> Trace:
    """Reads a trace file.

    Raises:
        ValueError: it cannot be read, is no JSON, or is no trace of this repository's benches.
    """
    document = read_json(path, LARGEST_FILE_BYTES, ACCEPTED)
    try:
        return _trace(document)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        why = f"{type(error).__name__} {error}"
        raise ValueError(f"{path} is not a trace ({why}); accepted: {ACCEPTED}") from None


def _trace(document: Any) -> Trace:
    head = document["otherData"]
    title, target, total_ns = _word(head["title"]), _word(head["target"]), _time(head["total_ns"])
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    busy: defaultdict[tuple[str, str], float] = defaultdict(float)
    calls, lines, counts = defaultdict[str, float](float), defaultdict[str, float](float), Counter[str]()
    for event in document["traceEvents"]:
        if event["name"] == "process_name":
            processes[event["pid"]] = _word(event["args"]["name"]).split(",")[0]
        elif event["name"] == "thread_name":
            threads[event["pid"], event["tid"]] = _word(event["args"]["name"])
        elif event["ph"] == "X":
            name, duration_ns = _word(event["name"]), 1e3 * _time(event["dur"])
            busy[processes[event["pid"]], threads[event["pid"], event["tid"]]] += duration_ns
            calls[name] += duration_ns
            lines[_word(event["args"]["line"])] += duration_ns
            counts[name] += 1
    return Trace(title, target, total_ns, dict(busy), dict(calls), dict(lines), counts)


def _word(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise TypeError(f"{reprlib.repr(value)}, not a line of text")
    return value


def _time(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise TypeError(f"{reprlib.repr(value)}, not a time")
    return float(value)
