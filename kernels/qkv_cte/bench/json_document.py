"""The bench's results as JSON: sizes in bytes, ratios as plain numbers, null where nothing finite was computed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from kernels.qkv_cte.bench.layer import MAX_RELATIVE_RMS, ProjectionResult
from kernels.qkv_cte.bench.shapes import ShapeResult, Values
from kernels.qkv_cte.oracle.compare import MAX_ULPS
from kernels.qkv_cte.planning.plan import HbmBytes, Plan
from tools.bench import comparison, predicted


def document(target: str, shapes: Sequence[ShapeResult], projections: Sequence[ProjectionResult]) -> dict[str, Any]:
    """Everything that a bench run measured."""
    measured: dict[str, Any] = _without_nonfinite(
        {
            "version": comparison.VERSION,
            "kernel": "qkv_cte",
            "target": target,
            "simulated": True,
            "accepted": {"max_ulps": MAX_ULPS, "relative_rms_to_layer": MAX_RELATIVE_RMS},
            "shapes": [_shape(result) for result in shapes],
            "projections": [_projection(result) for result in projections],
        }
    )
    return measured


def _without_nonfinite(value: Any) -> Any:
    """The same with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _without_nonfinite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nonfinite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _shape(result: ShapeResult) -> dict[str, Any]:
    shape = result.shape
    return {
        "name": shape.case.name,
        "sizes": dataclasses.asdict(shape.plan.dims),
        "plan": _plan(shape.plan),
        "hbm_bytes": {
            "plan": _hbm(result.measured.hbm),
            "minimum": _hbm(shape.plan.minimum),
            **{name: None if hbm is None else _hbm(hbm) for name, hbm in result.baseline_hbm.items()},
        },
        "baseline_calls": {
            name: None if calls is None else [_plan(call) | {"width": call.dims.width} for call in calls]
            for name, calls in shape.baselines.items()
        },
        "predicted": predicted.as_dict(result.predicted),
        "instructions": dict(result.measured.instructions),
        "values": None if result.values is None else _values(result.values),
    }


def _projection(result: ProjectionResult) -> dict[str, Any]:
    planned = result.projection.plan
    return {
        "name": result.projection.name,
        "sizes": dataclasses.asdict(planned.dims),
        "plan": _plan(planned),
        "errors": dataclasses.asdict(result.errors),
        "segments": [dataclasses.asdict(segment) | {"accepted": segment.accepted} for segment in result.segments],
        "accepted": result.accepted,
    }


def _plan(planned: Plan) -> dict[str, Any]:
    chosen = planned.schedule
    return {
        "degree": chosen.degree,
        "banks_per_group": chosen.banks_per_group,
        "i_groups": chosen.num_i_groups,
        "s_blocks": len(chosen.blocks),
        "resident_h_tiles": chosen.resident_h_tiles,
        "h_tiles": planned.dims.h_tiles,
        "prefetch": chosen.prefetch,
        "sbuf_used_bytes": planned.sbuf.peak_bytes,
        "sbuf_usable_bytes": planned.sbuf.capacity_bytes,
        "policy": planned.policy,
        "why": [*chosen.why, *planned.policy_why],
    }


def _values(values: Values) -> dict[str, Any]:
    return {
        "sizes": dataclasses.asdict(values.plan.dims),
        "plan": _plan(values.plan),
        "errors": dataclasses.asdict(values.errors),
        "accepted": values.accepted,
    }


def _hbm(moved: HbmBytes) -> dict[str, int]:
    return dataclasses.asdict(moved) | {"total": moved.total}
