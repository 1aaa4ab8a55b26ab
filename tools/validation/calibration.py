"""How each calibrated constant follows from measurements, so that one can be left out and the others asked for it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.hardware import TRN2
from devicetime.constants import TRN2 as MODEL
from devicetime.constants import Constants
from tools.validation.published import CALIBRATING

Values = Mapping[str, float]

_MS = 1e6
_HALF_PRODUCT_NS = 2 * 512 / TRN2.tensor_clock_ghz
"""One of an fp32 product's two matmuls: two passes of 512 columns."""

_PRODUCTS, _RESULTS = 32768, 512
"""nc_matmul calls of the tutorial's product, and tiles of its result."""


@dataclass(frozen=True)
class Estimate:
    """One way to some constants.

    Attributes:
        constants: what it gives.
        by: measurements that it uses; none where it is another source's word.
        of: their values and the constants so far, to the constants' values.
    """

    constants: tuple[str, ...]
    by: tuple[str, ...]
    of: Callable[[Values, Constants], tuple[float, ...]]


def _mean(constant: str, by: tuple[str, ...], of: Callable[[str, float], float]) -> list[Estimate]:
    """A constant that several measurements give each: their mean, or that of the others."""
    return [
        Estimate((constant,), names, lambda m, _, names=names: (float(np.mean([of(n, m[n]) for n in names])),))  # type: ignore[misc]
        for names in (by, *((name,) for name in by))
    ]


def _short_rows(version: str) -> int:
    """DMA rows of 512 B: A's, loaded for each product or once."""
    return 128 * (_PRODUCTS if version == "v2" else _PRODUCTS // 16)


def _row_costs(*equations: tuple[float, float, float]) -> tuple[float, ...]:
    """Bytes per ns and ns per row, from (rows, bytes, ns) twice."""
    table = np.array(equations, float)
    per_row, per_byte = np.linalg.solve(table[:, :2], table[:, 2])
    return 1 / float(per_byte), float(per_row)


def _packets(version: str) -> Callable[[Values], tuple[float, float, float]]:
    short, long = _short_rows(version), 128 * (_PRODUCTS + _RESULTS)
    return lambda m: (short + long, 512 * short + 2048 * long, _MS * m[f"KO.{version}.packets"])


_DMA_TIMES: dict[str, Callable[[Values], tuple[float, float, float]]] = {
    "KO.v2.packets": _packets("v2"),
    "KO.v3.packets": _packets("v3"),
    "DMA1.transfer": lambda m: (4, 4 * 8192, m["DMA1.transfer"]),
}
"""Rows, bytes and time of DMAs, by measurement."""

_ROW_COSTS = ("dma_engine_bytes_per_ns", "dma_descriptor_ns")


def _fill(m: Values, c: Constants) -> tuple[float, ...]:
    return (m["KO.matmul.latency"] - _HALF_PRODUCT_NS - c.tensor_issue_ns,)


def _staggered_rows(m: Values, c: Constants) -> tuple[float, ...]:
    """16 engines begin one after the other, each when its 8 descriptors are there."""
    last_engine_ns = 8 * (c.dma_descriptor_ns + 256 / c.dma_engine_bytes_per_ns)
    return ((m["DMA2.transfer"] - last_engine_ns) / (15 * 8),)


def _issue(m: Values, c: Constants) -> tuple[float, ...]:
    return (_MS * m["KO.v2"] / (2 * _PRODUCTS) - 128 * c.software_dge_descriptor_ns,)


def _fetch(m: Values, c: Constants) -> tuple[float, ...]:
    return (m["DMA2.trigger"] - c.software_dge_ns - 8 * c.software_dge_descriptor_ns,)


def _vector_cycles(name: str, ns: float) -> float:
    """Beyond a cycle for each element of [128, 512] fp32 out of PSUM, half of one within SBUF."""
    return ns * TRN2.vector_clock_ghz - (512 if name.startswith("KO.copy1") else 256)


def _scalar_ns(name: str, ns: float) -> float:
    """Beyond a cycle for each element of a row."""
    return ns - int(name.removeprefix("ACT.")) / TRN2.scalar_clock_ghz


def _itself(_: str, ns: float) -> float:
    return ns


ESTIMATES = (
    Estimate(("tensor_issue_ns",), ("KO.matmul.interval",), lambda m, _: (m["KO.matmul.interval"] - _HALF_PRODUCT_NS,)),
    Estimate(("tensor_issue_ns",), (), lambda *_: (0.0,)),
    Estimate(("tensor_fill_ns",), ("KO.matmul.latency",), _fill),
    # The performance guide's profile of a matmul of 128 columns, generation unstated: 188 ns from start to end.
    Estimate(("tensor_fill_ns",), (), lambda *_: (188 - 128 / TRN2.tensor_clock_ghz,)),
    *_mean("vector_overhead_cycles", ("KO.copy1.interval", "KO.copy2.interval"), _vector_cycles),
    *_mean("vector_latency_cycles", ("KO.copy1.latency", "KO.copy2.latency"), _vector_cycles),
    *_mean("scalar_latency_ns", ("ACT.4096", "ACT.128"), _scalar_ns),
    *_mean("scalar_table_load_ns", ("ACT.table1", "ACT.table2"), _itself),
    *(
        Estimate(_ROW_COSTS, (a, b), lambda m, _, a=a, b=b: _row_costs(_DMA_TIMES[a](m), _DMA_TIMES[b](m)))  # type: ignore[misc]
        for a, b in itertools.combinations(_DMA_TIMES, 2)
    ),
    Estimate(("dma_static_start_ns",), ("DMA1.trigger",), lambda m, _: (m["DMA1.trigger"],)),
    # The bandwidth guide: about 1300 ns from a semaphore to the start.
    Estimate(("dma_static_start_ns",), (), lambda _, c: (1300 - c.dma_completion_ns,)),
    *_mean("dma_completion_ns", ("DMA1.completion", "DMA2.completion"), _itself),
    Estimate(("software_dge_descriptor_ns",), ("DMA2.transfer",), _staggered_rows),
    Estimate(("software_dge_ns",), ("KO.v2",), _issue),
    # A hardware DGE is documented with about 600 ns for a DMA.
    Estimate(("software_dge_ns",), (), lambda _, c: (c.hardware_dge_ns - 128 * c.software_dge_descriptor_ns,)),
    Estimate(("dma_fetch_ns",), ("DMA2.trigger",), _fetch),
)
"""In order: of several ways to a constant the first whose measurements are there counts."""


def estimate(left_out: str | None = None) -> tuple[Constants, set[str]]:
    """Constants from all calibrating measurements, or from all but one.

    Returns:
        The model's constants with the estimated ones replaced, and those that nothing else gives.
    """
    values = {m.name: m.measured for m in CALIBRATING if m.name != left_out}
    constants, done, wanted = MODEL, set[str](), set[str]()
    changed: dict[str, Any]
    for way in ESTIMATES:
        wanted.update(way.constants)
        if done.isdisjoint(way.constants) and all(name in values for name in way.by):
            found = way.of(values, constants)
            changed = dict(zip(way.constants, found, strict=True))
            constants = dataclasses.replace(constants, **changed)
            done.update(way.constants)
    return constants, wanted - done
