"""Counts the test cases of one Bazel run.

    count_tests.py EVENTS

EVENTS is the file of `bazel test --build_event_json_file=EVENTS`. Its events say which tests the run
had, cached ones included; the cases come from each test's XML. Prints `N passed, N failed`, with
`, N skipped` where there are any. A test without result (it was not built, say) counts as failed, and
so do events that break off (Bazel was killed, say). Exits with 1 when anything failed or nothing ran.

Standard library only: CI runs it with any Python 3.9 or newer.
"""

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse


@dataclass(frozen=True)
class Counts:
    """Numbers of test cases."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


def count_cases(xml: bytes) -> Counts:
    """Counts the test cases of a JUnit XML file."""
    total = Counts()
    for case in ElementTree.fromstring(xml).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            total += Counts(failed=1)
        elif case.find("skipped") is not None:
            total += Counts(skipped=1)
        else:
            total += Counts(passed=1)
    return total


def count_result(result: dict[str, Any]) -> Counts:
    """Counts one shard's result; one that did not pass counts a failure even if its XML shows none."""
    # Events are Protocol Buffers as JSON, which leaves out what is empty or zero.
    outputs = {output.get("name"): output.get("uri", "") for output in result.get("testActionOutput", [])}
    try:
        counts = count_cases(Path(unquote(urlparse(outputs["test.xml"]).path)).read_bytes())
    except (KeyError, OSError, ValueError, ElementTree.ParseError):
        return Counts(failed=1)
    if result.get("status") != "PASSED" and not counts.failed:
        counts += Counts(failed=1)
    return counts


def count_run(events: Iterable[dict[str, Any]]) -> Counts:
    """Counts a run's tests; a test without any result counts as one failure."""
    tests = set()
    results: dict[tuple[str, int, int], dict[str, Any]] = {}
    for event in events:
        if "testSize" in event.get("configured", {}):
            tests.add(event["id"]["targetConfigured"]["label"])
        if "testResult" in event:
            key = event["id"]["testResult"]
            # A later attempt of a flaky test replaces the one before it.
            results[key["label"], key.get("run", 0), key.get("shard", 0)] = event["testResult"]
    without_result = tests - {label for label, _, _ in results}
    for label in sorted(without_result):
        print(f"no result: {label}", file=sys.stderr)
    return sum((count_result(result) for result in results.values()), Counts(failed=len(without_result)))


class EventReader:
    """The events of a file, up to the first that cannot be read; `complete` tells whether that was all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.complete = True

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            with self.path.open("rb") as file:
                yield from map(json.loads, file)
        except (OSError, ValueError) as error:
            self.complete = False
            print(f"{self.path}: {error}", file=sys.stderr)


def main() -> None:
    """Prints the counts of the run that the command line names."""
    reader = EventReader(Path(sys.argv[1]))
    counts = count_run(reader)
    if not reader.complete:
        counts += Counts(failed=1)
    print(counts)
    sys.exit(counts.failed > 0 or counts.passed == 0)


if __name__ == "__main__":
    main()
