"""Measures what simulating the projection costs on this machine, as ratios, in one run.

With values: S = 1024, H = 5120, I = 3840 on one core, against torch.matmul in fp32 at the same shape and thread count,
and peak memory against the fp32 size of the three tensors. Without values: the largest Wan2.2 shape against that run.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch

from common.hardware import TRN3
from common.row_mx import pack_rows, pack_weight
from kernels.qkv_cte.bench import measure
from kernels.qkv_cte.oracle import cases
from kernels.qkv_cte.oracle.cases import Operands
from kernels.qkv_cte.planning import plan
from kernels.qkv_cte.planning.dims import Dims
from tools.bench.command_line import OneLineParser
from tools.bench.progress import progress

DIMS = Dims(batch=1, seqlen=1024, hidden=5120, width=3840)
TENSORS_FP32_BYTES = 4 * (DIMS.tokens * (DIMS.hidden + DIMS.width) + DIMS.hidden * DIMS.width)
ROUNDS = 5
MIB = 2**20

_EXAMPLES = """example:
  bazel run //kernels/qkv_cte:figures
"""

T = TypeVar("T")


@dataclass(frozen=True)
class Seconds:
    """Fastest of the rounds; they alternate, so that a busy machine slows all three alike."""

    with_values: float
    matmul: float
    without_values: float
    threads: int


@dataclass(frozen=True)
class PeakBytes:
    """Peak resident memory of a process that does one run with values.

    Attributes:
        imported: after the imports and a run of one token, before the operands exist.
        finished: at the end.
    """

    imported: int
    finished: int


def main() -> int:
    """Runs the command; returns its exit status."""
    OneLineParser("figures", __doc__, _EXAMPLES).parse_args()
    with progress(2) as announce:
        announce("peak memory")
        peak = _alone(measure_peak)
        announce(f"time, fastest of {ROUNDS}")
        seconds = _alone(measure_seconds)
    run = peak.finished - peak.imported
    rows = (
        ("with values / torch.matmul fp32", seconds.with_values, seconds.matmul, "s", 2.0),
        ("peak memory of the run / tensors in fp32", run / MIB, TENSORS_FP32_BYTES / MIB, "MiB", 4.0),
        ("the same with interpreter and imports", peak.finished / MIB, TENSORS_FP32_BYTES / MIB, "MiB", 4.0),
        ("largest Wan2.2 shape without values / with values", seconds.without_values, seconds.with_values, "s", 0.1),
    )
    print(f"S={DIMS.seqlen} H={DIMS.hidden} I={DIMS.width}, {seconds.threads} threads\n")
    for name, measured, reference, unit, wanted in rows:
        print(
            f"{name:<50}{measured:>9.3f} / {reference:>8.3f} {unit:<4} = {measured / reference:>6.3f}"
            f"   wanted: at most {wanted}"
        )
    return 0


def measure_peak() -> PeakBytes:
    """Runs once with values and reports the process's peaks; call it in a process of its own."""
    one_token = Dims(batch=1, seqlen=1, hidden=128, width=128)
    measure.run(plan.make(one_token, TRN3), random_operands(one_token))
    imported = _peak_bytes()
    measure.run(plan.make(DIMS, TRN3), random_operands(DIMS))
    return PeakBytes(imported, _peak_bytes())


def measure_seconds() -> Seconds:
    """Times the three computations in turn."""
    planned, operands = plan.make(DIMS, TRN3), random_operands(DIMS)
    a, b = torch.randn(DIMS.tokens, DIMS.hidden), torch.randn(DIMS.hidden, DIMS.width)
    largest = max(cases.WAN22, key=lambda case: case.dims.tokens * case.hidden * case.width).plan
    rounds = [
        (
            _seconds(lambda: measure.run(planned, operands)),
            _seconds(lambda: torch.matmul(a, b)),
            _seconds(lambda: measure.run(largest)),
        )
        for _ in range(ROUNDS)
    ]
    with_values, matmul, without_values = (min(times) for times in zip(*rounds, strict=True))
    return Seconds(with_values, matmul, without_values, torch.get_num_threads())


def random_operands(dims: Dims) -> Operands:
    """Operands made in fp8, so that no fp32 copy of them adds to the peak."""
    rows = pack_rows(_random_codes(dims.batch, dims.seqlen, dims.hidden), torch.ones(dims.batch, dims.seqlen, 1))
    weight = pack_weight(_random_codes(dims.hidden, dims.width))
    return Operands(rows, weight, torch.ones(1, dims.width), torch.zeros(1, dims.width))


def _random_codes(*shape: int) -> torch.Tensor:
    # An even last bit leaves out the two codes of NaN, 0x7f and 0xff.
    return (torch.randint(0, 256, shape, dtype=torch.uint8) & 0xFE).view(torch.float8_e4m3fn)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _peak_bytes() -> int:
    """Peak of this process. Linux starts it at the parent's peak, which here is no more than the imports'."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _alone(work: Callable[[], T]) -> T:
    """Calls `work` in a fresh process."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work).result()


if __name__ == "__main__":
    sys.exit(main())
