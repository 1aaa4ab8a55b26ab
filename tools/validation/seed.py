"""What the notes of the MLA decode kernel ("seed") measured, at its production shape on trn2, against predictions.

No constant was fitted to any of it. Ratios are of two schedules of this repository's kernel; the seed's own kernel
changed between its measurements, and of most it does not say what else held.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

from devicetime.analysis import busy_shares
from devicetime.predict import predict
from devicetime.timeline import Timeline
from kernels.mla_decode.bench.measure import run_without_values
from kernels.mla_decode.device.config import Schedule
from kernels.mla_decode.oracle import cases
from nkisim.execution import Run

_US = 1e3


@dataclass(frozen=True)
class Comparison:
    """One schedule against another.

    Attributes:
        name: what is compared.
        measured: ratio of times, slower over faster; None where the seed has an order and no number.
        low, high: between which a prediction has to be.
        predicted: the ratio as predicted.
        note: what both were.
    """

    name: str
    measured: float | None
    low: float
    high: float
    predicted: float
    note: str

    @property
    def holds(self) -> bool:
        """Whether the prediction is where it has to be."""
        return self.low <= self.predicted <= self.high


@dataclass(frozen=True)
class Absolute:
    """A published time or share against its prediction."""

    name: str
    measured: float
    unit: str
    predicted: float
    note: str


@functools.cache
def _timeline(schedule: Schedule, chunks: int = 0, group_tokens: int | None = None) -> Timeline:
    case = dataclasses.replace(
        cases.PRODUCTION[0], schedule=schedule, dma_transposed_chunks=chunks, group_tokens=group_tokens
    )
    return predict(Run(None, run_without_values(case.plan).cores), case.target)


KEY_MAJOR = Schedule(stationary_weights=True)
HEAD_MAJOR = dataclasses.replace(KEY_MAJOR, head_major=True)
BANDS, LATE = dataclasses.replace(HEAD_MAJOR, latent_bands=True), dataclasses.replace(KEY_MAJOR, late_weighted_sum=True)
PER_TOKEN = 1
"""Tokens of a softmax group when keys went to the partitions: groups came later."""


def _us(schedule: Schedule, chunks: int = 0, group_tokens: int | None = None) -> float:
    return _timeline(schedule, chunks, group_tokens).total_ns / _US


def bands_ratio(chunks: int, group_tokens: int | None) -> float:
    """Time with latent tiles on bands over that without, both head-major."""
    return _us(BANDS, chunks, group_tokens) / _us(HEAD_MAJOR, chunks, group_tokens)


def comparisons() -> list[Comparison]:
    """The seed's orders."""
    by_chunks = [_us(KEY_MAJOR, chunks) for chunks in range(5)]
    return [
        Comparison(
            "head-major over key-major softmax",
            521.5 / 402.2,
            1.2,
            1.4,
            _us(HEAD_MAJOR, 0, PER_TOKEN) / _us(KEY_MAJOR, 0, PER_TOKEN),
            "softmax per token in both",
        ),
        Comparison(
            "latent tiles on 32-partition bands over one PSUM chain",
            525.7 / 433.8,
            1.0001,
            1.25,
            bands_ratio(0, None),
            "head-major in both: bands hold rows of heads",
        ),
        Comparison(
            "the same, at the settings nearest to the seed's 433.8 us",
            525.7 / 433.8,
            1.0001,
            1.25,
            bands_ratio(2, PER_TOKEN),
            f"softmax per token, two chunks transposed by DMA: {_us(HEAD_MAJOR, 2, PER_TOKEN):.0f} us without bands",
        ),
        Comparison("no DMA-transposed chunk over one", None, 1.0001, 1.2, by_chunks[0] / by_chunks[1], "key-major"),
        Comparison("four DMA-transposed chunks over one", None, 1.0001, 2.0, by_chunks[4] / by_chunks[1], "key-major"),
        Comparison(
            "weighted sum one token late over in order", 1.0, 0.99, 1.01, _us(LATE) / _us(KEY_MAJOR), "key-major"
        ),
    ]


def absolutes() -> list[Absolute]:
    """The seed's times and shares."""
    by_chunks = [_us(KEY_MAJOR, chunks) for chunks in range(5)]
    none, one = _timeline(KEY_MAJOR, 0), _timeline(KEY_MAJOR, 1)
    best_gain = by_chunks[0] - min(by_chunks)
    return [
        Absolute("key-major", 402.2, "us", _us(KEY_MAJOR, 0, PER_TOKEN), "softmax per token"),
        Absolute("head-major", 521.5, "us", _us(HEAD_MAJOR, 0, PER_TOKEN), "softmax per token"),
        Absolute("before bands", 433.8, "us", _us(KEY_MAJOR), "softmax in groups; what the seed had is not stated"),
        Absolute(
            "Tensor Engine time a DMA-transposed chunk saves",
            18,
            "us",
            _busy_us(none, "Tensor") - _busy_us(one, "Tensor"),
            "the seed counts evictions, too",
        ),
        Absolute(
            "the first chunk's part of the best gain",
            91,
            "%",
            100 * (by_chunks[0] - by_chunks[1]) / best_gain if best_gain > 0 else 0.0,
            "of 0 to 4 chunks",
        ),
    ]


def _busy_us(made: Timeline, engine: str) -> float:
    return busy_shares(made)[f"core 0 {engine}"] * made.total_ns / _US
