"""Rings: each rank sends to its successor in the group and receives from its predecessor."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim import machine, memory
from nkisim.collectives import group, rules
from nkisim.collectives.group import ReplicaGroup
from nkisim.collectives.joining import CollectiveDetail, exchange, shared_by, terms
from nkisim.collectives.whole import reduced
from nkisim.enums import engine as Engine
from nkisim.errors import ArgumentError
from nkisim.isa import rules as isa_rules
from nkisim.machine import Core
from nkisim.numerics import cast
from nkisim.numerics.alu import Operator
from nkisim.ranks.meeting import Meeting
from nkisim.registers import VirtualRegister
from nkisim.tensor import NkiTensor

_CHANNELS_OF_A_NODE = 4
_CHANNELS = 2


def rank_id(name: str | None = None) -> VirtualRegister:
    """The number of this rank among all ranks of the run, in a register."""
    call = "ncc.rank_id"
    core = machine.core(call)
    core.emit("rank_id", Engine.sync, (), (), name)
    return VirtualRegister(core.launch.rank)


def collective_permute_implicit(
    srcs_by_channel: list[list[NkiTensor]],
    dsts_by_channel: list[list[NkiTensor]],
    replica_group: ReplicaGroup,
    channel_ids: list[int] = [0],  # noqa: B006 - the documented default; nothing changes it
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Each rank sends its sources to its successor in the group; its destinations get the predecessor's.

    The successor is the next rank in the group's order, and the first after the last, on every channel.

    Args:
        srcs_by_channel, dsts_by_channel: one list per channel of one tensor each, all in HBM or all in SBUF,
            equally shaped and of equal type.
        channel_ids: 0, 1, ...: up to 4 where the group holds every rank of the run (taken for a whole node), else 2.
        priority: 0 (first) to 3; trn3.

    Raises:
        ArgumentError, WrongBufferError, ShapeError, DtypeError, TargetError, UninitializedReadError,
        DivergenceError, DeadlockError.
    """
    call = "ncc.collective_permute_implicit"
    core = machine.core(call)
    _permute(core, call, [srcs_by_channel], dsts_by_channel, replica_group, None, channel_ids, priority, name)


def collective_permute_implicit_reduce(
    srcs0_by_channel: list[list[NkiTensor]],
    srcs1_by_channel: list[list[NkiTensor]],
    dsts_by_channel: list[list[NkiTensor]],
    replica_group: ReplicaGroup,
    op: Any,
    channel_ids: list[int] = [0],  # noqa: B006 - the documented default; nothing changes it
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """As `collective_permute_implicit`, but each rank sends `op(srcs0, srcs1)`.

    The reduction is in fp32 and rounded to the tensors' type before it is sent.

    Args:
        srcs0_by_channel, srcs1_by_channel, dsts_by_channel: as there.
        op: nl.add, nl.minimum or nl.maximum.

    Raises:
        As `collective_permute_implicit`.
    """
    call = "ncc.collective_permute_implicit_reduce"
    core = machine.core(call)
    sources = [srcs0_by_channel, srcs1_by_channel]
    _permute(core, call, sources, dsts_by_channel, replica_group, op, channel_ids, priority, name)


def collective_permute_implicit_current_processing_rank_id(
    iteration_id: int | VirtualRegister, replica_group: ReplicaGroup, channel_id: int = 0, name: str | None = None
) -> VirtualRegister:
    """Whose data a rank holds in a ring after so many permutes, in a register.

    Args:
        iteration_id: permutes done, an integer or a loop's register: 0 gives the rank itself, 1 its predecessor, and
            so on round the ring.
        channel_id: from 0; every channel has the same ring.

    Raises:
        ArgumentError.
    """
    call = "ncc.collective_permute_implicit_current_processing_rank_id"
    core = machine.core(call)
    members = group.members(call, replica_group, core.launch)
    iteration = iteration_id.state if isinstance(iteration_id, VirtualRegister) else iteration_id
    if not (type(iteration) is int and iteration >= 0) and not (iteration is None and iteration_id is not None):
        raise ArgumentError(f"{call}: iteration_id {iteration_id!r}; accepted: an integer from 0")
    limit = _channel_limit(core, members)
    if type(channel_id) is not int or not 0 <= channel_id < limit:
        raise ArgumentError(f"{call}: channel_id {channel_id!r}; accepted: 0 to {limit - 1} for this group")
    core.emit(call.removeprefix("ncc."), Engine.sync, (), (), name, CollectiveDetail(replica_group.groups))
    if iteration is None:
        return VirtualRegister()
    return VirtualRegister(members[(members.index(core.launch.rank) - iteration) % len(members)])


def _permute(
    core: Core,
    call: str,
    sources: list[Any],
    dsts_by_channel: Any,
    replica_group: ReplicaGroup,
    op: Any,
    channel_ids: Any,
    priority: Any,
    name: str | None,
) -> None:
    members = group.members(call, replica_group, core.launch)
    channels = _channel_count(call, core, channel_ids, members)
    labels = ["srcs_by_channel"] if len(sources) == 1 else ["srcs0_by_channel", "srcs1_by_channel"]
    srcs = [_by_channel(call, label, given, channels) for label, given in zip(labels, sources, strict=True)]
    dsts = _by_channel(call, "dsts_by_channel", dsts_by_channel, channels)
    isa_rules.priority(call, core.hardware, priority)
    reduction = None if len(srcs) == 1 else rules.reduction(call, op, srcs[0])
    for each in srcs:
        _check(call, core, each, dsts)
    everything = [*(tensor for each in srcs for tensor in each), *dsts]
    detail = CollectiveDetail(
        replica_group.groups,
        reduction.name if reduction else None,
        channels=channels,
        cores=shared_by(core, everything),
    )
    core.emit(
        call.removeprefix("ncc."),
        Engine.dma,
        tuple(dst.region for dst in dsts),
        tuple(tensor.region for each in srcs for tensor in each),
        name,
        detail,
    )
    rank = core.launch.rank
    predecessor = (members.index(rank) - 1) % len(members)

    def complete(meeting: Meeting) -> None:
        if core.numerics:
            for dst, array in zip(dsts, meeting.payloads[predecessor], strict=True):
                memory.write(dst, array)

    exchange(
        core,
        members,
        terms(core, call, detail, srcs=everything[: len(everything) - len(dsts)], dsts=dsts),
        everything,
        lambda: [_payload(call, [each[n] for each in srcs], reduction) for n in range(channels)],
        complete,
    )


def _payload(call: str, srcs: list[NkiTensor], reduction: Operator | None) -> np.ndarray:
    arrays = [memory.read(call, src.name, src) for src in srcs]
    if reduction is None:
        return arrays[0]
    rounded = np.empty(srcs[0].shape, srcs[0].dtype.storage)
    cast.store(rounded, reduced(arrays, reduction), srcs[0].dtype)
    return rounded


def _check(call: str, core: Core, srcs: list[NkiTensor], dsts: list[NkiTensor]) -> None:
    key = rules.key(call, core, (*srcs, *dsts))
    if key in core.checked:
        return
    for src, dst in zip(srcs, dsts, strict=True):
        rules.pairs(call, core, (src,), (dst,))
        rules.same_shape(call, (src,), (dst,))
    rules.one_memory(call, core, (*srcs, *dsts))
    core.checked.add(key)


def _by_channel(call: str, operand: str, given: Any, channels: int) -> list[NkiTensor]:
    if not isinstance(given, (list, tuple)) or len(given) != channels:
        raise ArgumentError(
            f"{call}: {operand} is {given!r}; accepted: a list of tensors for each of {channels} channels"
        )
    return [rules.single(call, f"{operand}[{n}]", channel) for n, channel in enumerate(given)]


def _channel_count(call: str, core: Core, channel_ids: Any, members: tuple[int, ...]) -> int:
    limit = _channel_limit(core, members)
    if not isinstance(channel_ids, (list, tuple)) or not 1 <= len(channel_ids) <= limit:
        raise ArgumentError(f"{call}: channel_ids {channel_ids!r}; accepted: 1 to {limit} channels for this group")
    if any(type(c) is not int for c in channel_ids) or list(channel_ids) != list(range(len(channel_ids))):
        raise ArgumentError(f"{call}: channel_ids {channel_ids!r}; accepted: consecutive integers from 0")
    return len(channel_ids)


def _channel_limit(core: Core, members: tuple[int, ...]) -> int:
    return _CHANNELS_OF_A_NODE if len(members) == core.launch.world.size else _CHANNELS
