"""The HTML report's part that only this kernel knows: sizes, plan, bytes."""

from __future__ import annotations

from kernels.mla_decode.bench.measure import as_dict
from kernels.mla_decode.bench.shapes import Result
from tools.timeline_report import memory
from tools.timeline_report.report import Report, Section
from tools.timeline_report.summary import Table

MIB = 2**20


def report(result: Result) -> Report:
    """The report of a shape's predicted run."""
    planned, dims = result.plan, result.plan.dims
    sizes = (
        f"tokens {dims.n_tokens}, heads {dims.n_heads}, keys {dims.n_prior:,}, "
        f"cores {dims.cores} of {planned.hardware.name}"
    )
    schedule = Table(
        "Schedule of each core",
        ("choice", "value"),
        (
            ("what two cores have half of each", planned.cores_share if dims.cores > 1 else "-"),
            ("tokens that share a softmax", str(planned.group_tokens)),
            ("key buffers", str(planned.key_buffers)),
            ("latent tiles transposed by DMA", f"{planned.dma_transposed_chunks} of {dims.latent_tiles}"),
            ("o-projection columns at once", f"{planned.pass_columns:,}"),
        ),
    )
    tables = (schedule, _bytes(result), memory.table(planned.sbuf))
    return Report(
        f"mla_decode, {result.name}", sizes, result.timeline, result.prediction, sections=(Section("Plan", tables),)
    )


def _bytes(result: Result) -> Table:
    moved, minimum = as_dict(result.measured.hbm), as_dict(result.plan.minimum)
    rows = (
        (name.replace("_", " "), f"{size / MIB:,.2f}", f"{minimum[name] / MIB:,.2f}")
        for name, size in moved.items()
        if size
    )
    return Table("HBM", ("MiB of all cores", "plan", "minimum"), tuple(rows))
