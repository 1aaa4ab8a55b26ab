"""Replaces the stored predicted times of every suite in the source tree.

bazel run //kernels/mla_decode:update_predicted_times
"""

from __future__ import annotations

import sys

from kernels.mla_decode.bench import measure, shapes
from kernels.mla_decode.planning.plan import Plan
from tools.bench import predicted, stored

KERNEL = "mla_decode"


def now_ns() -> dict[str, dict[str, float]]:
    """Predicted time by suite and shape."""
    return {name: {case.name: _predict(case.plan) for case in members} for name, members in shapes.SUITES.items()}


def _predict(planned: Plan) -> float:
    return predicted.timeline(measure.run_without_values(planned).cores, planned.hardware).total_ns


if __name__ == "__main__":
    sys.exit(stored.update(KERNEL, now_ns))
