"""Runs plans on the simulator without values and reads off what they moved and issued."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

import nkisim
from kernels.adaln_quant.device.kernel import adaln, row_quantise
from kernels.adaln_quant.planning.dims import Modulation
from kernels.adaln_quant.planning.plan import HbmBytes, Plan
from nkisim.execution import CoreReport
from nkisim.record import Record, count_by_engine, hbm_traffic

_DTYPES = {2: torch.bfloat16, 4: torch.float32}


@dataclass(frozen=True)
class Measurement:
    """What a simulated launch did, all cores together.

    Attributes:
        hbm: bytes between HBM and the cores, by purpose.
        instructions: instructions issued, by engine.
        cores: the simulator's reports.
    """

    hbm: HbmBytes
    instructions: Counter[str]
    cores: tuple[CoreReport, ...]


def run_without_values(plan: Plan) -> Measurement:
    """Records the instructions of a plan's kernel on tensors that hold no data."""
    dims, empty = plan.dims, functools.partial(torch.empty, device="meta")
    x = empty(dims.batch, dims.seqlen, dims.hidden, dtype=_DTYPES[dims.input_bytes])
    kernel: Any = row_quantise
    operands: tuple[Any, ...] = (x, plan.config)
    if dims.modulation is not Modulation.none:
        shape = (dims.batch, dims.hidden) if dims.modulation is Modulation.batch else x.shape
        vectors = [empty(*shape, dtype=_DTYPES[dims.modulation_bytes]) for _ in range(2)]
        kernel, operands = adaln, (x, *vectors, plan.config, dims.quantised)
    options = nkisim.Options(target=plan.hardware.name, numerics=False)
    cores = nkisim.run(kernel[dims.cores], *operands, options=options).cores
    instructions: Counter[str] = Counter()
    for core in cores:
        for engine, calls in count_by_engine(core.stream).items():
            instructions[engine] += calls.total()
    return Measurement(_hbm_bytes(record for core in cores for record in core.stream), instructions, cores)


def _hbm_bytes(stream: Iterable[Record]) -> HbmBytes:
    moved = {name: traffic.read_bytes + traffic.written_bytes for name, traffic in hbm_traffic(stream).items()}
    return HbmBytes(
        rows=moved.pop("x"),
        modulation=moved.pop("scale", 0) + moved.pop("shift", 0),
        outputs=moved.pop("output"),
    )
