"""What an instruction costs, before anything is known about when it runs."""

from __future__ import annotations

from dataclasses import dataclass

from common.hardware import Hardware
from devicetime.constants import Constants

TENSOR, VECTOR, SCALAR, GPSIMD, SYNC, COLLECTIVE = range(6)
"""Tracks of a core that issue instructions, as the scheduler numbers them; collectives have one of their own."""

TRACK_NAMES = ("Tensor", "Vector", "Scalar", "GpSimd", "Sync", "Collectives")


@dataclass(frozen=True)
class Machine:
    """What costs depend on beside the instruction."""

    hardware: Hardware
    constants: Constants


@dataclass(frozen=True)
class Transfer:
    """The part of a DMA that its 16 engines do.

    Attributes:
        first_engine, engines: which of them.
        engine_ns: time that each of them needs.
        hbm_bytes: bytes that it reads from and writes to HBM.
        ready_ns: from the start of the instruction that triggers it to the first engine's first byte.
        stagger_ns: from one engine's first byte to the next one's.
        tail_ns: from the end of the trigger to the earliest last byte: descriptors made late move bytes late.
    """

    first_engine: int
    engines: int
    engine_ns: float
    hbm_bytes: float
    ready_ns: float
    stagger_ns: float = 0.0
    tail_ns: float = 0.0


@dataclass(frozen=True)
class Cost:
    """An instruction's cost.

    Attributes:
        engine: which engine issues it.
        hold_ns: how long the engine can start nothing else.
        done_ns: from its start until its result is written.
        table: the Scalar Engine's function table that it needs, if any.
        transfer: of a DMA, what its engines do then.
        activity: of a matmul, the share of the array's multipliers that work while it holds the engine.
    """

    engine: int
    hold_ns: float
    done_ns: float
    table: str | None = None
    transfer: Transfer | None = None
    activity: float = 0.0
