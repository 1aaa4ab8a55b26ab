"""Compares a bench's predicted times with those in a JSON file that it wrote earlier."""

from __future__ import annotations

import argparse
import math
import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from tools.bench.files import caller_path, read_json
from tools.bench.tables import new_table, note

VERSION = 2
"""Of the JSON documents of benches."""

TOLERANCE = 0.02
"""How much longer than before, of the time before, is no regression."""

LARGEST_FILE_BYTES = 2**26

ACCEPTED = "what --json wrote"


def read_times(path: Path, kernel: str) -> dict[str, float]:
    """Predicted ns by shape, from a bench's JSON file.

    Raises:
        ValueError: the file cannot be read, is no bench's, of another kernel or of another version.
    """
    document = read_json(path, LARGEST_FILE_BYTES, ACCEPTED)
    if not isinstance(document, dict) or not {"version", "kernel", "shapes"} <= set(document):
        raise ValueError(f"{path} is not a JSON file of a bench; accepted: {ACCEPTED}")
    if document["kernel"] != kernel:
        raise ValueError(f"{path} is of kernel {reprlib.repr(document['kernel'])}; accepted: {kernel!r}")
    if document["version"] != VERSION:
        raise ValueError(
            f"{path} is of version {reprlib.repr(document['version'])}; accepted: {VERSION}, of this bench's --json"
        )
    try:
        return {_name(shape["name"]): _positive(shape["predicted"]["ns"]) for shape in document["shapes"]}
    except (KeyError, OverflowError, TypeError, ValueError):
        raise ValueError(f"{path} has shapes without a name or predicted time; accepted: {ACCEPTED}") from None


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError
    return value


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError
    return float(value)


def from_options(options: argparse.Namespace, kernel: str) -> dict[str, float] | None:
    """Times of the file that --compare names; None where it names none.

    Raises:
        ValueError: as `read_times`.
    """
    return read_times(caller_path(options.compare), kernel) if options.compare else None


def is_slower(before_ns: float, now_ns: float) -> bool:
    """Whether a time is a regression."""
    return now_ns > before_ns * (1 + TOLERANCE)


def slower(before_ns: Mapping[str, float] | None, now_ns: Mapping[str, float]) -> list[str]:
    """The shapes that are in both and regressed."""
    before = before_ns or {}
    return [name for name, now in now_ns.items() if name in before and is_slower(before[name], now)]


def tables(before_ns: Mapping[str, float] | None, now_ns: Mapping[str, float]) -> Iterator[RenderableType]:
    """A row per shape of either, those of now first; nothing where there is no before."""
    if before_ns is not None:
        yield _table(before_ns, now_ns)
        yield note(f"Slower: by more than {TOLERANCE:.0%}.")


def _table(before_ns: Mapping[str, float], now_ns: Mapping[str, float]) -> Table:
    made = new_table("compared with before", "shape", "before µs", "now µs", "change", "")
    for name in [*now_ns, *(name for name in before_ns if name not in now_ns)]:
        before, now = before_ns.get(name), now_ns.get(name)
        made.add_row(name, _microseconds(before), _microseconds(now), *_change(before, now))
    return made


def _microseconds(ns: float | None) -> str:
    return "" if ns is None else f"{ns / 1e3:,.1f}"


def _change(before: float | None, now: float | None) -> tuple[str, str]:
    if before is None or now is None:
        return "", "new" if before is None else "not run"
    verdict = "SLOWER" if is_slower(before, now) else "faster" if is_slower(now, before) else "same"
    return f"{now / before - 1:+.1%}", verdict
