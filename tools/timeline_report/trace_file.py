"""Reads back what `chrome_trace` wrote."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HEAD = {"title": str, "target": str, "simulated": bool, "total_ns": (int, float)}


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
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise _not_a_trace(path, "it is not JSON") from None
    try:
        return _trace(document)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _not_a_trace(path, f"{type(error).__name__} {error}") from None


def _not_a_trace(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} is not a trace ({why}); accepted: a file that a bench wrote with --trace")


def _trace(document: Any) -> Trace:
    head = document["otherData"]
    for name, kind in _HEAD.items():
        if not isinstance(head[name], kind):  # type: ignore[arg-type]
            raise TypeError(f"otherData.{name} is {head[name]!r}")
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    busy: defaultdict[tuple[str, str], float] = defaultdict(float)
    calls, lines, counts = defaultdict[str, float](float), defaultdict[str, float](float), Counter[str]()
    for event in document["traceEvents"]:
        if event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"].split(",")[0]
        elif event["name"] == "thread_name":
            threads[event["pid"], event["tid"]] = event["args"]["name"]
        elif event["ph"] == "X":
            duration_ns = 1e3 * float(event["dur"])
            busy[processes[event["pid"]], threads[event["pid"], event["tid"]]] += duration_ns
            calls[event["name"]] += duration_ns
            lines[event["args"]["line"]] += duration_ns
            counts[event["name"]] += 1
    return Trace(head["title"], head["target"], float(head["total_ns"]), dict(busy), dict(calls), dict(lines), counts)
