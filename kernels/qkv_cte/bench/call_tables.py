"""The bench's results for whole calls as tables for people and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType

from kernels.qkv_cte.bench.calls import ENGINES, CallResult
from kernels.qkv_cte.oracle.norm_rope_compare import MAX_ULPS
from kernels.qkv_cte.planning import policy
from tools.bench.tables import new_table, note


def tables(results: Sequence[CallResult]) -> Iterator[RenderableType]:
    """Plan, time, engines and errors."""
    made = new_table("whole calls: plan", "call", "policy", "tokens", "chosen")
    for result in results:
        made.add_row(*_name(result), f"{result.plan.dims.tokens:,}", policy.name_of(result.plan))
    yield made
    for result in results:
        if result.plan.policy_why:
            yield note("\n  ".join([f"{result.call.case.name}:", *result.plan.policy_why]))
    made = new_table("whole calls: time", "call", "us", "of seed", "of naive", "PE in products", *ENGINES, "weights x")
    for result in results:
        made.add_row(
            result.call.case.name,
            f"{result.ns / 1e3:,.1f}",
            f"{result.ns / result.seed_ns:.2f}",
            f"{result.ns / result.naive_ns:.2f}",
            f"{result.products_busy:.1%}",
            *(f"{result.busy[name]:.0%}" for name in ENGINES),
            f"{result.plan.hbm.weights / result.plan.minimum.weights:.2f}",
        )
    yield made
    yield note(
        "Predicted by the device-time model for all ranks of a group, all-reduce included; no Trainium was used. "
        "Seed: the schedule of the kernel's published reference (--policy seed). Naive: the same with all element-wise "
        "work on the Vector Engine. PE in products: share of the time from the first to the last matmul in which the "
        "Tensor Engine is busy; other engines: share of the whole time. Weights: bytes read from HBM over the minimum."
    )
    if any(result.segments for result in results):
        made = new_table("whole calls: values", "call", "segment", "max ulps", "relative RMS", "")
        for result in results:
            for errors in result.segments:
                verdict = "ok" if errors.max_ulps <= MAX_ULPS else "OUT OF TOLERANCE"
                cells = (errors.name, f"{errors.max_ulps:.3f}", f"{errors.relative_rms:.2e}", verdict)
                made.add_row(result.call.case.name, *cells)
        yield made
        yield note(
            f"From the packed operands, against fp64, on at most 258 tokens. Accepted: {MAX_ULPS} bf16 ulps, none "
            f"counted smaller than 2**-22 of the output's terms (see the README)."
        )


def as_dict(result: CallResult) -> dict[str, Any]:
    """For JSON."""
    return {
        "name": result.call.case.name,
        "policy": result.plan.policy,
        "plan": {"chosen": policy.name_of(result.plan), "why": list(result.plan.policy_why)},
        "choice": result.plan.choice.integers(),
        "predicted_ns": round(result.ns, 1),
        "seed_ns": round(result.seed_ns, 1),
        "naive_ns": round(result.naive_ns, 1),
        "tensor_busy_in_products": round(result.products_busy, 4),
        "busy": {name: round(share, 4) for name, share in result.busy.items()},
        "hbm_bytes": dataclasses.asdict(result.plan.hbm),
        "minimum_hbm_bytes": dataclasses.asdict(result.plan.minimum),
        "segments": [dataclasses.asdict(errors) for errors in result.segments],
    }


def _name(result: CallResult) -> tuple[str, str]:
    return result.call.case.name, result.plan.policy
