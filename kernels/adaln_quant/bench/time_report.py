"""The HTML report's part that only this kernel knows: sizes, plan, bytes."""

from __future__ import annotations

import dataclasses

from kernels.adaln_quant.bench.shapes import SEPARATE, Result
from kernels.adaln_quant.planning.plan import HbmBytes
from tools.timeline_report import memory
from tools.timeline_report.report import Report, Section
from tools.timeline_report.summary import Table

MIB = 2**20


def report(result: Result) -> Report:
    """The report of a shape's predicted run."""
    planned, dims = result.shape.plan, result.shape.plan.dims
    sizes = (
        f"{dims.batch} x {dims.seqlen:,} tokens, {dims.hidden:,} columns, modulation {dims.modulation.value}, "
        f"{dims.cores} cores of {planned.hardware.name}"
    )
    choice = Table("Schedule of each core", ("choice", "value"), (("S-tiles under way", str(planned.depth)),))
    tables = (choice, _bytes(result), memory.table(planned.sbuf))
    title = f"adaln_quant, {result.shape.case.name}"
    return Report(title, sizes, result.timeline, sections=(Section("Plan", tables),))


def _bytes(result: Result) -> Table:
    columns = [("plan", result.measured.hbm), ("minimum", result.shape.plan.minimum)]
    if result.separate_hbm is not None:
        columns.append((SEPARATE, result.separate_hbm))
    names = [*(field.name for field in dataclasses.fields(HbmBytes)), "total"]
    rows = tuple((name, *(f"{getattr(hbm, name) / MIB:,.1f}" for _, hbm in columns)) for name in names)
    return Table("HBM", ("MiB of all cores", *(name for name, _ in columns)), rows)
