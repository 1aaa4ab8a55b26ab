"""Replaces the stored predicted times of every suite in the source tree.

bazel run //kernels/qkv_cte:update_predicted_times
"""

from __future__ import annotations

import sys

from common.hardware import TRN3
from kernels.qkv_cte.bench import measure, shapes
from kernels.qkv_cte.oracle import cases
from tools.bench import predicted, stored

KERNEL = "qkv_cte"


def now_ns() -> dict[str, dict[str, float]]:
    """Predicted time by suite and shape; of the Wan2.2 shapes under the search, too."""
    times = {name: {case.name: _predict(case, "seed") for case in members} for name, members in cases.SUITES.items()}
    return times | {"wan22, policy best": {case.name: _predict(case, "best") for case in cases.WAN22}}


def _predict(case: cases.Case, policy: str) -> float:
    planned = shapes.prepare(case, TRN3, values=False, policy=policy).plan
    return predicted.timeline(measure.run(planned).cores, TRN3).total_ns


if __name__ == "__main__":
    sys.exit(stored.update(KERNEL, now_ns))
