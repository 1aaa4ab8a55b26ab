"""`ReplicaGroup`, and what of it concerns a rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nkisim.errors import ArgumentError
from nkisim.isa import rules
from nkisim.machine import Launch
from nkisim.objects import NKIObject


@dataclass
class ReplicaGroup(NKIObject):
    """Ranks that take part in a collective, in groups that each work on their own.

    `ReplicaGroup([[0, 1], [2, 3]])`: ranks 0 and 1 are one group, 2 and 3 the other. Their order is the order in
    which data is joined, split and reduced, and the order of a ring.

    Attributes:
        groups: a sequence of groups, each a sequence of ranks; no rank occurs twice. Kept as tuples.
    """

    groups: Any

    def __post_init__(self) -> None:
        given = self.groups
        if not _is_sequence(given) or not given or not all(_is_sequence(group) and group for group in given):
            raise ArgumentError(
                f"ReplicaGroup: groups {given!r}; accepted: a list of non-empty lists of ranks, as [[0, 1], [2, 3]]"
            )
        self.groups = tuple(tuple(_rank("ReplicaGroup: groups", rank) for rank in group) for group in given)
        ranks = [rank for group in self.groups for rank in group]
        twice = next((rank for rank in ranks if ranks.count(rank) > 1), None)
        if twice is not None:
            raise ArgumentError(f"ReplicaGroup: groups {given!r}: rank {twice} occurs twice; accepted: no overlap")


def members(call: str, replica_group: Any, launch: Launch) -> tuple[int, ...]:
    """The group that the rank belongs to.

    Raises:
        ArgumentError: `replica_group` is none, leaves the rank out, or names ranks that do not exist.
    """
    if not isinstance(replica_group, ReplicaGroup):
        raise ArgumentError(f"{call}: replica_group is {replica_group!r}; accepted: an nki.collectives.ReplicaGroup")
    check_exist(call, "replica_group", [rank for group in replica_group.groups for rank in group], launch)
    for group in replica_group.groups:
        if launch.rank in group:
            found: tuple[int, ...] = group
            return found
    raise ArgumentError(
        f"{call}: replica_group {describe(replica_group)} leaves out rank {launch.rank}, which makes the call; "
        f"accepted: groups that hold every rank of the run"
    )


def check_exist(call: str, operand: str, ranks: list[int], launch: Launch) -> None:
    """Every rank named is one of the run."""
    if max(ranks) >= launch.world.size:
        raise ArgumentError(
            f"{call}: {operand} names rank {max(ranks)}; accepted: 0 to {launch.world.size - 1}, "
            f"the run has {launch.world.size}"
        )


def rank_pairs(call: str, pairs: Any) -> tuple[tuple[int, int], ...]:
    """`source_target_pairs` as tuples; each rank sends at most once and receives at most once.

    Raises:
        ArgumentError: they are no such pairs.
    """
    operand = f"{call}: source_target_pairs"
    if not _is_sequence(pairs) or not pairs or not all(_is_sequence(pair) and len(pair) == 2 for pair in pairs):
        raise ArgumentError(f"{operand} {pairs!r}; accepted: a list of (source, target) ranks")
    found = tuple((_rank(operand, source), _rank(operand, target)) for source, target in pairs)
    for role, ranks in (("source", [s for s, _ in found]), ("target", [t for _, t in found])):
        twice = next((rank for rank in ranks if ranks.count(rank) > 1), None)
        if twice is not None:
            raise ArgumentError(f"{operand} {list(found)}: rank {twice} is a {role} twice; accepted: at most once")
    return found


def describe(replica_group: ReplicaGroup) -> str:
    """The groups as a kernel writes them."""
    return str([list(group) for group in replica_group.groups])


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple, range, np.ndarray))


def _rank(operand: str, value: Any) -> int:
    if isinstance(value, (bool, np.bool_)) or not rules.is_integer(value) or value < 0:
        raise ArgumentError(f"{operand}: rank {value!r}; accepted: integers from 0")
    return int(value)
