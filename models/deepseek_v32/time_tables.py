"""Predicted device times as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from models.deepseek_v32.config import ModelConfig
from models.deepseek_v32.device_time import (
    KernelTime,
    Serving,
    head_floor_us,
    indexer_floor_us,
    mlp_floor_us,
)
from tools.bench.tables import new_table, note


def tables(
    config: ModelConfig, serving: Serving, layer: Sequence[KernelTime], head: Sequence[KernelTime]
) -> Iterator[RenderableType]:
    """A layer's kernels and their shares, then the whole model."""
    yield Text(f"Predicted for {served(serving)}")
    yield layer_table(layer)
    yield model_table(config, serving, layer, head)
    yield note(
        "Predicted: simulated device time of what runs in kernels, one launch after the other. At least: what runs in "
        "torch here, as the time that its weights (and the indexer's keys) take through HBM at full bandwidth; experts "
        "as a batch chooses them evenly at random. No measurement on a device."
    )


def layer_table(layer: Sequence[KernelTime]) -> Table:
    """Time of each kernel of a layer, and its share of all of them."""
    total_us = sum(kernel.us for kernel in layer)
    made = new_table("kernels of a layer", "kernel", "launches", "predicted us", "share")
    for kernel in layer:
        made.add_row(kernel.kernel, str(kernel.launches), f"{kernel.us:,.1f}", f"{kernel.us / total_us:.1%}")
    made.add_row("all", str(sum(kernel.launches for kernel in layer)), f"{total_us:,.1f}", "100.0%")
    return made


def model_table(
    config: ModelConfig, serving: Serving, layer: Sequence[KernelTime], head: Sequence[KernelTime]
) -> Table:
    """All layers of a step: what is predicted, and what the rest takes at least."""
    layers = config.num_hidden_layers
    dense = min(config.first_k_dense_replace, layers)
    layer_us, head_us = (sum(kernel.us for kernel in kernels) for kernels in (layer, head))
    indexer_us = indexer_floor_us(config, serving)
    mlp_us = [mlp_floor_us(config, serving, dense=True), mlp_floor_us(config, serving, dense=False)]
    made = new_table(f"a step of {layers} layers", "part", "times", "predicted ms", "at least ms")
    rows = (
        ("kernels of a layer", layers, layer_us, None),
        ("indexer", layers, None, indexer_us),
        ("dense MLP", dense, None, mlp_us[0]),
        ("experts", layers - dense, None, mlp_us[1]),
        ("head", 1, head_us, head_floor_us(config, serving)),
    )
    totals = [0.0, 0.0]
    for part, times, *us in rows:
        cells = []
        for column, value in enumerate(us):
            totals[column] += times * (value or 0.0)
            cells.append("" if value is None else f"{times * value / 1e3:,.3f}")
        made.add_row(part, str(times), *cells)
    made.add_row("all", "", *(f"{total / 1e3:,.3f}" for total in totals))
    return made


def served(serving: Serving) -> str:
    """Who serves what, in words."""
    cores = "a core" if serving.device.lnc == 1 else f"{serving.device.lnc} cores"
    return (
        f"{serving.batch} sequences of {serving.context:,} positions on one of {serving.ranks} ranks of {cores}, "
        f"{serving.device.target}"
    )
