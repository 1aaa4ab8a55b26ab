"""The dynamic loops around each instruction of a core, and the blocks that keep their order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager

from nkisim.errors import LoopError
from nkisim.record import Record
from nkisim.storage import Allocation

Nest = tuple[int, ...]


class Loops:
    """Which dynamic loops a core is in, now and at any instruction it has issued.

    Attributes:
        ordered: (first, last + 1) positions in the stream of blocks whose instructions keep their order.
    """

    def __init__(self, stream: list[Record]) -> None:
        self._stream = stream
        self._starts = [0]
        self._nests: list[Nest] = [()]
        self._entered = 0
        self._owners: set[int] = set()
        self._made: dict[int, tuple[Allocation, Nest]] = {}
        self._ordered_since: list[int] = []
        self.ordered: list[tuple[int, int]] = []

    @property
    def nest(self) -> Nest:
        """Numbers of the loops that run now, outermost first."""
        return self._nests[-1]

    def around(self, position: int) -> Nest:
        """Numbers of the loops in which the instruction at `position` of the stream was issued."""
        return self._nests[bisect_right(self._starts, position) - 1]

    @contextmanager
    def entered(self, *, owns_tensors: bool = False) -> Iterator[None]:
        """Inside, instructions belong to one dynamic loop more.

        Args:
            owns_tensors: whether tensors made inside end with the loop.
        """
        outside = self.nest
        self._entered += 1
        if owns_tensors:
            self._owners.add(self._entered)
        self._switch((*outside, self._entered))
        try:
            yield
        finally:
            self._switch(outside)

    @contextmanager
    def kept_in_order(self) -> Iterator[None]:
        """Inside, instructions keep their order."""
        self._ordered_since.append(len(self._stream))
        try:
            yield
        finally:
            self.ordered.append((self._ordered_since.pop(), len(self._stream)))

    def check_allowed(self, call: str) -> None:
        """A dynamic loop may start here.

        Raises:
            LoopError: instructions keep their order here.
        """
        if self._ordered_since:
            raise LoopError(
                f"{call} within nl.no_reorder; accepted: nl.no_reorder within the loop, or an unrolled loop"
            )

    def note_made(self, allocation: Allocation) -> None:
        """A tensor was made."""
        owners = tuple(loop for loop in self.nest if loop in self._owners)
        if owners:
            self._made[allocation.number] = (allocation, owners)

    def check_tensors(self) -> None:
        """After a run: no tensor made in the body of `fori_loop` or `while_loop` was used outside of it.

        Raises:
            LoopError: one was.
        """
        if not self._made:
            return
        for position, record in enumerate(self._stream):
            for region in (*record.writes, *record.reads):
                allocation, owners = self._made.get(region.allocation.number, (None, ()))
                if allocation is region.allocation and not set(owners) <= set(self.around(position)):
                    raise LoopError(
                        f"{allocation.name} {list(allocation.shape)} was made in the body of a dynamic loop at "
                        f"{allocation.site} and is used after it by {record.op} at {record.site}; "
                        f"accepted: tensors made outside the body"
                    )

    def _switch(self, nest: Nest) -> None:
        self._starts.append(len(self._stream))
        self._nests.append(nest)
