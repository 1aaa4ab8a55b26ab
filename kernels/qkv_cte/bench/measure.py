"""Runs plans on the simulator and reads off what they moved, issued and computed."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch

import nkisim
from common.row_mx import H_PACK, ROW_TAIL_BYTES
from kernels.qkv_cte.device.kernel import row_mx_projection
from kernels.qkv_cte.oracle.cases import Operands
from kernels.qkv_cte.planning.dims import Dims
from kernels.qkv_cte.planning.plan import HbmBytes, Plan
from nkisim.execution import CoreReport
from nkisim.record import Record, count_by_engine, hbm_traffic

_BIAS_DTYPES = {2: torch.bfloat16, 4: torch.float32}

_PURPOSES = {
    "weight": "weights",
    "packed_hidden": "activations",
    "weight_scales": "channels",
    "bias": "channels",
    "output": "outputs",
}
"""Purpose of each HBM tensor of the kernel."""


@dataclass(frozen=True)
class Measurement:
    """What a simulated launch did, all cores together.

    Attributes:
        hbm: bytes between HBM and the cores, by purpose.
        instructions: instructions issued, by engine.
        host_seconds: how long this machine took to simulate it; not a device time.
        output: [B, S, I] bfloat16, None where no values were computed.
        cores: the simulator's reports.
    """

    hbm: HbmBytes
    instructions: Counter[str]
    host_seconds: float
    output: torch.Tensor | None
    cores: tuple[CoreReport, ...]


def without_values(dims: Dims) -> Operands:
    """Operands of the right shapes and dtypes that hold no data."""
    bias = None
    if dims.bias_bytes:
        bias = torch.empty(1, dims.width, dtype=_BIAS_DTYPES[dims.bias_bytes], device="meta")
    rows = (dims.batch, dims.seqlen, dims.hidden + ROW_TAIL_BYTES)
    return Operands(
        packed_hidden=torch.empty(rows, dtype=torch.float8_e4m3fn, device="meta"),
        weight=torch.empty(dims.hidden // H_PACK, dims.width, H_PACK, dtype=torch.float8_e4m3fn, device="meta"),
        weight_scales=torch.empty(1, dims.width, dtype=torch.float32, device="meta"),
        bias=bias,
    )


def run(plan: Plan, operands: Operands | None = None) -> Measurement:
    """Simulates a plan.

    Args:
        plan: what to run.
        operands: with values, of the plan's sizes; None records the same instructions and computes nothing.
    """
    given = operands or without_values(plan.dims)
    options = nkisim.Options(target=plan.hardware.name, numerics=operands is not None)
    start = time.perf_counter()
    finished = nkisim.run(row_mx_projection[plan.dims.cores], *given.tensors, plan.config, options=options)
    host_seconds = time.perf_counter() - start
    streams = [core.stream for core in finished.cores]
    instructions: Counter[str] = Counter()
    for stream in streams:
        for engine, calls in count_by_engine(stream).items():
            instructions[engine] += calls.total()
    hbm = add_hbm(_hbm_bytes(stream) for stream in streams)
    return Measurement(hbm, instructions, host_seconds, finished.outputs, finished.cores)


def add_hbm(parts: Iterable[HbmBytes]) -> HbmBytes:
    """Sums by purpose."""
    sums = Counter[str]()
    for part in parts:
        sums.update(dataclasses.asdict(part))
    return HbmBytes(**{field.name: sums[field.name] for field in dataclasses.fields(HbmBytes)})


def _hbm_bytes(stream: Iterable[Record]) -> HbmBytes:
    moved: Counter[str] = Counter()
    for tensor, traffic in hbm_traffic(stream).items():
        moved[_PURPOSES[tensor]] += traffic.read_bytes + traffic.written_bytes
    return HbmBytes(moved["weights"], moved["activations"], moved["channels"], moved["outputs"])
