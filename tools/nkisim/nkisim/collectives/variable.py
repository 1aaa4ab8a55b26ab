"""Collectives whose sizes are known only at run time, from a metadata tensor of counts and displacements.

Tensors are flat runs of elements. Of the metadata's rows, 0 holds what is sent, 1 where it begins in the source,
2 what was received (an output, unless `recv_counts_known`), and 3 where that goes in the destination (only with
`has_rdispls`). Without row 3 the destination is cut into one equal slot per rank of the group.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from nkisim import machine, memory
from nkisim.collectives import group, rules
from nkisim.collectives.group import ReplicaGroup
from nkisim.collectives.joining import CollectiveDetail, exchange, shared_by, terms
from nkisim.enums import engine as Engine
from nkisim.errors import (
    ArgumentError,
    DtypeError,
    LaunchError,
    OutOfBoundsError,
    OverlapError,
    ShapeError,
    ViewError,
)
from nkisim.isa import rules as isa_rules
from nkisim.isa.rules import HBM, SBUF, buffer, generation, require_tensors
from nkisim.machine import Core
from nkisim.ranks.meeting import Meeting
from nkisim.tensor import NkiTensor

_INTRA_CHIP_RANKS = 4
_LNC = 2
_LEAST_CHIPS = 2
_SENT, _SENT_FROM, _RECEIVED, _RECEIVED_AT = range(4)


def all_gather_v(
    srcs: list[NkiTensor],
    dsts: list[NkiTensor],
    replica_group: ReplicaGroup,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Every rank sends one run of elements, of its own length, to all ranks of its group.

    Args:
        srcs, dsts: one dense tensor each in HBM, of equal type; their sizes are free.
        replica_group: groups of 4 ranks of one chip each.
        metadata_tensor: uint32 [3, ranks] in HBM or [1, 3, ranks] in SBUF; rows 0 and 1 only in their first column.
        recv_counts_known: row 2 is left as it is.
        has_rdispls: must be False; the device does not support it.
        priority: 0 (first) to 3; trn3.

    Raises:
        ArgumentError, LaunchError (not on two cores), WrongBufferError, ShapeError, DtypeError, ViewError,
        TargetError, UninitializedReadError, OutOfBoundsError (a run outside src, or larger than its slot in dst),
        DivergenceError, DeadlockError.
    """
    call = "ncc.all_gather_v"
    if has_rdispls is not False:
        raise ArgumentError(f"{call}: has_rdispls {has_rdispls!r}; accepted: False, the device does not support True")
    core = machine.core(call)
    members = group.members(call, replica_group, core.launch)
    _check_two_cores(call, core)
    per_chip = _ranks_per_chip(core)
    for ranks in replica_group.groups:
        if len(ranks) != _INTRA_CHIP_RANKS or len({rank // per_chip for rank in ranks}) > 1:
            raise ArgumentError(
                f"{call}: group {list(ranks)} of replica_group; accepted: {_INTRA_CHIP_RANKS} ranks of one chip: "
                f"0 to {per_chip - 1}, and so on"
            )
    _check_flag(call, "recv_counts_known", recv_counts_known)
    isa_rules.priority(call, core.hardware, priority)
    exchanged = _operands(
        call, core, members, srcs, dsts, metadata_tensor, 1, writes_counts=not recv_counts_known, displaced=False
    )
    _run(exchanged, CollectiveDetail(replica_group.groups), name)


def all_to_all_v(
    srcs: list[NkiTensor],
    dsts: list[NkiTensor],
    replica_group: ReplicaGroup,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Every rank sends each rank of its group, itself included, a run of elements of its own length.

    On trn3 each group is whole chips of consecutive ranks, and more than one chip takes part. The documentation's
    example [[1, 2, 3, 4], [5, 6, 7, 8]] counts from 1; this takes chips to begin at multiples of 4, as ranks count
    from 0. On trn2 a group holds same-numbered ranks of different nodes; a node is whole chips, so ranks of a group
    lie a multiple of a chip's ranks apart. The release notes say that `has_rdispls` has no effect on trn3; this
    follows the call's own documentation.

    Args:
        srcs, dsts: one dense tensor each in HBM, of equal type; their sizes are free.
        metadata_tensor: uint32 [3, ranks] in HBM or [1, 3, ranks] in SBUF; 4 rows with `has_rdispls`.
        recv_counts_known: row 2 is left as it is.
        has_rdispls: row 3 says where in dst the run from each rank goes; trn3.
        priority: 0 (first) to 3; trn3.

    Raises:
        As `all_gather_v`; also OverlapError: two runs received overlap.
    """
    call = "ncc.all_to_all_v"
    core = machine.core(call)
    members = group.members(call, replica_group, core.launch)
    _check_flag(call, "recv_counts_known", recv_counts_known)
    _check_flag(call, "has_rdispls", has_rdispls)
    isa_rules.priority(call, core.hardware, priority)
    if core.hardware.supports_mx:
        _check_two_cores(call, core)
        _check_whole_chips(call, core, replica_group)
    else:
        generation(f"{call}: has_rdispls", core.hardware, not has_rdispls, "trn3")
        _check_across_nodes(call, core, replica_group)
    exchanged = _operands(
        call, core, members, srcs, dsts, metadata_tensor, len(members),
        writes_counts=not recv_counts_known, displaced=has_rdispls,
    )  # fmt: skip
    _run(exchanged, CollectiveDetail(replica_group.groups), name)


@dataclass(frozen=True)
class _Exchange:
    """A checked call.

    Attributes:
        source, destination: as flat tensors.
        columns: columns of rows 0 and 1 that count: one per rank, or 1 where all are sent the same.
        writes_counts: whether row 2 is an output.
        displaced: whether row 3 is there.
    """

    call: str
    core: Core
    members: tuple[int, ...]
    source: NkiTensor
    destination: NkiTensor
    metadata: NkiTensor
    columns: int
    writes_counts: bool
    displaced: bool

    def row(self, number: int, columns: int) -> NkiTensor:
        """The first columns of a row of the metadata."""
        if self.metadata.buffer is SBUF:
            return self.metadata[:, number, 0:columns]
        return self.metadata[number, 0:columns]

    def integers(self, number: int, columns: int) -> list[int]:
        """Their values."""
        values = memory.read(self.call, "metadata_tensor", self.row(number, columns))
        return [int(value) for value in values.reshape(-1)]


def _operands(
    call: str,
    core: Core,
    members: tuple[int, ...],
    srcs: Any,
    dsts: Any,
    metadata_tensor: Any,
    columns: int,
    *,
    writes_counts: bool,
    displaced: bool,
) -> _Exchange:
    src, dst = rules.single(call, "srcs", srcs), rules.single(call, "dsts", dsts)
    require_tensors(call, metadata_tensor=metadata_tensor)
    key = rules.key(call, core, (src, dst, metadata_tensor), len(members), displaced)
    if key not in core.checked:
        rules.pairs(call, core, (src,), (dst,), HBM)
        _check_metadata(call, metadata_tensor, 4 if displaced else 3, len(members))
        _check_dense(call, "srcs[0]", src)
        _check_dense(call, "dsts[0]", dst)
        if not displaced and dst.size % len(members):
            raise ShapeError(
                f"{call}: dsts[0] {list(dst.shape)} has {dst.size} elements; accepted: a multiple of {len(members)}, "
                f"a slot per rank"
            )
        core.checked.add(key)
    source, destination = src.reshape((src.size,)), dst.reshape((dst.size,))
    return _Exchange(call, core, members, source, destination, metadata_tensor, columns, writes_counts, displaced)


def _check_metadata(call: str, metadata: NkiTensor, rows: int, ranks: int) -> None:
    buffer(call, "metadata_tensor", metadata, rules.HBM_OR_SBUF)
    if metadata.dtype != "uint32":
        raise DtypeError(f"{call}: metadata_tensor is {metadata.dtype}; accepted: uint32")
    expected = (1, rows, ranks) if metadata.buffer is SBUF else (rows, ranks)
    if metadata.shape != expected:
        raise ShapeError(
            f"{call}: metadata_tensor {list(metadata.shape)} in {metadata.buffer.value}; accepted: {list(expected)}"
        )
    _check_dense(call, "metadata_tensor", metadata)


def _check_dense(call: str, operand: str, tensor: NkiTensor) -> None:
    if not tensor.is_contiguous():
        raise ViewError(f"{call}: {operand} {tensor.name} is not a dense view; accepted: contiguous elements")


def _check_flag(call: str, operand: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ArgumentError(f"{call}: {operand} {value!r}; accepted: True or False")


def _check_two_cores(call: str, core: Core) -> None:
    if core.launch.num_programs != _LNC:
        raise LaunchError(f"{call}: the kernel runs on one core; accepted: kernel[{_LNC}]")


def _check_whole_chips(call: str, core: Core, replica_group: ReplicaGroup) -> None:
    per_chip = _ranks_per_chip(core)
    for ranks in replica_group.groups:
        first = ranks[0]
        if ranks != tuple(range(first, first + len(ranks))) or first % per_chip or len(ranks) % per_chip:
            raise ArgumentError(
                f"{call}: group {list(ranks)} of replica_group; accepted: consecutive ranks of whole chips: "
                f"0 to {per_chip - 1}, and so on"
            )
    chips = sum(len(ranks) for ranks in replica_group.groups) // per_chip
    if chips < _LEAST_CHIPS:
        raise ArgumentError(f"{call}: replica_group holds ranks of one chip; accepted: of more than one")


def _check_across_nodes(call: str, core: Core, replica_group: ReplicaGroup) -> None:
    per_chip = _ranks_per_chip(core)
    for ranks in replica_group.groups:
        if len({rank % per_chip for rank in ranks}) > 1:
            raise ArgumentError(
                f"{call}: group {list(ranks)} of replica_group on {core.hardware.name}; accepted: same-numbered ranks "
                f"of different nodes, a multiple of {per_chip} apart"
            )


def _ranks_per_chip(core: Core) -> int:
    return core.hardware.cores_per_chip // core.launch.num_programs


def _run(given: _Exchange, detail: CollectiveDetail, name: str | None) -> None:
    """Records the instruction and carries it out."""
    core, metadata = given.core, given.metadata
    detail = detail._replace(cores=shared_by(core, (given.source,)))
    counts = given.row(_RECEIVED, len(given.members))
    core.emit(
        given.call.removeprefix("ncc."),
        Engine.dma,
        (given.destination.region, counts.region) if given.writes_counts else (given.destination.region,),
        (given.source.region, metadata.region),
        name,
        detail,
    )
    in_hbm = metadata.buffer is not SBUF
    own = () if in_hbm or not core.numerics else tuple(given.integers(_SENT, given.columns))
    received = exchange(
        core,
        given.members,
        terms(core, given.call, detail) | {"dtype": str(given.source.dtype)},
        (given.source, given.destination, *((metadata,) if in_hbm else ())),
        lambda: _outgoing(given),
        lambda meeting: _incoming(given, meeting) if core.numerics else None,
        own,
    )
    if received is not None and given.writes_counts:
        memory.write(counts, np.array(received, np.uint32))


def _outgoing(given: _Exchange) -> list[np.ndarray]:
    """The runs this rank sends, one per column."""
    runs = []
    sizes, starts = given.integers(_SENT, given.columns), given.integers(_SENT_FROM, given.columns)
    for column, (size, start) in enumerate(zip(sizes, starts, strict=True)):
        if start + size > given.source.size:
            raise OutOfBoundsError(
                f"{given.call}: metadata_tensor column {column} sends elements {start} to {start + size}; "
                f"accepted: srcs[0] has {given.source.size}"
            )
        runs.append(_run_of(given, "srcs[0]", start, size))
    return runs


def _run_of(given: _Exchange, operand: str, start: int, size: int) -> np.ndarray:
    if size == 0:
        return np.empty(0, given.source.dtype.storage)
    return memory.read(given.call, operand, given.source[start : start + size])


def _incoming(given: _Exchange, meeting: Meeting) -> list[int]:
    """Places the runs that are for this rank, and gives their sizes."""
    column = given.members.index(given.core.launch.rank) if given.columns > 1 else 0
    runs = [payload[column] for payload in meeting.payloads]
    places = _places(given, [run.size for run in runs])
    for run, place in zip(runs, places, strict=True):
        if run.size:
            memory.write(given.destination[place : place + run.size], run)
    return [run.size for run in runs]


def _places(given: _Exchange, sizes: list[int]) -> list[int]:
    """Where in the destination each run begins."""
    total, ranks = given.destination.size, len(sizes)
    if not given.displaced:
        slot = total // ranks
        places, limits = [slot * n for n in range(ranks)], [slot * (n + 1) for n in range(ranks)]
    else:
        places, limits = given.integers(_RECEIVED_AT, ranks), [total] * ranks
    for rank, place, size, limit in zip(given.members, places, sizes, limits, strict=True):
        if place + size > limit:
            raise OutOfBoundsError(
                f"{given.call}: {size} elements from rank {rank} go to {place} to {place + size} of dsts[0]; "
                f"accepted: up to {limit}"
            )
    spans = sorted((place, place + size) for place, size in zip(places, sizes, strict=True) if size)
    for (_, end), (start, _) in itertools.pairwise(spans):
        if start < end:
            raise OverlapError(f"{given.call}: two runs received overlap in dsts[0], from element {start} on")
    return places
