"""The bench's results as tables, each with a line that says what its numbers are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table

from kernels.adaln_quant.bench.shapes import SEPARATE, Result
from kernels.adaln_quant.oracle.cases import NONE, SUITES, Case
from kernels.adaln_quant.oracle.compare import MAX_ROUNDINGS
from tools.bench import predicted
from tools.bench.tables import new_table, note
from tools.timeline_report.summary import busy_share

KIB, MIB = 2**10, 2**20
ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma")
BALANCED = ("Vector", "Scalar", "GpSimd")
"""Engines that share the rows' work, as timelines call them."""


def suites() -> Iterator[RenderableType]:
    """The shapes of every suite."""
    for name, members in SUITES.items():
        table = new_table(f"suite {name}", "shape", "B", "S", "H", "LNC", "x", "modulation", "out")
        for case in members:
            table.add_row(case.name, *_sizes(case), *_kind(case))
        yield table


def results(found: Sequence[Result]) -> Iterator[RenderableType]:
    """Plan, HBM traffic, predicted time, instructions and errors, one row per shape each."""
    yield _plans(found)
    yield note("In flight: S-tiles with their own buffers. SBUF: KiB per partition, used of usable.")
    yield _traffic(found)
    yield note(
        "MiB between HBM and all cores, counted from the simulated instructions. Minimum: x, scale and shift read once "
        f"(vectors of a batch by each core), the result written once. {SEPARATE.capitalize()}: AdaLN to bf16 and row "
        "quantisation as two launches. x: relative to this plan."
    )
    for fused in (True, False):
        times = [result.predicted for result in found if bool(result.predicted.others_ns) == fused]
        if times:
            yield predicted.table(times)
    yield note(predicted.NOTE)
    yield _busy(found)
    yield note("Share of the predicted time that each engine is busy, cores averaged.")
    yield _instructions(found)
    yield note("Instructions issued by all cores of the simulated run.")
    if any(result.errors for result in found):
        yield _errors(found)
        yield note(
            "Simulated values against the fp64 reference, random operands with outlier channels. Roundings: error of "
            "an element, and of a row's scale, beyond half a step of the result's type, in fp32 roundings; accepted: "
            f"{MAX_ROUNDINGS:g}. Large shapes are computed with fewer tokens."
        )


def _plans(found: Sequence[Result]) -> Table:
    table = new_table("plan", "shape", "B", "S", "H", "LNC", "x", "modulation", "out", "in flight", "SBUF KiB")
    for result in found:
        case, planned = result.shape.case, result.shape.plan
        sbuf = f"{planned.sbuf.peak_bytes / KIB:.1f} of {planned.sbuf.capacity_bytes / KIB:.1f}"
        table.add_row(case.name, *_sizes(case), *_kind(case), str(planned.depth), sbuf)
    return table


def _traffic(found: Sequence[Result]) -> Table:
    purposes = ("rows", "modulation", "outputs", "total")
    table = new_table("HBM", "shape", *purposes, "minimum", "x", SEPARATE, "x")
    for result in found:
        moved, minimum, separate = result.measured.hbm, result.shape.plan.minimum.total, result.separate_hbm
        cells = [f"{getattr(moved, purpose) / MIB:,.1f}" for purpose in purposes]
        cells += [f"{minimum / MIB:,.1f}", f"{minimum / moved.total:.3f}"]
        if separate is not None:
            cells += [f"{separate.total / MIB:,.1f}", f"{separate.total / moved.total:.2f}"]
        table.add_row(result.shape.case.name, *cells)
    return table


def _busy(found: Sequence[Result]) -> Table:
    table = new_table("busy", "shape", *BALANCED)
    for result in found:
        table.add_row(result.shape.case.name, *(f"{busy_share(result.timeline, name):.0%}" for name in BALANCED))
    return table


def _instructions(found: Sequence[Result]) -> Table:
    used = [engine for engine in ENGINES if any(result.measured.instructions[engine] for result in found)]
    table = new_table("instructions", "shape", *used, "total")
    for result in found:
        counts = result.measured.instructions
        table.add_row(result.shape.case.name, *(f"{counts[engine]:,}" for engine in used), f"{counts.total():,}")
    return table


def _errors(found: Sequence[Result]) -> Table:
    table = new_table("values", "shape", "B", "S", "roundings", "of scales", "relative RMS", "")
    for result in found:
        case, errors = result.shape.values, result.errors
        if case is not None and errors is not None:
            table.add_row(
                case.name,
                f"{case.batch:,}",
                f"{case.seqlen:,}",
                f"{errors.roundings:.2f}",
                f"{errors.scale_roundings:.2f}",
                f"{errors.relative_rms:.2e}",
                "ok" if errors.accepted else "OUT OF TOLERANCE",
            )
    return table


def _sizes(case: Case) -> tuple[str, ...]:
    return tuple(f"{size:,}" for size in (case.batch, case.seqlen, case.hidden, case.lnc))


def _kind(case: Case) -> tuple[str, str, str]:
    modulation = "none" if case.modulation is NONE else f"{case.modulation.value} {_dtype(case.modulation_dtype)}"
    return _dtype(case.dtype), modulation, "fp8 rows" if case.quantised else "bf16"


def _dtype(dtype: object) -> str:
    return {"torch.bfloat16": "bf16", "torch.float32": "fp32"}[str(dtype)]
