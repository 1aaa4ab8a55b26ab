"""What was measured on hardware and published, and how each measurement is read off a predicted timeline.

Sources are pages of the vendor's SDK documentation, and the notes of the MLA decode kernel ("seed"). Where a profile
is a picture, numbers were measured off it. Times are of trn2 unless a note says that the source does not say.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from devicetime.constants import Constants
from devicetime.timeline import Timeline, TrackKind
from tools.validation import recordings
from tools.validation.recordings import events, timeline

Reading = Callable[[Constants], float]

_TUTORIAL = "guides/tutorials/kernel-optimization.rst"
_OVERVIEW = "get-started/about/nki-dma-overview.rst"
_GUIDE = "deep-dives/nki_perf_guide.rst"
_UNITS_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6}


@dataclass(frozen=True)
class Measurement:
    """One published number.

    Attributes:
        name: unique.
        what: what was measured.
        measured: the number, in `unit`.
        unit: "ns", "us", "ms" or "%".
        source: the page, with the picture where it is one.
        read: the same number off the model, for constants.
        note: what the source leaves open, or contradicts.
    """

    name: str
    what: str
    measured: float
    unit: str
    source: str
    read: Reading
    note: str = ""


def _total(version: str) -> Reading:
    return lambda constants: timeline(recordings.matmul(version), constants).total_ns / _UNITS_NS["ms"]


def _packet_ms(version: str) -> Reading:
    """Time that the DMA engines are busy with packets, added up over the engines."""

    def read(constants: Constants) -> float:
        run = recordings.matmul(version)
        each = constants.dma_descriptor_ns
        total = 0.0
        for record in run.cores[0].stream:
            if record.op == "dma_copy":
                rows = record.writes[0].shape[0]
                total += rows * (each + record.size_bytes / rows / constants.dma_engine_bytes_per_ns)
        return total / _UNITS_NS["ms"]

    return read


def _matmul_interval(constants: Constants) -> float:
    made = timeline(recordings.matmul("v3"), constants)
    found = events(made, "nc_matmul")
    return float(np.median(np.diff(made.start_ns[found]))) / 2


def _matmul_latency(constants: Constants) -> float:
    """From the start of the second of an fp32 product's two instructions to its last result."""
    made = timeline(recordings.matmul("v3"), constants)
    last = events(made, "nc_matmul")[-1]
    return float(made.visible_ns[last] - made.end_ns[last] + (made.end_ns[last] - made.start_ns[last]) / 2)


def _vector(number: int, latency: bool) -> Reading:
    def read(constants: Constants) -> float:
        made = timeline(recordings.vector_chain(), constants)
        event = events(made, "tensor_copy")[number]
        end = made.visible_ns if latency else made.end_ns
        return float(end[event] - made.start_ns[event])

    return read


class Load(NamedTuple):
    """A load in a timeline: the events of its issue, of its transfer, and of the instruction that waits for it."""

    made: Timeline
    issue: int
    transfer: int
    consumer: int

    @property
    def trigger_ns(self) -> float:
        """From its issue to the first byte."""
        return float(self.made.start_ns[self.transfer] - self.made.start_ns[self.issue])

    @property
    def transfer_ns(self) -> float:
        """From the first byte to the last."""
        return float(self.made.end_ns[self.transfer] - self.made.start_ns[self.transfer])

    @property
    def completion_ns(self) -> float:
        """From the last byte to the start of what waited."""
        return float(self.made.start_ns[self.consumer] - self.made.end_ns[self.transfer])

    @property
    def consumer_ns(self) -> float:
        """From the start of what waited to its last result."""
        return float(self.made.visible_ns[self.consumer] - self.made.start_ns[self.consumer])


def _load(rows: int, columns: int, constants: Constants, *, static: bool = False) -> Load:
    made = timeline(recordings.load(rows, columns, static), constants)
    issue, transfers = events(made, "dma_copy"), events(made, "dma_copy", TrackKind.dma_queue)
    return Load(made, int(issue[0]), int(transfers[0]), int(events(made, "activation")[0]))


def _end_to_end(constants: Constants) -> float:
    load = _load(128, 128, constants)
    return load.trigger_ns + load.transfer_ns + load.completion_ns


def _exponential(rows: int, columns: int) -> Reading:
    """Without the table load before it, which profiles show apart."""
    return lambda constants: _load(rows, columns, constants).consumer_ns - constants.scalar_table_load_ns


def _curve(row_bytes: int) -> Reading:
    """Throughput of loads of 128 rows, relative to that of the longest."""

    def read(constants: Constants) -> float:
        longest = 32768
        small, large = (timeline(recordings.copies(size), constants).total_ns / size for size in (row_bytes, longest))
        return 100 * large / small

    return read


_CURVE_NOTE = "and below: the axis is unlabelled, and how the DMAs were issued and overlapped is not stated."

CALIBRATING = (
    Measurement("KO.v2", "matmul v2, loads for every product", 39.895, "ms", f"{_TUTORIAL}, v2-full.png", _total("v2")),
    Measurement("KO.v2.packets", "DMA packet time, 16 engines", 519.58, "ms", f"{_TUTORIAL}, v2", _packet_ms("v2")),
    Measurement("KO.v3.packets", "DMA packet time, 16 engines", 402.07, "ms", f"{_TUTORIAL}, v3", _packet_ms("v3")),
    Measurement(
        "KO.matmul.interval",
        "one of an fp32 product's two matmuls",
        429.7,
        "ns",
        f"{_TUTORIAL}, v5-pe.png",
        _matmul_interval,
    ),
    Measurement(
        "KO.matmul.latency",
        "one of an fp32 product's two matmuls",
        600,
        "ns",
        f"{_TUTORIAL}, v5-zoom.png",
        _matmul_latency,
        "Measured off the picture; the perf guide's profile (generation unstated) has 35 ns less of fill.",
    ),
    Measurement(
        "KO.copy1.interval", "PSUM to SBUF, [128, 512] fp32", 604, "ns", f"{_TUTORIAL}, v5-zoom.png", _vector(0, False)
    ),
    Measurement(
        "KO.copy1.latency", "the same, to its last result", 690, "ns", f"{_TUTORIAL}, v5-zoom.png", _vector(0, True)
    ),
    Measurement(
        "KO.copy2.interval",
        "within SBUF, [128, 512] fp32",
        342,
        "ns",
        f"{_TUTORIAL}, v5-zoom.png",
        _vector(1, False),
        "Which instruction it is was inferred from its rate.",
    ),
    Measurement(
        "KO.copy2.latency",
        "the same, to its last result",
        statistics.mean((428, 419)),
        "ns",
        f"{_TUTORIAL}, v5-zoom.png",
        _vector(1, True),
        "Two bars, 428 and 419 ns.",
    ),
    Measurement(
        "DMA1.trigger",
        "issue to first byte, static descriptors",
        1003,
        "ns",
        f"{_OVERVIEW}, nki-dma-intro-3.png",
        lambda c: _load(4, 4096, c, static=True).trigger_ns,
    ),
    Measurement(
        "DMA1.transfer",
        "4 rows of 8 KiB on one engine",
        1416,
        "ns",
        f"{_OVERVIEW}, nki-dma-intro-3.png",
        lambda c: _load(4, 4096, c, static=True).transfer_ns,
    ),
    Measurement(
        "DMA1.completion",
        "last byte to the consumer's start",
        357,
        "ns",
        f"{_OVERVIEW}, nki-dma-intro-3.png",
        lambda c: _load(4, 4096, c, static=True).completion_ns,
        "DMA2.completion is 18 % shorter; one constant serves both.",
    ),
    Measurement(
        "DMA2.trigger",
        "issue to first byte, software DGE",
        739,
        "ns",
        f"{_OVERVIEW}, nki-dma-intro-6.png",
        lambda c: _load(128, 128, c).trigger_ns,
    ),
    Measurement(
        "DMA2.transfer",
        "128 rows of 256 B on 16 engines",
        468,
        "ns",
        f"{_OVERVIEW}, nki-dma-intro-7.png",
        lambda c: _load(128, 128, c).transfer_ns,
    ),
    Measurement(
        "DMA2.completion",
        "last byte to the consumer's start",
        293,
        "ns",
        f"{_OVERVIEW}, nki-dma-intro-7.png",
        lambda c: _load(128, 128, c).completion_ns,
    ),
    Measurement(
        "ACT.4096", "exp on [4, 4096] bf16", 3709, "ns", f"{_OVERVIEW}, nki-dma-intro-3.png", _exponential(4, 4096)
    ),
    Measurement(
        "ACT.128", "exp on [128, 128] bf16", 400, "ns", f"{_OVERVIEW}, nki-dma-intro-5.png", _exponential(128, 128)
    ),
    Measurement(
        "ACT.table1",
        "function table load",
        1285,
        "ns",
        f"{_OVERVIEW}, nki-dma-intro-3.png",
        lambda c: c.scalar_table_load_ns,
    ),
    Measurement(
        "ACT.table2",
        "function table load",
        1326,
        "ns",
        f"{_OVERVIEW}, nki-dma-intro-5.png",
        lambda c: c.scalar_table_load_ns,
    ),
)
"""Measurements that constants were calibrated by."""

PREDICTED = (
    Measurement("KO.v3", "matmul v3, loads hoisted", 28.198, "ms", f"{_TUTORIAL}, v3-full.png", _total("v3")),
    Measurement(
        "KO.v5",
        "matmul v5, blocked",
        28.302,
        "ms",
        f"{_TUTORIAL}, v5-full.png",
        _total("v5"),
        "It spilled a little, as its traffic shows; rebuilt without, see matmul_kernels.",
    ),
    Measurement(
        "DMA2.end_to_end",
        "issue to the consumer's start",
        1500,
        "ns",
        f"{_OVERVIEW}, nki-dma-intro-5.png",
        _end_to_end,
        "The bandwidth guide has about 1300 ns from a semaphore to the start of a DMA.",
    ),
    *(
        Measurement(
            f"DMA.curve.{size}",
            f"throughput of 128 rows of {size} B",
            share,
            "%",
            f"{_OVERVIEW}, nki-dma-intro-1.jpg",
            _curve(size),
            _CURVE_NOTE if size == 512 else "",
        )
        for size, share in ((512, 21.0), (1024, 42.5), (2048, 81.4), (4096, 96.6), (8192, 98.3))
    ),
)
"""Measurements that no constant was fitted to."""

NOT_REBUILT = (
    ("matmul v4 28.414 ms", "its operand block is larger than SBUF, and what was spilled instead is not known"),
    ("dependent [128, 1] activations 189 ns", f"{_GUIDE}: measured on trn1, which the simulator does not model"),
    ("matmul of 128 x 1 by 128 columns 188 ns", f"{_GUIDE}: generation and clock unstated"),
    ("one DMA engine's 8 rows of 256 B 97 ns", f"{_OVERVIEW}: other engines of the same picture show 80 to 165 ns"),
    ("matmul 360 ns at 128x1, 179 ns at 128x128", "seed: latencies or intervals, generation and sizes unstated"),
)
"""Published numbers that have no rebuilt kernel, and why."""

CONTRADICTIONS = (
    "fp32 copies within SBUF run at 2 elements a cycle in v5-zoom.png, at 1 in the older cost formulas.",
    "A DMA engine moves 27.2 B/ns in the architecture guide, 23 in the bandwidth guide's table, 24.2 in the tutorial's "
    "packet times; the model takes the last.",
    "A cost formula has 64 cycles (27 ns) for a 128x1 matmul, the seed 360 ns, twice its 128x128; the model halves the "
    "clock of a Tensor Engine whose array is mostly idle, and adds nothing for the width.",
    "16 bytes moved for each that a DMA transpose writes (seed: 8.4 MB become 134 MB) against up to 90 % of a copy's "
    "rate (architecture guide): 4 x 134 MB cannot move in the time that was measured, so the model takes the rate.",
)
"""Sources that do not agree, and what the model takes."""
