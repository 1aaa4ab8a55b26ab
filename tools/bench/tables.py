"""Results as tables for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from tools.bench.command_line import written_to_stdout

WIDTH = 120
"""Columns of text where stdout is no terminal."""


def show(renderables: Iterable[RenderableType], width: int = WIDTH) -> None:
    """Prints to stdout with empty lines between them.

    Args:
        renderables: tables and notes.
        width: columns of text where stdout is no terminal.

    Raises:
        ValueError: stdout cannot be written.
    """
    # Names in brackets or colons are names, not rich's markup.
    console = Console(width=None if sys.stdout.isatty() else width, highlight=False, markup=False, emoji=False)
    texts = []
    # The console, too, flushes stdout.
    with written_to_stdout():
        for renderable in renderables:
            with console.capture() as captured:
                console.print(renderable)
            texts.append("\n".join(line.rstrip() for line in captured.get().splitlines()))
        print("\n\n".join(texts))


def new_table(title: str, first: str, *others: str) -> Table:
    """An empty table: the first column to the left and never cut, the others to the right."""
    made = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1), show_edge=False
    )
    made.add_column(first, no_wrap=True)
    for name in others:
        made.add_column(name, justify="right")
    return made


def note(text: str) -> Text:
    """A line below a table that says what its numbers are."""
    return Text(text, style="dim")
