"""`NkiInstruction`: what an instruction returns, and the order it can be made to keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nkisim.errors import ArgumentError, DependencyError
from nkisim.objects import NKIObject

if TYPE_CHECKING:
    from nkisim.machine import Core


class NkiInstruction(NKIObject):
    """Handle of an instruction that was issued.

    Attributes:
        core: the core that issued it.
        position: its place in the core's stream of records.
    """

    __slots__ = ("core", "position")

    core: Core
    position: int

    def __init__(self, handle: tuple[Core, int]) -> None:
        """Handle of the record at (core, position)."""
        self.core, self.position = handle

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Makes this instruction wait until every producer has completed; returns this handle.

        The wait happens each time this instruction runs, so a producer runs in the same dynamic loops as this
        instruction or in loops around it. Loops that Python unrolls do not count. A bare `while register:` is not
        seen as a dynamic loop here.

        Raises:
            ArgumentError: a producer is no instruction.
            DependencyError: a producer lies in another dynamic loop or on another core, or would wait for this one.
        """
        for producer in producers:
            if not isinstance(producer, NkiInstruction):
                raise ArgumentError(f"depends_on: {producer!r}; accepted: what a nki.isa instruction returned")
            self._check(producer)
            self.core.dependencies.setdefault(self.position, []).append(producer.position)
        return self

    def _check(self, producer: NkiInstruction) -> None:
        if producer.core is not self.core:
            raise DependencyError(
                f"depends_on: {producer!r} runs on core {producer.core.program_id}, "
                f"{self!r} on core {self.core.program_id}; accepted: instructions of one core (else nisa.core_barrier)"
            )
        mine, theirs = self.core.loops.around(self.position), self.core.loops.around(producer.position)
        if mine[: len(theirs)] != theirs:
            raise DependencyError(
                f"depends_on: {producer!r} runs in a dynamic loop that {self!r} is outside of; "
                f"accepted: both in the same dynamic loops, or the producer in a loop around the consumer"
            )
        if self._awaited_by(producer.position):
            raise DependencyError(f"depends_on: {self!r} and {producer!r} would wait for each other")

    def _awaited_by(self, producer: int) -> bool:
        """Whether `producer` is this instruction or waits for it, through any number of dependencies."""
        pending, seen = [producer], {producer}
        while pending:
            position = pending.pop()
            if position == self.position:
                return True
            fresh = [p for p in self.core.dependencies.get(position, ()) if p not in seen]
            pending += fresh
            seen.update(fresh)
        return False

    def __repr__(self) -> str:
        record = self.core.stream[self.position]
        return f"<{record.name or record.op}, instruction {self.position}>"
