"""The dynamic loops around each instruction of a core."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Nest = tuple[int, ...]


class Loops:
    """Which dynamic loops a core is in, now and at any instruction it has issued.

    Attributes:
        no_reorder_blocks: how many `nl.no_reorder` blocks are open.
    """

    def __init__(self, stream: list[Any]) -> None:
        self._stream = stream
        self._starts = [0]
        self._nests: list[Nest] = [()]
        self._entered = 0
        self.no_reorder_blocks = 0

    @property
    def nest(self) -> Nest:
        """Numbers of the loops that run now, outermost first."""
        return self._nests[-1]

    def around(self, position: int) -> Nest:
        """Numbers of the loops in which the instruction at `position` of the stream was issued."""
        return self._nests[bisect_right(self._starts, position) - 1]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, instructions belong to one dynamic loop more."""
        outside = self.nest
        self._entered += 1
        self._switch((*outside, self._entered))
        try:
            yield
        finally:
            self._switch(outside)

    def _switch(self, nest: Nest) -> None:
        self._starts.append(len(self._stream))
        self._nests.append(nest)
