"""Collectives on whole tensors: reduce, gather, scatter, exchange, permute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nkisim import machine, memory
from nkisim.collectives import group, rules
from nkisim.collectives.group import ReplicaGroup
from nkisim.collectives.joining import CollectiveDetail, exchange, shared_by, terms
from nkisim.enums import engine as Engine
from nkisim.isa import rules as isa_rules
from nkisim.isa.rules import HBM, SBUF
from nkisim.machine import Core
from nkisim.numerics import cast
from nkisim.numerics.alu import Operator
from nkisim.ranks.meeting import Meeting
from nkisim.tensor import NkiTensor

Tensors = Sequence[NkiTensor]


def all_reduce(
    srcs: list[NkiTensor],
    dsts: list[NkiTensor],
    replica_group: ReplicaGroup,
    op: Any,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Every rank of a group gets the group's tensors reduced element by element.

    Args:
        srcs, dsts: equally shaped tensors of equal type, pair by pair; one in SBUF, any number in HBM.
        op: nl.add, nl.minimum or nl.maximum.
        priority: 0 (first) to 3; trn3.

    Raises:
        ArgumentError, WrongBufferError, ShapeError, DtypeError, TargetError, UninitializedReadError,
        DivergenceError, DeadlockError.
    """
    call, core, members = _begin("ncc.all_reduce", replica_group)
    srcs_, dsts_ = rules.tensors(call, "srcs", srcs), rules.tensors(call, "dsts", dsts)
    isa_rules.priority(call, core.hardware, priority)
    reduction = rules.reduction(call, op, srcs_)
    key = rules.key(call, core, (*srcs_, *dsts_), len(srcs_))
    if key not in core.checked:
        rules.pairs(call, core, srcs_, dsts_)
        rules.same_shape(call, srcs_, dsts_)
        core.checked.add(key)
    detail = CollectiveDetail(replica_group.groups, reduction.name)
    _run(core, call, members, srcs_, dsts_, detail, name, lambda arrays: reduced(arrays, reduction))


def all_gather(
    srcs: list[NkiTensor],
    dsts: list[NkiTensor],
    replica_group: ReplicaGroup,
    collective_dim: int,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Every rank of a group gets the group's tensors, joined in the group's order.

    Args:
        srcs: one tensor in SBUF, any number in HBM.
        dsts: as srcs, but larger by the size of the group in dimension `collective_dim`.
        collective_dim: 0; in SBUF 0 or 1.
        priority: 0 (first) to 3; trn3.

    Raises:
        As `all_reduce`.
    """
    call, core, members = _begin("ncc.all_gather", replica_group)
    srcs_, dsts_ = rules.tensors(call, "srcs", srcs), rules.tensors(call, "dsts", dsts)
    isa_rules.priority(call, core.hardware, priority)
    dim = rules.dimension(call, collective_dim, (0, 1) if srcs_[0].buffer is SBUF else (0,))
    key = rules.key(call, core, (*srcs_, *dsts_), len(srcs_), len(members), dim)
    if key not in core.checked:
        rules.pairs(call, core, srcs_, dsts_)
        rules.split(call, ("dsts", dsts_), ("srcs", srcs_), dim, len(members))
        core.checked.add(key)
    detail = CollectiveDetail(replica_group.groups, dim=dim)
    _run(core, call, members, srcs_, dsts_, detail, name, lambda arrays: np.concatenate(arrays, dim))


def reduce_scatter(
    srcs: list[NkiTensor],
    dsts: list[NkiTensor],
    replica_group: ReplicaGroup,
    collective_dim: int,
    op: Any,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """The group's tensors are reduced element by element, and each rank gets its part, in the group's order.

    Args:
        srcs: one tensor in SBUF, any number in HBM; larger than dsts by the size of the group in dimension 0.
        dsts: as srcs.
        collective_dim: 0.
        op: nl.add, nl.minimum or nl.maximum.
        priority: 0 (first) to 3; trn3.

    Raises:
        As `all_reduce`.
    """
    call, core, members = _begin("ncc.reduce_scatter", replica_group)
    srcs_, dsts_ = rules.tensors(call, "srcs", srcs), rules.tensors(call, "dsts", dsts)
    isa_rules.priority(call, core.hardware, priority)
    dim, reduction = rules.dimension(call, collective_dim, (0,)), rules.reduction(call, op, srcs_)
    key = rules.key(call, core, (*srcs_, *dsts_), len(srcs_), len(members))
    if key not in core.checked:
        rules.pairs(call, core, srcs_, dsts_)
        rules.split(call, ("srcs", srcs_), ("dsts", dsts_), dim, len(members))
        core.checked.add(key)
    detail = CollectiveDetail(replica_group.groups, reduction.name, dim)
    _run(
        core, call, members, srcs_, dsts_, detail, name,
        lambda arrays: reduced(arrays, reduction),
        lambda array, mine: np.split(array, len(members))[mine],
    )  # fmt: skip


def all_to_all(
    srcs: list[NkiTensor],
    dsts: list[NkiTensor],
    replica_group: ReplicaGroup,
    collective_dim: int,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Each rank splits its tensor among the group and joins the parts it is sent, both in the group's order.

    Args:
        srcs, dsts: equally shaped tensors in HBM; the group's size divides dimension 0.
        collective_dim: 0.
        priority: 0 (first) to 3; trn3.

    Raises:
        As `all_reduce`.
    """
    call, core, members = _begin("ncc.all_to_all", replica_group)
    srcs_, dsts_ = rules.tensors(call, "srcs", srcs), rules.tensors(call, "dsts", dsts)
    isa_rules.priority(call, core.hardware, priority)
    dim = rules.dimension(call, collective_dim, (0,))
    key = rules.key(call, core, (*srcs_, *dsts_), len(srcs_), len(members))
    if key not in core.checked:
        rules.pairs(call, core, srcs_, dsts_, HBM)
        rules.same_shape(call, srcs_, dsts_)
        rules.divisible(call, srcs_, len(members))
        core.checked.add(key)
    detail = CollectiveDetail(replica_group.groups, dim=dim)
    _run(
        core, call, members, srcs_, dsts_, detail, name,
        lambda arrays: [np.split(array, len(members)) for array in arrays],
        lambda parts, mine: np.concatenate([part[mine] for part in parts]),
    )  # fmt: skip


def collective_permute(
    srcs: list[NkiTensor],
    dsts: list[NkiTensor],
    source_target_pairs: list[tuple[int, int]],
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Sends a tensor from the source to the target of each pair.

    A rank that is no target keeps its destination as it is; one in no pair takes no part. The runtime's pages know
    only circular patterns; this takes any pairs, as the call's own documentation does.

    Args:
        srcs, dsts: one tensor each in HBM, equally shaped and of equal type.
        source_target_pairs: each rank at most once as source and once as target.
        priority: 0 (first) to 3; trn3.

    Raises:
        As `all_reduce`.
    """
    call = "ncc.collective_permute"
    core = machine.core(call)
    src, dst = rules.single(call, "srcs", srcs), rules.single(call, "dsts", dsts)
    isa_rules.priority(call, core.hardware, priority)
    key = rules.key(call, core, (src, dst))
    if key not in core.checked:
        rules.pairs(call, core, (src,), (dst,), HBM)
        rules.same_shape(call, (src,), (dst,))
        core.checked.add(key)
    pairs = group.rank_pairs(call, source_target_pairs)
    members = tuple(sorted({rank for pair in pairs for rank in pair}))
    group.check_exist(call, "source_target_pairs", list(members), core.launch)
    detail = CollectiveDetail(pairs, cores=shared_by(core, (src, dst)))
    rank = core.launch.rank
    source = next((s for s, t in pairs if t == rank), None)
    sends = any(s == rank for s, _ in pairs)
    core.emit(
        "collective_permute",
        Engine.dma,
        () if source is None else (dst.region,),
        (src.region,) if sends else (),
        name,
        detail,
    )
    if rank not in members:
        return

    def complete(meeting: Meeting) -> None:
        if core.numerics and source is not None:
            memory.write(dst, meeting.payloads[members.index(source)][0])

    exchange(
        core,
        members,
        terms(core, call, detail, srcs=(src,), dsts=(dst,)),
        (src, dst),
        lambda: [memory.read(call, "srcs[0]", src)] if sends else [],
        complete,
    )


def reduced(arrays: list[np.ndarray], op: Operator) -> np.ndarray:
    """Arrays reduced in their order, in fp32."""
    total = cast.to_fp32(arrays[0])
    with np.errstate(over="ignore", invalid="ignore"):
        for array in arrays[1:]:
            total = op.apply(total, cast.to_fp32(array))
    return total


def _begin(call: str, replica_group: ReplicaGroup) -> tuple[str, Core, tuple[int, ...]]:
    core = machine.core(call)
    return call, core, group.members(call, replica_group, core.launch)


def _run(
    core: Core,
    call: str,
    members: tuple[int, ...],
    srcs: Tensors,
    dsts: Tensors,
    detail: CollectiveDetail,
    name: str | None,
    combine: Callable[[list[np.ndarray]], Any],
    part: Callable[[Any, int], np.ndarray] = lambda whole, _: whole,
) -> None:
    """Records the instruction and carries it out.

    Args:
        combine: what all ranks' n-th tensors make together; worked out once for all ranks of the process.
        part: what of it the rank at a position in the group gets.
    """
    detail = detail._replace(cores=shared_by(core, srcs))
    core.emit(
        call.removeprefix("ncc."),
        Engine.dma,
        tuple(dst.region for dst in dsts),
        tuple(src.region for src in srcs),
        name,
        detail,
    )
    mine = members.index(core.launch.rank)

    def complete(meeting: Meeting) -> None:
        if not core.numerics:
            return
        combined = meeting.once(lambda: [combine([p[n] for p in meeting.payloads]) for n in range(len(srcs))])
        for dst, whole in zip(dsts, combined, strict=True):
            memory.write(dst, part(whole, mine))

    exchange(
        core,
        members,
        terms(core, call, detail, srcs=srcs, dsts=dsts),
        (*srcs, *dsts),
        lambda: [memory.read(call, f"srcs[{n}]", src) for n, src in enumerate(srcs)],
        complete,
    )
