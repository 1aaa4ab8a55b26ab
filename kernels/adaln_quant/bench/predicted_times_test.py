"""No plan gets slower unnoticed: bazel run //kernels/adaln_quant:update_predicted_times where a change is meant."""

from pathlib import Path

from kernels.adaln_quant.bench import predicted_times
from tools.bench import stored


def test_no_shape_is_slower_than_stored():
    path = Path(__file__).parent / stored.FILE_NAME
    assert stored.problems(path, predicted_times.KERNEL, predicted_times.now_ns()) == []
