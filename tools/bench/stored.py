"""Predicted times that the repository keeps next to each bench, so that a plan that gets slower is noticed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.bench import comparison
from tools.bench.command_line import BAD_INPUT
from tools.bench.files import read_json, whole_file

FILE_NAME = "predicted_times.json"

Times = Mapping[str, Mapping[str, float]]
"""Predicted ns by suite and shape."""


def problems(path: Path, kernel: str, now_ns: Times) -> list[str]:
    """What differs from the stored times so that it needs a look: shapes that are slower, new or gone.

    Raises:
        ValueError: the file is not of this kernel and version.
    """
    stored = _read(path, kernel)
    found = []
    for suite, times in now_ns.items():
        before = stored.get(suite, {})
        for name in comparison.slower(before, times):
            change = times[name] / before[name] - 1
            found.append(f"{suite}/{name}: {before[name]:,.1f} ns stored, {times[name]:,.1f} ns now, {change:+.1%}")
        found += [f"{suite}/{name}: not stored" for name in times if name not in before]
        found += [f"{suite}/{name}: stored, and no shape any more" for name in before if name not in times]
    found += [f"{suite}: stored, and no suite any more" for suite in stored if suite not in now_ns]
    return found


def write(path: Path, kernel: str, now_ns: Times) -> None:
    """Replaces the stored times."""
    suites = {suite: {name: round(ns, 1) for name, ns in times.items()} for suite, times in now_ns.items()}
    document = {"version": comparison.VERSION, "kernel": kernel, "predicted_ns": suites}
    with whole_file(path) as partial:
        partial.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")


def update(kernel: str, predict: Callable[[], Times]) -> int:
    """The command that replaces the stored times in the source tree; returns its exit status."""
    workspace = os.environ.get("BUILD_WORKSPACE_DIRECTORY")
    if workspace is None:
        print("error: this changes the source tree; call it through bazel run", file=sys.stderr)
        return BAD_INPUT
    path = Path(workspace) / "kernels" / kernel / "bench" / FILE_NAME
    now_ns = predict()
    try:
        for problem in problems(path, kernel, now_ns):
            print(problem)
    except ValueError as error:
        print(f"replaced: {error}")
    write(path, kernel, now_ns)
    print(f"{path}: {sum(map(len, now_ns.values()))} shapes")
    return 0


def _read(path: Path, kernel: str) -> dict[str, dict[str, float]]:
    document = read_json(path, comparison.LARGEST_FILE_BYTES, "what update wrote")
    wanted = {"version": comparison.VERSION, "kernel": kernel}
    if not isinstance(document, dict) or wanted != {key: document.get(key) for key in wanted}:
        raise ValueError(f"{path} is not of {kernel}, version {comparison.VERSION}; accepted: what update wrote")
    stored: dict[str, dict[str, float]] = document["predicted_ns"]
    return stored
