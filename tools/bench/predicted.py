"""Predicted times of shapes: what benches print, write as JSON, compare and keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from common.hardware import Hardware
from devicetime import predict
from devicetime.predict import Prediction
from devicetime.timeline import Timeline
from nkisim.execution import CoreReport, Run
from tools.bench.tables import new_table
from tools.timeline_report import roofline, summary
from tools.timeline_report.roofline import Point

NOTE = (
    "Predicted by the device-time model; no Trainium was used. Limit: what takes longer, the matmuls at the Tensor "
    "Engine's peak rate or the HBM bytes at the cores' share of the bandwidth. Share: that time over the predicted "
    "time. PE busy: share of the time that the Tensor Engine is busy. x: relative to this plan."
)


@dataclass(frozen=True)
class Predicted:
    """A shape's predicted time and that of other ways to run it.

    Attributes:
        point: the time against the limits.
        tensor_busy: share of the time that the Tensor Engine is busy, cores averaged.
        others_ns: predicted times of baselines by name; None where one does not fit.
    """

    point: Point
    tensor_busy: float
    others_ns: dict[str, float | None]

    @property
    def ns(self) -> float:
        """Predicted time."""
        return self.point.seconds * 1e9


def prediction(cores: Sequence[CoreReport], hardware: Hardware) -> Prediction:
    """When each instruction of a finished launch would run, and what that was made from."""
    return predict.explain(Run(None, tuple(cores)), hardware)


def timeline(cores: Sequence[CoreReport], hardware: Hardware) -> Timeline:
    """When each instruction of a finished launch would run."""
    return predict.predict(Run(None, tuple(cores)), hardware)


def of(name: str, made: Timeline, others_ns: Mapping[str, float | None]) -> Predicted:
    """What a timeline and the times of other ways come to."""
    busy = summary.busy_share(made, "Tensor")
    return Predicted(roofline.point(name, made), busy, dict(others_ns))


def as_dict(predicted: Predicted) -> dict[str, Any]:
    """For JSON: ns to a tenth, so that what is written is no more exact than the model."""
    return {
        "ns": _tenth(predicted.ns),
        "limit": predicted.point.limit,
        "share_of_limit": round(predicted.point.share_of_limit, 4),
        "tensor_busy": round(predicted.tensor_busy, 4),
        "others_ns": {name: None if ns is None else _tenth(ns) for name, ns in predicted.others_ns.items()},
    }


def table(all_predicted: Sequence[Predicted]) -> Table:
    """One row per shape; a baseline per pair of columns."""
    others = list(dict.fromkeys(name for predicted in all_predicted for name in predicted.others_ns))
    columns = [cell for name in others for cell in (f"{name} µs", "x")]
    made = new_table("predicted time", "shape", "µs", "limit", "share", "PE busy", *columns)
    for predicted in all_predicted:
        cells: list[str] = []
        for name in others:
            ns = predicted.others_ns.get(name)
            cells += ["does not fit", ""] if ns is None else [f"{ns / 1e3:,.1f}", f"{ns / predicted.ns:.2f}"]
        made.add_row(
            predicted.point.name,
            f"{predicted.ns / 1e3:,.1f}",
            predicted.point.limit,
            f"{predicted.point.share_of_limit:.0%}",
            f"{predicted.tensor_busy:.0%}",
            *cells,
        )
    return made


def _tenth(ns: float) -> float:
    return round(ns, 1)
