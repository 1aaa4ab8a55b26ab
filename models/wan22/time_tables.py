"""Predicted device times as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.table import Table

from devicetime.timeline import Timeline
from models.wan22.config import WanConfig
from models.wan22.device_time import KernelCall, Sizes, attention_floor_us
from models.wan22.launching import TARGET
from tools.bench.files import whole_file
from tools.timeline_report import report, summary

COLUMNS = ("launch", "kernel", "[B, S, H] -> width", "predicted us", "share")
TEXT_COLUMNS = 3


def block_table(title: str, times_us: Mapping[KernelCall, float]) -> Table:
    """A row for each launch of a step: kernel, sizes, predicted time and its share of the block's."""
    table = Table(title=title)
    for number, heading in enumerate(COLUMNS):
        table.add_column(heading, justify="left" if number < TEXT_COLUMNS else "right")
    for row in _rows(times_us):
        table.add_row(*row)
    return table


def write_reports(folder: Path, title: str, timelines: Mapping[KernelCall, Timeline]) -> None:
    """Writes an HTML report of each launch's timeline, in the order of the block, each with the block's table.

    Raises:
        ValueError: the folder or a file cannot be written.
    """
    rows = tuple(_rows({call: timeline.total_ns / 1e3 for call, timeline in timelines.items()}))
    block = report.Section("Block", (summary.Table(title, COLUMNS, rows, text_columns=TEXT_COLUMNS),))
    for number, (call, timeline) in enumerate(timelines.items()):
        shown = report.Report(f"{call.kernel}, {call.name}", f"{_shape(call)}, {TARGET}", timeline, sections=(block,))
        with whole_file(folder / f"{number:02}_{call.name.replace(' ', '_')}.html") as partial:
            partial.write_text(report.html(shown))


def totals(config: WanConfig, sizes: Sizes, times_us: Mapping[KernelCall, float]) -> Iterator[str]:
    """Lines on a block, on each kernel's share, and on all blocks."""
    block_us = _block_us(times_us)
    mesh = sizes.mesh
    yield f"block: {block_us:,.1f} us of kernels per step (predicted, simulated)"
    for kernel in dict.fromkeys(call.kernel for call in times_us):
        part_us = sum(time for call, time in times_us.items() if call.kernel == kernel and not call.once)
        yield f"  {kernel}: {part_us:,.1f} us, {part_us / block_us:.1%}"
    floor_us = attention_floor_us(config, sizes)
    yield f"  not in it: attention (torch here), at the Tensor Engine's bf16 peak at least {floor_us:,.1f} us"
    step_ms, floor_ms = (config.num_layers * us / 1e3 for us in (block_us, floor_us))
    once_ms = config.num_layers * sum(time for call, time in times_us.items() if call.once) / 1e3
    yield f"model: {config.num_layers} layers, TP {mesh.tp} x CP {mesh.cp}, {sizes.tokens:,} tokens, one expert:"
    yield f"  {step_ms:,.2f} ms of kernels per step, and {once_ms:,.2f} ms for the text, once per generation"
    yield f"  not in it: attention, at least {floor_ms:,.2f} ms"


def _rows(times_us: Mapping[KernelCall, float]) -> Iterator[tuple[str, ...]]:
    total = _block_us(times_us)
    for call, time_us in times_us.items():
        share = "once" if call.once else f"{time_us / total:.1%}"
        yield call.name, call.kernel, _shape(call), f"{time_us:,.1f}", share


def _shape(call: KernelCall) -> str:
    batch, tokens, hidden, width = call.shape
    return f"[{batch}, {tokens}, {hidden}] -> {width}"


def _block_us(times_us: Mapping[KernelCall, float]) -> float:
    return sum(time for call, time in times_us.items() if not call.once)
