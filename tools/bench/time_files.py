"""The options of a bench that write what the device-time model says to files, and their writing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from tools.bench.command_line import file_name
from tools.bench.files import caller_path, require_writable, whole_file
from tools.timeline_report import report
from tools.timeline_report.chrome_trace import write_trace
from tools.timeline_report.report import Report
from tools.timeline_report.roofline import Point

_OF_ONE_SHAPE = ("trace", "report", "occupancy")
_FILES = {
    "trace": "write one shape's predicted timeline as a Chrome trace, which Perfetto opens",
    "report": "write one shape's HTML report: timeline, where the time goes, roofline, plan",
    "occupancy": "write a PNG of one shape's engines, SBUF and PSUM over time",
    "roofline": "write a PNG of all shapes against the limits of Tensor Engine and HBM",
}
OPTIONS = ("case", *_FILES, "compare")
"""What `add_options` adds."""


class Named(Protocol):
    """A case of a suite."""

    @property
    def name(self) -> str:
        """Unique in its suite."""


Case = TypeVar("Case", bound=Named)


@dataclass(frozen=True)
class TimeFiles:
    """Files to write, by option."""

    paths: dict[str, Path]

    def write(self, reports: Sequence[Report], points: Sequence[Point]) -> None:
        """Writes them all; each is whole or not there.

        Args:
            reports: of the shape, one; not looked at where only --roofline is wanted.
            points: of all shapes.

        Raises:
            ValueError: one cannot be written.
        """
        for option, path in self.paths.items():
            with whole_file(path) as partial:
                _write(option, partial, reports, points)


def _write(option: str, partial: Path, reports: Sequence[Report], points: Sequence[Point]) -> None:
    if option in ("roofline", "occupancy"):
        partial.write_bytes(_png(option, reports, points))
        return
    (one,) = reports
    if option == "trace":
        with partial.open("w", encoding="utf-8") as file:
            write_trace(one.timeline, one.title, file)
    else:
        partial.write_text(report.html(one), encoding="utf-8")


def _png(option: str, reports: Sequence[Report], points: Sequence[Point]) -> bytes:
    from tools.timeline_report import plots  # Matplotlib takes its time to start.

    if option == "roofline":
        return plots.roofline_png(points)
    (one,) = reports
    return plots.occupancy_png(one.timeline, one.title)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds --case, --compare and an option for each file."""
    parser.add_argument("--case", metavar="NAME", help="run only this shape of the suite")
    for option, words in _FILES.items():
        parser.add_argument(f"--{option}", type=file_name, metavar="FILE", help=words)
    parser.add_argument(
        "--compare", type=file_name, metavar="OLD.json", help="compare predicted times with a file written by --json"
    )


def chosen_cases(options: argparse.Namespace, members: Sequence[Case]) -> list[Case]:
    """A suite's cases, or the one that --case names.

    Raises:
        ValueError: there is none of that name.
    """
    chosen = [case for case in members if options.case in (None, case.name)]
    if not chosen:
        names = ", ".join(case.name for case in members)
        raise ValueError(f"--case is {options.case!r}; accepted: {names}")
    return chosen


def from_options(options: argparse.Namespace, machines: Sequence[tuple[str, int]]) -> TimeFiles:
    """The files that the options name, after a check that each can be written.

    Args:
        options: with those of `add_options`, and --json.
        machines: target and number of cores of each shape that will run.

    Raises:
        ValueError: a file cannot be written, two options name one, one shape is needed and there are several, or a
            roofline would be of several machines.
    """
    shapes = len(machines)
    chosen = {option: caller_path(getattr(options, option)) for option in _FILES if getattr(options, option)}
    for option in _OF_ONE_SHAPE:
        if option in chosen and shapes != 1:
            raise ValueError(f"--{option} shows one shape, and there are {shapes}; accepted: one, chosen with --case")
    if "roofline" in chosen and len(set(machines)) > 1:
        raise ValueError("--roofline needs one target and one number of cores; accepted: shapes that agree, or --lnc")
    named: dict[Path, str] = {}
    for option in ("json", *chosen):
        name = getattr(options, option)
        if name:
            path = caller_path(name)
            require_writable(path)
            other = named.setdefault(path.resolve(), option)
            if other != option:
                raise ValueError(f"--{other} and --{option} both name {path}; accepted: a file for each")
    return TimeFiles(chosen)
