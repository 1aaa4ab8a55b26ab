"""The HTML report's part that only this kernel knows: sizes, plan, bytes."""

from __future__ import annotations

import dataclasses

from kernels.qkv_cte.bench.shapes import ShapeResult
from kernels.qkv_cte.planning.plan import HbmBytes
from tools.timeline_report import memory
from tools.timeline_report.report import Report, Section
from tools.timeline_report.summary import Table

MIB = 2**20


def report(result: ShapeResult) -> Report:
    """The report of a shape's predicted run."""
    planned = result.shape.plan
    dims, chosen = planned.dims, planned.schedule
    sizes = (
        f"tokens {dims.batch} x {dims.seqlen:,}, columns {dims.hidden:,} to {dims.width:,}, "
        f"cores {dims.cores} of {planned.hardware.name}"
    )
    schedule = Table(
        "Schedule of each core",
        ("choice", "value"),
        (
            ("S-tiles at once (degree)", str(chosen.degree)),
            ("PSUM banks per I-group", str(chosen.banks_per_group)),
            ("I-groups", str(chosen.num_i_groups)),
            ("S-blocks", str(len(chosen.blocks))),
            ("H-tiles of weights resident", f"{chosen.resident_h_tiles} of {dims.h_tiles}"),
            ("prefetch", chosen.prefetch),
            ("policy", planned.policy),
        ),
    )
    tables = (schedule, _bytes(result), memory.table(planned.sbuf), memory.table(planned.psum))
    why = "\n".join((*chosen.why, *planned.policy_why))
    return Report(
        f"qkv_cte, {result.shape.case.name}",
        sizes,
        result.timeline,
        result.prediction,
        sections=(Section("Plan", tables, why),),
    )


def _bytes(result: ShapeResult) -> Table:
    baselines = [(name, hbm) for name, hbm in result.baseline_hbm.items() if hbm is not None]
    columns = [("plan", result.measured.hbm), ("minimum", result.shape.plan.minimum), *baselines]
    purposes = [field.name for field in dataclasses.fields(HbmBytes) if getattr(result.measured.hbm, field.name)]
    rows = ((name, *(f"{getattr(hbm, name) / MIB:,.1f}" for _, hbm in columns)) for name in [*purposes, "total"])
    return Table("HBM", ("MiB of all cores", *(name for name, _ in columns)), tuple(rows))
