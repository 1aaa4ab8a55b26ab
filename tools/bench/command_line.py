"""Argument parsing and printing that commands share."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

BAD_INPUT = 2
"""Exit status for bad usage or input, and for results that cannot be written."""

LARGEST_INTEGER = 2**31 - 1


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, without repeating the usage."""

    def __init__(self, prog: str, description: str | None, epilog: str) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(
            prog=prog, description=description, epilog=epilog, formatter_class=formatter, allow_abbrev=False
        )

    def error(self, message: str) -> NoReturn:
        """Ends the command with exit status 2."""
        self.exit(BAD_INPUT, f"{self.prog}: error: {message}; see --help\n")


def integer(at_least: int, at_most: int = LARGEST_INTEGER) -> Callable[[str], int]:
    """An argument type: decimal integers from `at_least` to `at_most`."""

    def parse(text: str) -> int:
        digits = text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST_INTEGER))
        if not digits or not at_least <= int(text) <= at_most:
            raise argparse.ArgumentTypeError(f"{text!r}; accepted: an integer from {at_least} to {at_most}")
        return int(text)

    return parse


def file_name(text: str) -> str:
    """An argument type: the name of a file."""
    if not text:
        raise argparse.ArgumentTypeError("''; accepted: the name of a file")
    return text


def require_stdout() -> None:
    """Refuses a closed stdout before work is done for it.

    Raises:
        ValueError: stdout is closed.
    """
    # Python's own sign that the descriptor was closed when the process started.
    if sys.stdout is None:
        raise ValueError("stdout is closed; accepted: a terminal, file or pipe")


@contextmanager
def written_to_stdout() -> Iterator[None]:
    """Has what the block prints written at its end.

    Raises:
        ValueError: stdout takes no more: its reader has gone, or its disk is full.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # What is left in the buffer would fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise ValueError(f"stdout cannot be written: {error.strerror}") from None
