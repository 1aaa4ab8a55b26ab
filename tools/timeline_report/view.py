"""Prints where a trace's time goes as tables, for terminals and CI logs; Perfetto shows the same file as a picture."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from tools.bench.command_line import BAD_INPUT, OneLineParser, file_name, integer, require_stdout
from tools.bench.files import caller_path
from tools.bench.tables import new_table, note, show
from tools.timeline_report.trace_file import Trace, read_trace

OK = 0
DEFAULT_TOP = 12

_EXAMPLES = f"""examples:
  bazel run //kernels/mla_decode:bench -- --case production --trace step.json
  bazel run //tools/timeline_report:view -- step.json
  bazel run //tools/timeline_report:view -- step.json --top 40

exit status: {OK} shown, {BAD_INPUT} bad usage, or a file that is not a trace
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = OneLineParser("view", __doc__, _EXAMPLES)
    parser.add_argument("trace", type=file_name, help="a file that a bench wrote with --trace")
    parser.add_argument(
        "--top", type=integer(1), default=DEFAULT_TOP, metavar="N", help=f"rows of a table (default: {DEFAULT_TOP})"
    )
    options = parser.parse_args(arguments)
    try:
        require_stdout()
        show(_tables(read_trace(Path(caller_path(options.trace))), options.top))
    except ValueError as error:
        parser.error(str(error))
    return OK


def _tables(trace: Trace, top: int) -> Iterator[RenderableType]:
    yield note(f"{trace.title} on {trace.target}: {trace.total_ns / 1e3:,.1f} us, simulated")
    engines = {f"{core} {track}": ns for (core, track), ns in trace.busy_ns.items()}
    yield _table("engines and DMA queues", "track", engines, trace.total_ns, len(engines))
    yield _table("instructions", "call", trace.calls_ns, trace.total_ns, top, trace.counts)
    yield _table("source lines", "line", trace.lines_ns, trace.total_ns, top)
    yield note("Time of all slices, added up over tracks that run side by side; share: of the run's time.")


def _table(
    title: str, first: str, times_ns: dict[str, float], total_ns: float, top: int, counts: Counter[str] | None = None
) -> RenderableType:
    table = new_table(title, first, *(["count"] if counts else []), "us", "share")
    for name, ns in sorted(times_ns.items(), key=lambda item: (-item[1], item[0]))[:top]:
        cells: list[Any] = [f"{counts[name]:,}"] if counts else []
        table.add_row(name, *cells, f"{ns / 1e3:,.1f}", f"{ns / total_ns:.0%}" if total_ns else "")
    return table


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
