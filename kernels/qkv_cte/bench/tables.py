"""The bench's results as tables for people, each with a line that says what its numbers are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table

from kernels.qkv_cte.bench.baselines import BASELINES
from kernels.qkv_cte.bench.layer import MAX_RELATIVE_RMS, ProjectionResult
from kernels.qkv_cte.bench.shapes import ShapeResult
from kernels.qkv_cte.oracle.cases import SUITES, Case
from kernels.qkv_cte.oracle.compare import MAX_ULPS
from kernels.qkv_cte.planning.plan import Plan
from tools.bench import predicted
from tools.bench.tables import new_table, note

KIB, MIB = 2**10, 2**20
ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma")
PLAN_COLUMNS = ("degree", "banks/group", "I-groups", "S-blocks", "resident", "prefetch", "SBUF KiB")


def suites() -> Iterator[RenderableType]:
    """The shapes of every suite."""
    for name, members in SUITES.items():
        table = new_table(f"suite {name}", "shape", "B", "S", "H", "I", "LNC", "bias", "prefetch")
        for case in members:
            bias = "none" if case.bias_dtype is None else str(case.bias_dtype).removeprefix("torch.")
            table.add_row(case.name, *_sizes(case), bias, case.prefetch)
        yield table


def shapes(results: Sequence[ShapeResult]) -> Iterator[RenderableType]:
    """Plan, HBM traffic, predicted time, instructions and errors, one row per shape each."""
    yield _plans(results)
    yield note(
        "Plan of each core. Resident: H-tiles of weights kept in SBUF, of all. SBUF: KiB per partition, used of usable."
    )
    yield _traffic(results)
    yield note(
        "MiB between HBM and all cores, counted from the simulated instructions. Minimum: each core reads every weight "
        "and every activation once. Pinned and chunked: schedules of the NKI Library (upstream) under this kernel's "
        "exact SBUF budget, which favours them. Pinned: one I-group, so that the width limits the degree; weights all "
        "or none resident; sub-calls above 8 PSUM banks. Chunked: this plan's degree, no weights resident. x: relative "
        "to this plan."
    )
    yield predicted.table([result.predicted for result in results])
    yield note(predicted.NOTE)
    yield _instructions(results)
    yield note("Instructions issued by all cores of the simulated run.")
    if any(result.values for result in results):
        yield _errors(results)
        yield note(
            f"Simulated values against the fp64 reference, random operands. Accepted: {MAX_ULPS} bf16 ulps. Large "
            f"shapes are computed with fewer tokens, and the plan for that many."
        )


def projections(results: Sequence[ProjectionResult]) -> Iterator[RenderableType]:
    """Plans of a layer's projections, and each segment against the layer's own."""
    table = new_table("plan", "projection", "B", "S", "H", "I", *PLAN_COLUMNS)
    for result in results:
        planned = result.projection.plan
        dims = planned.dims
        sizes = (f"{size:,}" for size in (dims.batch, dims.seqlen, dims.hidden, dims.width))
        table.add_row(result.projection.name, *sizes, *_plan_cells(planned))
    yield table
    table = new_table(
        "values", "projection", "segment", "cosine", "relative RMS", "max ulps (fp64)", "relative RMS (fp64)", ""
    )
    for result in results:
        for segment in result.segments:
            table.add_row(
                result.projection.name,
                segment.name,
                "undefined" if segment.cosine is None else f"{segment.cosine:.6f}",
                f"{segment.relative_rms:.2%}",
                f"{result.errors.max_ulps:.3f}",
                f"{result.errors.relative_rms:.2e}",
                _verdict(segment.accepted and result.exact),
            )
    yield table
    yield note(
        f"Cosine and relative RMS: simulated kernel against the layer's own projection in fp32, unquantised; accepted: "
        f"{MAX_RELATIVE_RMS:.0%}. fp64: against the exact result of the same quantised operands, whole call; "
        f"accepted: {MAX_ULPS} bf16 ulps."
    )


def _plans(results: Sequence[ShapeResult]) -> Table:
    table = new_table("plan", "shape", "B", "S", "H", "I", "LNC", *PLAN_COLUMNS)
    for result in results:
        table.add_row(result.shape.case.name, *_sizes(result.shape.case), *_plan_cells(result.shape.plan))
    return table


def _traffic(results: Sequence[ShapeResult]) -> Table:
    purposes = ("weights", "activations", "channels", "outputs", "total")
    baselines = [cell for name in BASELINES for cell in (name, "x")]
    table = new_table("HBM", "shape", *purposes, "minimum", "x", *baselines)
    for result in results:
        measured, minimum = result.measured.hbm, result.shape.plan.minimum.total
        cells = [_mib(getattr(measured, purpose)) for purpose in purposes]
        for size in (minimum, *(None if hbm is None else hbm.total for hbm in result.baseline_hbm.values())):
            cells += ["does not fit", ""] if size is None else [_mib(size), f"{size / measured.total:.2f}"]
        table.add_row(result.shape.case.name, *cells)
    return table


def _instructions(results: Sequence[ShapeResult]) -> Table:
    used = [engine for engine in ENGINES if any(result.measured.instructions[engine] for result in results)]
    table = new_table("instructions", "shape", *used, "total")
    for result in results:
        counts = result.measured.instructions
        table.add_row(result.shape.case.name, *(f"{counts[engine]:,}" for engine in used), f"{counts.total():,}")
    return table


def _errors(results: Sequence[ShapeResult]) -> Table:
    table = new_table("values", "shape", "B", "S", "degree", "resident", "prefetch", "max ulps", "relative RMS", "")
    for result in results:
        if values := result.values:
            dims, cells = values.plan.dims, _plan_cells(values.plan)
            errors = values.errors
            table.add_row(
                result.shape.case.name,
                f"{dims.batch:,}",
                f"{dims.seqlen:,}",
                *cells[:1],
                *cells[4:6],
                f"{errors.max_ulps:.3f}",
                f"{errors.relative_rms:.2e}",
                _verdict(values.accepted),
            )
    return table


def _plan_cells(planned: Plan) -> tuple[str, ...]:
    chosen = planned.schedule
    return (
        str(chosen.degree),
        str(chosen.banks_per_group),
        str(chosen.num_i_groups),
        str(len(chosen.blocks)),
        f"{chosen.resident_h_tiles} of {planned.dims.h_tiles}",
        chosen.prefetch,
        f"{planned.sbuf.peak_bytes / KIB:.1f} of {planned.sbuf.capacity_bytes / KIB:.1f}",
    )


def _sizes(case: Case) -> tuple[str, ...]:
    return tuple(f"{size:,}" for size in (case.batch, case.seqlen, case.hidden, case.width, case.lnc))


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:,.1f}"


def _verdict(accepted: bool) -> str:
    return "ok" if accepted else "OUT OF TOLERANCE"
