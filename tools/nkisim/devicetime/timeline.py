"""What the device-time model says: when each instruction ran where, and what it waited for.

The scheduler fills it; analysis, traces and reports read it. All times are simulated and in nanoseconds from the
start of the kernel.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.hardware import Hardware
from nkisim.record import Record


class TrackKind(enum.Enum):
    """What a track is the schedule of."""

    engine = "engine"
    dma_queue = "DMA queue"
    collective = "collective"


@dataclass(frozen=True)
class Track:
    """One row of the timeline.

    Attributes:
        name: for people, such as "core 0 Tensor" or "core 1 DMA queue 3".
        short_name: without the core: "Tensor", "Vector", "Scalar", "GpSimd", "Sync", "DMA 3".
    """

    name: str
    short_name: str
    kind: TrackKind
    core: int


class Cause(enum.IntEnum):
    """Why an event began when it did, and not before."""

    none = 0
    """It began at 0."""
    engine = 1
    """The event before it on its track was running."""
    dependency = 2
    """It needs what another wrote."""
    buffer_reuse = 3
    """It overwrites what another still read or wrote."""
    queue = 4
    """Descriptors: its DMA waited to be issued or for a DMA engine."""
    bandwidth = 5
    """Its bytes shared HBM's or the DMA engines' bandwidth with others."""
    semaphore = 6
    """Latency between engines: from the end of what it waited for to its own start."""
    collective = 7
    """Other ranks or the other core."""
    order = 8
    """The kernel asked for this order."""


@dataclass(frozen=True)
class Timeline:
    """A schedule, as parallel arrays with one entry per event, in order of start (ties: core, then record).

    Attributes:
        hardware: the target.
        tracks: where events are.
        streams: per core, the records that `record` indexes.
        core, record, track: int32; whose record ran where. A record may have several events (a DMA on several queues).
        start_ns, end_ns: float64; when the event held its track.
        visible_ns: float64; when its results can be used, at or after `end_ns`.
        cause: uint8, a `Cause`.
        blocker: int32; the event that `cause` is about, -1 where there is none.
        edges: int32 [n, 2]; (event waited for, event that waited): the dependencies, without those that others imply.
        sbuf_bytes, psum_banks: per core, (ns, used from then on) steps, float64 [n, 2].
    """

    hardware: Hardware
    tracks: tuple[Track, ...]
    streams: tuple[Sequence[Record], ...]
    core: np.ndarray
    record: np.ndarray
    track: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    visible_ns: np.ndarray
    cause: np.ndarray
    blocker: np.ndarray
    edges: np.ndarray
    sbuf_bytes: tuple[np.ndarray, ...]
    psum_banks: tuple[np.ndarray, ...]

    @property
    def events(self) -> int:
        """How many there are."""
        return len(self.start_ns)

    @property
    def total_ns(self) -> float:
        """When the last result is there."""
        return float(self.visible_ns.max()) if self.events else 0.0

    def record_of(self, event: int) -> Record:
        """The instruction behind an event."""
        return self.streams[self.core[event]][self.record[event]]
