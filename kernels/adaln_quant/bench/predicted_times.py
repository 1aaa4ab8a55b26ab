"""Replaces the stored predicted times of every suite in the source tree.

bazel run //kernels/adaln_quant:update_predicted_times
"""

from __future__ import annotations

import sys

from kernels.adaln_quant.bench import measure
from kernels.adaln_quant.oracle.cases import SUITES
from kernels.adaln_quant.planning.plan import Plan
from tools.bench import predicted, stored

KERNEL = "adaln_quant"


def now_ns() -> dict[str, dict[str, float]]:
    """Predicted time by suite and shape."""
    return {name: {case.name: _predict(case.plan()) for case in members} for name, members in SUITES.items()}


def _predict(planned: Plan) -> float:
    return predicted.timeline(measure.run_without_values(planned).cores, planned.hardware).total_ns


if __name__ == "__main__":
    sys.exit(stored.update(KERNEL, now_ns))
