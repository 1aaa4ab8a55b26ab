"""How a core's call becomes a collective of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nkisim.enums import MemoryRegion
from nkisim.errors import DivergenceError
from nkisim.machine import Core
from nkisim.ranks.meeting import Meeting, Offer
from nkisim.storage import Region
from nkisim.tensor import NkiTensor

T = TypeVar("T")


class CollectiveDetail(NamedTuple):
    """What a record of a collective says beside its operands.

    Attributes:
        groups: the replica groups, or the (source, target) pairs of `collective_permute`.
        op: name of the reduction, if there is one.
        dim: dimension along which tensors are split or joined, if there is one.
        channels: channels of a ring, otherwise 1.
        cores: cores of the rank that carry it out together, each with a record of its own.
    """

    groups: tuple[tuple[int, ...], ...]
    op: str | None = None
    dim: int | None = None
    channels: int = 1
    cores: int = 1


def terms(core: Core, call: str, detail: CollectiveDetail, **tensors: Sequence[NkiTensor]) -> dict[str, str]:
    """What ranks must agree on."""
    said = {"call": call, "replica_group": str([list(group) for group in detail.groups])}
    said |= {"op": str(detail.op), "collective_dim": str(detail.dim), "channels": str(detail.channels)}
    for operand, group in tensors.items():
        said[operand] = ", ".join(f"{t.dtype}{list(t.shape)} in {_memory(t)}" for t in group)
    return said | {"cores": str(core.launch.num_programs)}


def _memory(tensor: NkiTensor) -> str:
    return "SBUF" if tensor.buffer is MemoryRegion.sbuf else "HBM"


@dataclass
class _Join:
    """One collective on shared HBM while the cores of a rank come to it."""

    first: int
    terms: dict[str, str]
    regions: tuple[Region, ...]
    alike: Any
    cores: int
    arrived: list[int] = field(default_factory=list)
    done: bool = False
    result: Any = None

    def check(self, core: Core, said: dict[str, str], regions: tuple[Region, ...], alike: Any) -> None:
        """A further core's call is the first one's."""
        if said != self.terms or regions != self.regions or alike != self.alike:
            raise DivergenceError(
                f"{said['call']} on shared HBM: core {self.first} calls {_call(self.terms, self.regions, self.alike)}, "
                f"core {core.program_id} {_call(said, regions, alike)}; accepted: the same on every core of a rank"
            )

    def __str__(self) -> str:
        missing = [str(core) for core in range(self.cores) if core not in self.arrived]
        if not missing:
            return f"the rank's other core to complete {self.terms['call']}"
        return f"core {', '.join(missing)} of its rank at {self.terms['call']} on shared HBM"


def _call(said: dict[str, str], regions: tuple[Region, ...], alike: Any) -> str:
    shown = ", ".join(f"{term} {value}" for term, value in said.items() if term not in ("call", "cores"))
    on = ", ".join(f"{r.allocation.name}{list(r.shape)} from element {r.offset}" for r in regions)
    return f"{said['call']} ({shown}; on {on}{f'; metadata {alike}' if alike else ''})"


def shared_by(core: Core, tensors: Sequence[NkiTensor]) -> int:
    """How many cores of the rank carry out a collective on these tensors together."""
    return core.launch.num_programs if tensors[0].buffer is MemoryRegion.shared_hbm else 1


def exchange(
    core: Core,
    members: tuple[int, ...],
    said: dict[str, str],
    tensors: Sequence[NkiTensor],
    offer: Callable[[], list[np.ndarray]],
    complete: Callable[[Meeting], T],
    alike: Any = None,
) -> T:
    """Takes part in a collective and returns what `complete` makes of everybody's payload.

    Args:
        members: the group, in its order.
        said: what ranks must agree on; see `terms`.
        tensors: sources and destinations; shared HBM makes it a collective of the rank's cores together.
        offer: reads the payload; without numerics it is not called.
        complete: writes the destinations; called by one core where they act together.
        alike: values that cores acting together must have in common.
    """
    launch = core.launch
    if shared_by(core, tensors) == 1:
        return complete(_meet(core, str(core.program_id), members, said, offer))
    join = _join(core, said, tuple(tensor.region for tensor in tensors), alike)
    if len(join.arrived) < launch.num_programs:
        _wait(core)(lambda: join.done, join)
    else:
        _settle(tensors)
        join.result = complete(_meet(core, "all", members, said, offer))
        _settle(tensors)
        join.done = True
    result: T = join.result
    return result


def _settle(tensors: Sequence[NkiTensor]) -> None:
    """The cores have met over the tensors."""
    for tensor in tensors:
        if tensor.storage.sharing is not None:
            tensor.storage.sharing.settle()


def _join(core: Core, said: dict[str, str], regions: tuple[Region, ...], alike: Any) -> _Join:
    joined, position = core.launch.joined, core.collectives_joined
    core.collectives_joined += 1
    if position == len(joined):
        joined.append(_Join(core.program_id, said, regions, alike, core.launch.num_programs))
    joined[position].check(core, said, regions, alike)
    joined[position].arrived.append(core.program_id)
    found: _Join = joined[position]
    return found


def _meet(
    core: Core, lane: str, members: tuple[int, ...], said: dict[str, str], offer: Callable[[], list[np.ndarray]]
) -> Meeting:
    payload = [np.array(array, order="C") for array in offer()] if core.numerics else []
    return core.launch.world.meet(_wait(core), lane, members, Offer(core.launch.rank, said, payload))


def _wait(core: Core) -> Any:
    assert core.launch.wait is not None  # set before a kernel starts
    return core.launch.wait
