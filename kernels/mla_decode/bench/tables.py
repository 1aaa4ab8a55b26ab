"""The bench's results as tables, each with a line that says what its numbers are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table

from kernels.mla_decode.bench.measure import as_dict
from kernels.mla_decode.bench.shapes import Result
from kernels.mla_decode.oracle.cases import Case
from kernels.mla_decode.oracle.compare import MAX_OF_ROUNDED
from kernels.mla_decode.oracle.front_cases import FrontCase
from tools.bench import predicted
from tools.bench.tables import new_table, note

KIB, MIB = 2**10, 2**20
ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma")
PURPOSES = ("keys", "tables", "queries", "weights", "inputs", "rows_written", "output", "total")


def suites(members_by_name: Mapping[str, Sequence[Case | FrontCase]]) -> Iterator[RenderableType]:
    """The shapes of every suite."""
    for name, members in members_by_name.items():
        table = new_table(
            f"suite {name}", "shape", "tokens", "heads", "keys", "latent", "hidden", "dtype", "front-fold"
        )
        for member in members:
            case, front = (member.attention, "yes") if isinstance(member, FrontCase) else (member, "")
            sizes = (case.n_tokens, case.n_heads, case.n_prior, case.kv_lora_rank, case.hidden)
            table.add_row(case.name, *map(str, sizes), str(case.dtype).removeprefix("torch."), front)
        yield table


def results(found: Sequence[Result]) -> Iterator[RenderableType]:
    """Plan, HBM traffic, predicted time, instructions and errors, one row per shape each."""
    yield _plans(found)
    yield note(
        "Share: what two cores split. Group: tokens that share a softmax. SBUF: KiB per partition, used of usable."
    )
    yield _traffic(found)
    yield note(
        "MiB between HBM and all cores, counted from the simulated instructions; skipped slots count as read. "
        "Minimum: each selected row, weight, table entry, input and result once."
    )
    yield predicted.table([result.predicted for result in found])
    yield note(f"{predicted.NOTE} Others: alternative schedules that the published reference reports (--ablate).")
    yield _instructions(found)
    yield note("Instructions issued in the simulated run.")
    if any(result.values for result in found):
        yield _values(found)
        yield note(
            "Relative RMS against the fp64 reference, random operands. Rounded: error of a torch implementation with "
            f"the kernel's rounding points; in bf16 the kernel may have {MAX_OF_ROUNDED} times as much. Host: seconds "
            "on this machine for the simulated kernel and for the torch fp32 reference."
        )


def _plans(found: Sequence[Result]) -> Table:
    sizes = ("cores", "share", "tokens", "heads", "keys")
    columns = (*sizes, "group", "key buffers", "DMA chunks", "o-proj columns", "SBUF KiB")
    table = new_table("plan", "shape", *columns)
    for result in found:
        plan = result.plan
        numbers = (
            *(plan.dims.n_tokens, plan.dims.n_heads, plan.dims.n_prior),
            *(plan.group_tokens, plan.key_buffers, plan.dma_transposed_chunks, plan.pass_columns),
        )
        sbuf = f"{plan.sbuf.peak_bytes / KIB:.1f} of {plan.sbuf.capacity_bytes / KIB:.1f}"
        cores = (str(plan.dims.cores), plan.cores_share if plan.dims.cores > 1 else "-")
        table.add_row(result.name, *cores, *(f"{number:,}" for number in numbers), sbuf)
    return table


def _traffic(found: Sequence[Result]) -> Table:
    used = [name for name in PURPOSES if any(as_dict(result.measured.hbm)[name] for result in found)]
    table = new_table("HBM", "shape", *(name.replace("_", " ") for name in used), "minimum", "x")
    for result in found:
        moved, minimum = as_dict(result.measured.hbm), result.plan.minimum.total
        cells = [f"{moved[name] / MIB:,.2f}" for name in used]
        table.add_row(result.name, *cells, f"{minimum / MIB:,.2f}", f"{moved['total'] / minimum:.4f}")
    return table


def _instructions(found: Sequence[Result]) -> Table:
    used = [engine for engine in ENGINES if any(result.measured.instructions[engine] for result in found)]
    table = new_table("instructions", "shape", *used, "total")
    for result in found:
        counts = result.measured.instructions
        table.add_row(result.name, *(f"{counts[engine]:,}" for engine in used), f"{counts.total():,}")
    return table


def _values(found: Sequence[Result]) -> Table:
    table = new_table(
        "values", "shape", "relative RMS", "limit", "rounded", "x rounded", "host s", "torch s", "x torch", ""
    )
    for result in found:
        if values := result.values:
            table.add_row(
                result.name,
                f"{values.relative_rms:.2e}",
                f"{values.limit:.2e}",
                f"{values.rounded_relative_rms:.2e}",
                f"{values.relative_rms / values.rounded_relative_rms:.3f}",
                f"{values.kernel_seconds:.2f}",
                f"{values.torch_seconds:.3f}",
                f"{values.kernel_seconds / values.torch_seconds:.1f}",
                "ok" if values.accepted else "OUT OF TOLERANCE",
            )
    return table
