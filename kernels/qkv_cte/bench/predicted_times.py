"""Replaces the stored predicted times of every suite in the source tree.

bazel run //kernels/qkv_cte:update_predicted_times
"""

from __future__ import annotations

import sys

from common.hardware import TRN3
from kernels.qkv_cte import cases
from kernels.qkv_cte.bench import measure, shapes
from tools.bench import predicted, stored

KERNEL = "qkv_cte"


def now_ns() -> dict[str, dict[str, float]]:
    """Predicted time by suite and shape."""
    return {name: {case.name: _predict(case) for case in members} for name, members in cases.SUITES.items()}


def _predict(case: cases.Case) -> float:
    planned = shapes.prepare(case, TRN3, values=False).plan
    return predicted.timeline(measure.run(planned).cores, TRN3).total_ns


if __name__ == "__main__":
    sys.exit(stored.update(KERNEL, now_ns))
