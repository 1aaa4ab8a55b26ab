"""Argument parsing that the commands of this package share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

BAD_INPUT = 2
"""Exit status for bad usage or input."""


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


def integer(at_least: int) -> Callable[[str], int]:
    """An argument type: decimal integers from `at_least`."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or int(text) < at_least:
            raise argparse.ArgumentTypeError(f"{text!r}; accepted: an integer from {at_least}")
        return int(text)

    return parse
