"""Synchronisation and exchange between the two cores of a launch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from nkisim import machine, memory
from nkisim.enums import MemoryRegion
from nkisim.enums import dma_engine as DmaEngine
from nkisim.enums import engine as Engine
from nkisim.errors import ArgumentError, DivergenceError, EngineError, LaunchError, ShapeError
from nkisim.instruction import NkiInstruction
from nkisim.isa import rules
from nkisim.tensor import NkiTensor

CORES = (0, 1)
_BARRIER_ENGINES = (Engine.gpsimd, Engine.tensor, Engine.vector, Engine.scalar, Engine.sync)
_GPSIMD_DMA_ELEMENTS_MAX = 256
"""Per partition: 1024 bytes of 32-bit types, 512 of 16-bit ones, 256 of 8-bit ones."""


class Offer(NamedTuple):
    """What one core brings to a meeting: the terms that both must say alike, and what it sends and expects."""

    terms: tuple[str, ...]
    send_to: int = 0
    recv_from: int = 0
    sent: memory.Bits | None = None


@dataclass
class Meeting:
    """One barrier or exchange while the cores come to it, each with an offer."""

    call: str
    pipe_id: int | None
    number: int
    offers: dict[int, Offer]

    def add(self, program_id: int, offer: Offer) -> None:
        """Takes a core's offer.

        Raises:
            DivergenceError: its terms differ from the other core's.
        """
        for other, theirs in self.offers.items():
            for mine, said in zip(offer.terms, theirs.terms, strict=True):
                if mine != said:
                    raise DivergenceError(f"{self}: {said} on core {other}, {mine} on core {program_id}")
        self.offers[program_id] = offer

    @property
    def complete(self) -> bool:
        """Whether both cores have come."""
        return len(self.offers) == len(CORES)

    def __str__(self) -> str:
        pipe = "" if self.pipe_id is None else f" on pipe {self.pipe_id}"
        return f"{self.call} number {self.number}{pipe}"


def core_barrier(
    data: NkiTensor, cores: Any, engine: Engine = Engine.gpsimd, name: str | None = None
) -> NkiInstruction:
    """Waits until both cores have come here; then each sees what the other wrote to `data` before.

    Args:
        data: tensor in shared HBM, the same one on both cores. Accesses to other tensors are not ordered.
        cores: (0, 1).
        engine: which engine waits.

    Raises:
        LaunchError: the kernel runs on one core.
        WrongBufferError, ArgumentError, EngineError: as documented.
        DivergenceError: the cores come with different tensors.
        DeadlockError: the other core never comes.
    """
    call = "nisa.core_barrier"
    core = machine.core(call)
    rules.require_tensors(call, data=data)
    _require_two_cores(call, core)
    rules.buffer(call, "data", data, (MemoryRegion.shared_hbm,))
    if not isinstance(cores, (tuple, list)) or tuple(cores) != CORES:
        raise ArgumentError(f"{call}: cores {cores!r}; accepted: {CORES}")
    chosen = rules.choose_engine(call, engine, _BARRIER_ENGINES)
    issued = core.emit("core_barrier", chosen, (), (data.region,), name)
    offers = _offered(core, call, None, Offer((f"data is {data.name}",)))
    if offers.complete and data.storage.sharing is not None:
        data.storage.sharing.settle()
    _wait(core, offers)
    return issued


def sendrecv(
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: DmaEngine = DmaEngine.dma,
    name: str | None = None,
) -> NkiInstruction:
    """Sends a tile to a core's `dst` and receives one into its own; both cores call it.

    Args:
        src, dst: tiles in SBUF of one type and shape.
        send_to_rank, recv_from_rank: 0 or 1; one core's target is the other's source.
        pipe_id: calls with the same one, on both cores, wait for each other.
        dma_engine: `gpsimd_dma` moves up to 256 elements per partition, of up to 32 bits.

    Raises:
        LaunchError: the kernel runs on one core.
        WrongBufferError, DtypeError, ShapeError, PartitionError, ArgumentError, EngineError: as documented.
        DivergenceError: the cores do not agree on shape, type or who sends to whom.
        DeadlockError: the other core never comes.
        UninitializedReadError: nothing of src is written.
    """
    call = "nisa.sendrecv"
    core = machine.core(call)
    rules.require_tensors(call, src=src, dst=dst)
    _require_two_cores(call, core)
    key = (call, src.signature, dst.signature, send_to_rank, recv_from_rank, pipe_id, dma_engine)
    if key not in core.checked:
        _check_sendrecv(call, core, src, dst, send_to_rank, recv_from_rank, pipe_id, dma_engine)
        core.checked.add(key)
    on = Engine.gpsimd if dma_engine is DmaEngine.gpsimd_dma else Engine.dma
    detail = (send_to_rank, recv_from_rank, pipe_id, dma_engine)
    issued = core.emit("sendrecv", on, (dst.region,), (src.region,), name, detail)
    sent = memory.read_bits(call, "src", src).arranged(np.copy) if core.numerics else None
    terms = (f"tiles are {src.dtype}{list(src.shape)}", f"dma_engine is {dma_engine.name}")
    meeting = _offered(core, call, pipe_id, Offer(terms, send_to_rank, recv_from_rank, sent))
    _wait(core, meeting)
    _check_pairing(call, meeting.offers)
    received = meeting.offers[recv_from_rank].sent
    if received is not None:
        memory.write_bits(call, "dst", dst, received)
    return issued


def _require_two_cores(call: str, core: machine.Core) -> None:
    if core.launch.num_programs != len(CORES):
        raise LaunchError(f"{call}: the kernel runs on {core.launch.num_programs} core; accepted: kernel[2](...)")


def _check_sendrecv(
    call: str,
    core: machine.Core,
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: Any,
    recv_from_rank: Any,
    pipe_id: Any,
    dma_engine: Any,
) -> None:
    for operand, tensor in (("src", src), ("dst", dst)):
        rules.buffer(call, operand, tensor, (MemoryRegion.sbuf,))
    rules.writable(call, "dst", dst)
    rules.same_dtype(call, "dst", dst, "src", src)
    if src.shape != dst.shape:
        raise ShapeError(f"{call}: src {list(src.shape)}, dst {list(dst.shape)}; accepted: the same shape")
    for parameter, rank in (("send_to_rank", send_to_rank), ("recv_from_rank", recv_from_rank)):
        if not isinstance(rank, int) or rank not in CORES:
            raise ArgumentError(f"{call}: {parameter} {rank!r}; accepted: 0 or 1")
    if not isinstance(pipe_id, int):
        raise ArgumentError(f"{call}: pipe_id {pipe_id!r}; accepted: an integer")
    if not isinstance(dma_engine, DmaEngine):
        raise EngineError(f"{call}: dma_engine {dma_engine!r}; accepted: {', '.join(str(e) for e in DmaEngine)}")
    elements = prod(src.shape[1:])
    if dma_engine is DmaEngine.gpsimd_dma and elements > _GPSIMD_DMA_ELEMENTS_MAX:
        size = src.dtype.itemsize
        raise ShapeError(
            f"{call}: {elements * size} bytes per partition by gpsimd_dma; "
            f"accepted: up to {_GPSIMD_DMA_ELEMENTS_MAX * size} of {src.dtype}"
        )


def _check_pairing(call: str, offers: dict[int, Offer]) -> None:
    for receiver, offer in offers.items():
        sender = offers[offer.recv_from]
        if sender.send_to != receiver:
            raise DivergenceError(
                f"{call}: core {receiver} receives from core {offer.recv_from}, which sends to core {sender.send_to}; "
                f"accepted: each core receives from the one that sends to it"
            )


def _offered(core: machine.Core, call: str, pipe_id: int | None, offer: Offer) -> Meeting:
    """The meeting that the core has come to; calls of one kind and pipe match in program order."""
    lane = (call, pipe_id)
    core.met[lane] += 1
    meeting: Meeting = core.launch.meetings.setdefault(
        (lane, core.met[lane]), Meeting(call, pipe_id, core.met[lane], {})
    )
    meeting.add(core.program_id, offer)
    return meeting


def _wait(core: machine.Core, meeting: Meeting) -> None:
    assert core.launch.wait is not None  # set before a kernel starts
    core.launch.wait(lambda: meeting.complete, f"{core.launch.place(1 - core.program_id)} at {meeting}")
