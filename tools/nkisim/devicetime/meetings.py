"""Instructions that several cores carry out together: barriers, exchanges between two cores, collectives of ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from devicetime.cost import COLLECTIVE, Cost, Machine
from nkisim.collectives.joining import CollectiveDetail
from nkisim.record import Record

Meeting = tuple[Hashable, ...]


def is_collective(record: Record) -> bool:
    """Whether ranks carry it out together."""
    return type(record.detail) is CollectiveDetail and bool(record.reads or record.writes)


def of_core(stream: Sequence[Record], rank: int, positions: Sequence[int]) -> dict[int, Meeting]:
    """Which meeting the records at `positions` take part in: calls of a kind match in program order.

    Args:
        positions: of records that `may_meet`.
    """
    met: Counter[Meeting] = Counter()
    found = {}
    for position in positions:
        record = stream[position]
        if type(record.detail) is CollectiveDetail:
            if not is_collective(record):
                continue
            lane: Meeting = ("collective", _members(record, rank))
        elif record.op == "sendrecv":
            lane = (record.op, rank, record.detail[2])
        else:
            lane = (record.op, rank)
        met[lane] += 1
        found[position] = (*lane, met[lane])
    return found


def _members(record: Record, rank: int) -> tuple[tuple[int, ...], ...]:
    """The ranks that a collective of this rank involves: its group, or all pairs of `collective_permute`."""
    groups: tuple[tuple[int, ...], ...] = record.detail.groups
    return groups if record.op == "collective_permute" else tuple(group for group in groups if rank in group)


def may_meet(op: str, detail: object) -> bool:
    """Whether a record of this kind is one of several cores."""
    return op in ("core_barrier", "sendrecv") or type(detail) is CollectiveDetail


def cost(record: Record, machine: Machine) -> Cost:
    """Of a collective once every rank has come: hops of a ring, and the bytes that go through a core's links."""
    detail: CollectiveDetail = record.detail
    ranks = max((len(group) for group in detail.groups), default=1)
    steps, share = _ring(record.op, ranks)
    moved = max(
        sum(region.size_bytes for region in record.reads), sum(region.size_bytes for region in record.writes), 0
    )
    constants = machine.constants
    hold = steps * constants.collective_hop_ns + share * moved / constants.link_bytes_per_ns
    return Cost(COLLECTIVE, hold, hold)


def _ring(op: str, ranks: int) -> tuple[int, float]:
    """Steps of a ring, and how often the larger of the operands passes through a core."""
    if op == "all_reduce":
        return 2 * (ranks - 1), 2 * (ranks - 1) / ranks
    if op.startswith("collective_permute"):
        return 1, 1.0
    return ranks - 1, (ranks - 1) / ranks
