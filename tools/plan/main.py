"""Shows the plan of a kernel call, the reasons for it and its predicted time; or sweeps sizes and plan options.

Every option of a kernel takes one value or several: 1,2,4 or 1..8, or `plan` for the value that the planner chooses.
With one value each, the plan is printed. With several, every combination is planned and predicted, in parallel
processes. Everything is simulated; no Trainium is used.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Self

from rich.text import Text

from common import hardware
from tools.bench.command_line import BAD_INPUT, OneLineParser, file_name, integer, require_stdout
from tools.bench.files import caller_path, require_writable, whole_file
from tools.bench.progress import progress
from tools.bench.tables import show
from tools.plan import plot, points, results
from tools.plan.points import BY_PLAN, Outcome
from tools.plan.subject import Subject
from tools.plan.subjects import SUBJECTS

OK, NO_PLAN = 0, 1
WIDTH = 150
"""Columns of the table where stdout is no terminal."""

_WRITERS = {
    "csv": lambda outcomes: results.csv_text(outcomes).encode(),
    "json": lambda outcomes: results.json_text(outcomes).encode(),
    "plot": plot.plot_png,
}

_EXAMPLES = f"""examples:
  bazel run //tools/plan -- qkv_cte
  bazel run //tools/plan -- qkv_cte --seqlen 1184 --width 5120 --degree 1..8,plan --plot degrees.png
  bazel run //tools/plan -- mla_decode --tokens 16,32,64 --dma-chunks 0..4 --csv chunks.csv

exit status: {OK} there is a plan, {NO_PLAN} no combination of the sweep has one, {BAD_INPUT} bad usage, input or output
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    subject = SUBJECTS[options.kernel]
    try:
        require_stdout()
        target = hardware.get(options.target).name
        lists = {knob.name: getattr(options, knob.name.replace("-", "_")) for knob in subject.knobs}
        chosen = points.combinations(lists)
        if options.plot:
            plot.axes_of(chosen)
        paths = [caller_path(getattr(options, option)) for option in _WRITERS if getattr(options, option)]
        for path in paths:
            require_writable(path)
        if len({path.resolve() for path in paths}) < len(paths):
            raise ValueError("two of --csv, --json and --plot name one file; accepted: a file for each")
        if len(chosen) == 1:
            return _one(options, subject, target, chosen[0])
        return _sweep(options, subject, target, chosen)
    except BrokenProcessPool:
        parser.error("a process that ran points was ended from outside; accepted: fewer at a time, with --jobs")
    except ValueError as error:
        parser.error(str(error))


def _one(options: argparse.Namespace, subject: Subject, target: str, values: dict[str, int | None]) -> int:
    with progress(2) as announce:
        announce("planning")
        planned = subject.plan(values, hardware.get(target))
        announce("predicting")
        outcome = points.of_plan(subject, target, values, planned)
    _write(options, [outcome])
    show([Text(str(planned)), *results.table([outcome])], WIDTH)
    return OK


def _sweep(options: argparse.Namespace, subject: Subject, target: str, chosen: Sequence[dict[str, int | None]]) -> int:
    jobs = min(options.jobs or os.cpu_count() or 1, len(chosen))
    varied = results.swept(chosen)
    outcomes = []
    with progress(len(chosen)) as announce, _Workers(jobs) as workers:
        waiting = [workers.run(subject.name, target, values) for values in chosen]
        for values, outcome in zip(chosen, waiting, strict=True):
            announce(" ".join(f"{name} {BY_PLAN if values[name] is None else values[name]}" for name in varied))
            outcomes.append(outcome())
    if not results.fastest(outcomes):
        print(f"plan: no combination of the sweep has a plan; first reason: {outcomes[0].refusal}", file=sys.stderr)
        return NO_PLAN
    _write(options, outcomes)
    show(results.table(outcomes), WIDTH)
    return OK


def _end_quietly() -> None:
    """Lets Ctrl-C end a process of the pool without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


class _Workers:
    """Processes that run points; none but this one where there is one job."""

    def __init__(self, jobs: int) -> None:
        # Fresh processes: threads of this one would be halves in a forked one.
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(jobs, spawn, _end_quietly) if jobs > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def run(self, kernel: str, target: str, values: dict[str, int | None]) -> Callable[[], Outcome]:
        """Begins a point; the result waits for it."""
        if self._pool is None:
            return functools.partial(points.run, kernel, target, values)
        # A process that this starts keeps Ctrl-C waiting until it can end without a traceback.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._pool.submit(points.run, kernel, target, values).result
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _write(options: argparse.Namespace, outcomes: Sequence[Outcome]) -> None:
    for option, writer in _WRITERS.items():
        if name := getattr(options, option):
            content = writer(outcomes)
            with whole_file(caller_path(name)) as partial:
                partial.write_bytes(content)


def _parser() -> OneLineParser:
    parser = OneLineParser("plan", __doc__, _EXAMPLES)
    kernels = parser.add_subparsers(dest="kernel", required=True, metavar="KERNEL")
    for subject in SUBJECTS.values():
        one = kernels.add_parser(subject.name, help=subject.help, description=__doc__, epilog=_EXAMPLES)
        add_subject(one, subject)
        one.add_argument(
            "--csv", type=file_name, metavar="FILE", help="also write one line per combination to this file"
        )
        one.add_argument("--json", type=file_name, metavar="FILE", help="also write everything to this file")
        one.add_argument("--plot", type=file_name, metavar="FILE", help="also write a PNG of the predicted times")
        one.add_argument(
            "--jobs", type=integer(1, 1024), metavar="N", help="parallel processes (default: all processors)"
        )
    return parser


def add_subject(parser: argparse.ArgumentParser, subject: Subject) -> None:
    """Adds a kernel's target and knobs."""
    parser.add_argument("--target", default=subject.target, help=f"trn2 or trn3 (default: {subject.target})")
    for knob in subject.knobs:
        default = BY_PLAN if knob.default is None else str(knob.default)
        parser.add_argument(
            f"--{knob.name}",
            type=points.values_of(knob),
            default=(knob.default,),
            metavar="N",
            help=f"{knob.help} (default: {default})",
        )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
