"""What the ranks of a group bring to one collective, and whether they agree on what it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from nkisim.errors import DivergenceError

T = TypeVar("T")
Wait = Callable[..., None]
"""`wait(ready, waits_for, outside=False)`, as `nkisim.turns.Turns.wait`."""


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks in a message."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


@dataclass(frozen=True)
class Offer:
    """One rank's part in a collective.

    Attributes:
        terms: what every rank of the group must say alike, by name; "call" is the collective.
        payload: arrays that nothing writes to any more; empty in a timing-only run.
    """

    rank: int
    terms: dict[str, str]
    payload: list[np.ndarray]


class Meeting:
    """One collective of one group: complete once every member has made its offer."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        self._offers: dict[int, Offer] = {}
        self._kept: Any = None

    def add(self, offer: Offer) -> None:
        """Takes a member's offer; those before it agree, so the first of them speaks for all.

        Raises:
            DivergenceError: its terms differ from those of a member before it.
        """
        for first in itertools.islice(self._offers.values(), 1):
            differing = next((t for t, value in offer.terms.items() if first.terms.get(t) != value), None)
            if differing is not None:
                raise DivergenceError(self._disagreement(differing, *sorted((first, offer), key=lambda o: o.rank)))
        self._offers[offer.rank] = offer

    def _disagreement(self, term: str, first: Offer, second: Offer) -> str:
        return (
            f"{first.terms['call']} over {name_ranks(self.members)}: {term} of rank {first.rank} is "
            f"{first.terms.get(term)}, of rank {second.rank} {second.terms.get(term)}; "
            f"accepted: the same on every rank"
        )

    @property
    def missing(self) -> list[int]:
        """Members that have not arrived."""
        return [rank for rank in self.members if rank not in self._offers]

    @property
    def complete(self) -> bool:
        """Whether every member has arrived."""
        return len(self._offers) == len(self.members)

    @property
    def payloads(self) -> list[list[np.ndarray]]:
        """Every member's payload, in the group's order."""
        return [self._offers[rank].payload for rank in self.members]

    def once(self, compute: Callable[[], T]) -> T:
        """`compute()`, worked out by the first member of this process that asks; the others get the same."""
        if self._kept is None:
            self._kept = compute()
        kept: T = self._kept
        return kept

    def __str__(self) -> str:
        call = next(iter(self._offers.values())).terms["call"]
        return f"{name_ranks(self.missing)} at {call} over {name_ranks(self.members)}"


class World(Protocol):
    """All ranks of a run."""

    size: int

    def meet(self, wait: Wait, lane: str, members: tuple[int, ...], offer: Offer) -> Meeting:
        """Makes an offer and waits until every member has.

        Args:
            wait: lets other cores run meanwhile.
            lane: collectives of one lane and group match in program order.
        """
        ...


class LocalWorld:
    """Ranks of one process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._open: dict[tuple[str, frozenset[int]], Meeting] = {}

    def meet(self, wait: Wait, lane: str, members: tuple[int, ...], offer: Offer) -> Meeting:
        """See `World.meet`."""
        key = lane, frozenset(members)
        meeting = self._open.setdefault(key, Meeting(members))
        meeting.add(offer)
        if meeting.complete:
            del self._open[key]
        wait(lambda: meeting.complete, meeting)
        return meeting
