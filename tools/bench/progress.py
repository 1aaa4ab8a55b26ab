"""Progress of a command on stderr: a bar on a terminal, a line per step elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Announce(Protocol):
    """Says which step begins; every step before it is done."""

    def __call__(self, step: str) -> None:
        """Announces `step`."""


@contextmanager
def progress(total: int) -> Iterator[Announce]:
    """Shows progress over `total` steps while the block runs."""
    # Python's own sign that the descriptor was closed when the process started.
    if sys.stderr is None:
        yield lambda _: None
    elif sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("starting", total=total)
            begun = 0

            def show(step: str) -> None:
                nonlocal begun
                bar.update(task, description=step, completed=begun)
                begun += 1

            yield show
    else:
        begun_lines = iter(range(1, total + 1))
        yield lambda step: print(f"[{next(begun_lines)}/{total}] {step}", file=sys.stderr, flush=True)
