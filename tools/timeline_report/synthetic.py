"""Made-up timelines of any size for tests: what a scheduler might have said, with every kind of track and cause."""

from __future__ import annotations

import numpy as np

from common.hardware import TRN2, Hardware
from devicetime.timeline import Cause, Timeline, Track, TrackKind
from nkisim.dtypes import bfloat16, float32
from nkisim.enums import MemoryRegion, engine
from nkisim.record import Record
from nkisim.storage import Allocation, Region

_ENGINES = ("Tensor", "Vector", "Scalar", "GpSimd", "Sync")
_QUEUES = 3


def _region(name: str, buffer: MemoryRegion, shape: tuple[int, ...]) -> Region:
    dtype = float32 if buffer is MemoryRegion.psum else bfloat16
    allocation = Allocation(0, name, buffer, shape, dtype, shape[0], shape[1] * dtype.itemsize, None, None)
    return Region(allocation, dtype, 0, shape, (shape[1], 1))


def _kernel() -> None:
    """Lends its code to the records."""


def _records() -> list[Record]:
    code, sbuf, psum, hbm = _kernel.__code__, MemoryRegion.sbuf, MemoryRegion.psum, MemoryRegion.private_hbm
    weights, keys = _region("weights", sbuf, (128, 128)), _region("keys", sbuf, (128, 512))
    scores, kept = _region("scores", psum, (128, 512)), _region("kept", sbuf, (128, 512))
    return [
        Record("nc_matmul", engine.tensor, (scores,), (weights, keys), code, 0, detail=("none", False)),
        Record("tensor_copy", engine.vector, (kept,), (scores,), code, 0),
        Record("activation", engine.scalar, (kept,), (kept,), code, 0, detail="exp"),
        Record("memset", engine.gpsimd, (kept,), (), code, 0),
        Record("core_barrier", engine.sync, (), (kept,), code, 0),
        Record("dma_copy", engine.dma, (keys,), (_region("cache", hbm, (128, 512)),), code, 0, name="keys"),
    ]


def timeline(events: int, hardware: Hardware = TRN2, cores: int = 1, seed: int = 0) -> Timeline:
    """Events on random tracks, each busy and idle by turns, each waiting for an earlier one of another track."""
    random = np.random.default_rng(seed)
    tracks = [track for core in range(cores) for track in _tracks(core)]
    track = random.integers(0, len(tracks), events).astype(np.int32)
    start, duration = np.zeros(events), random.integers(20, 400, events).astype(np.float64)
    for number in range(len(tracks)):
        mine = np.flatnonzero(track == number)
        gaps = random.integers(0, 120, len(mine)) * (random.random(len(mine)) < 0.5)
        start[mine] = np.cumsum(duration[mine] + gaps) - duration[mine]
    order = np.lexsort((track, start))
    track, start, duration = track[order], start[order], duration[order]
    end = start + duration
    blocker = _blockers(track, start, end, random)
    waited = np.flatnonzero(blocker >= 0)
    cause = np.where(blocker >= 0, random.integers(1, len(Cause), events), Cause.none)
    kinds = len(_ENGINES) + _QUEUES
    peaks = hardware.sbuf_usable_bytes_per_partition, hardware.psum_banks
    steps = [[_steps(end.max(initial=0.0), peak, random) for _ in range(cores)] for peak in peaks]
    return Timeline(
        hardware=hardware,
        tracks=tuple(tracks),
        streams=tuple(_records() for _ in range(cores)),
        core=(track // kinds).astype(np.int32),
        record=np.minimum(track % kinds, len(_ENGINES)).astype(np.int32),
        track=track,
        start_ns=start,
        end_ns=end,
        visible_ns=end + 60,
        cause=cause.astype(np.uint8),
        blocker=blocker,
        edges=np.stack([blocker[waited], waited.astype(np.int32)], axis=1),
        sbuf_bytes=tuple(steps[0]),
        psum_banks=tuple(steps[1]),
    )


def _tracks(core: int) -> list[Track]:
    engines = [Track(f"core {core} {name}", name, TrackKind.engine, core) for name in _ENGINES]
    queues = [Track(f"core {core} DMA queue {n}", f"DMA {n}", TrackKind.dma_queue, core) for n in range(_QUEUES)]
    return engines + queues


def _blockers(track: np.ndarray, start: np.ndarray, end: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Of each event one that ended before it and is on another track; -1 where none was found."""
    events = len(start)
    guess = np.searchsorted(start, start - 1000 * random.random(events)) - 1
    guess = np.clip(guess, -1, events - 1).astype(np.int32)
    good = (guess >= 0) & (end[guess] <= start) & (track[guess] != track)
    return np.where(good, guess, -1).astype(np.int32)


def _steps(total_ns: float, peak: int, random: np.random.Generator) -> np.ndarray:
    times = np.sort(random.integers(0, max(1, int(total_ns)), 50)).astype(np.float64)
    return np.stack([times, random.integers(0, peak + 1, 50).astype(np.float64)], axis=1)
