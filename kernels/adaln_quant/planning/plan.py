"""The plan of a call: memory maps and HBM traffic, exact to the byte."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from common.budget import BudgetError, MemoryMap, SbufLedger
from common.checks import require_type
from common.hardware import Hardware
from kernels.adaln_quant.device.config import (
    INVERSE_DEVIATION,
    INVERSE_SCALE,
    MAX_DEPTH,
    MODULATION_BUFFERS,
    QUADRANT,
    ROWS_MAX_DEPTH,
    S_TILE,
    STATISTICS_VALUES,
    AdalnQuantConfig,
)
from kernels.adaln_quant.planning.dims import Dims, Modulation

FP32_BYTES, BF16_BYTES = 4, 2
ROW_TAIL_BYTES = 4


@dataclass(frozen=True)
class HbmBytes:
    """Bytes between HBM and the cores of a launch, by purpose.

    Attributes:
        rows: x, read.
        modulation: scale and shift, read; those of a batch four times by each core.
        outputs: written.
    """

    rows: int
    modulation: int
    outputs: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(dataclasses.astuple(self))


@dataclass(frozen=True)
class Plan:
    """How a call runs.

    Attributes:
        dims, hardware: what it was made for.
        eps: added to the variance.
        depth: S-tiles under way at once.
        sbuf: every allocation of a core; PSUM is not used.
        hbm: bytes moved by all cores.
        minimum: bytes that no kernel avoids: each core reads each batch's vectors once.
    """

    dims: Dims
    hardware: Hardware
    eps: float
    depth: int
    sbuf: MemoryMap
    hbm: HbmBytes
    minimum: HbmBytes

    @property
    def config(self) -> AdalnQuantConfig:
        """The plan as the kernels take it."""
        dims = self.dims
        return AdalnQuantConfig(
            sections=dims.sections,
            section_tokens=dims.section_tokens,
            tokens_per_core=dims.section_tokens // dims.cores,
            hidden=dims.hidden,
            depth=self.depth,
            eps=self.eps,
            addresses={a.name: a.address_bytes for a in self.sbuf.allocations},
        )

    def __str__(self) -> str:
        dims = self.dims
        lines = [
            f"[{dims.tokens // dims.cores} tokens x {dims.hidden}] per core of {self.hardware.name}, "
            f"{dims.cores} cores, {dims.sections} sections of {dims.section_s_tiles} S-tiles, "
            f"modulation {dims.modulation.value}, {'packed rows' if dims.quantised else 'bfloat16'} out, "
            f"{self.depth} S-tiles under way",
            "",
            str(self.sbuf),
        ]
        return "\n".join(lines)


def make(dims: Dims, hardware: Hardware, eps: float = 1e-6) -> Plan:
    """Plans a call.

    Args:
        dims: its sizes.
        hardware: the target.
        eps: added to the variance.

    Raises:
        TypeError: `dims` or `hardware` is none.
        ValueError: quantised rows on a target without float8_e4m3fn.
        BudgetError: rows are too wide for SBUF.
    """
    require_type("dims", dims, Dims)
    require_type("hardware", hardware, Hardware)
    if dims.quantised and not hardware.supports_mx:
        raise ValueError(
            f"target is {hardware.name!r}; accepted with quantised rows: 'trn3' (trn2 has no float8_e4m3fn)"
        )
    depth, sbuf = _deepest(dims, hardware)
    quadrants = S_TILE // QUADRANT
    return Plan(dims, hardware, eps, depth, sbuf, _hbm_bytes(dims, quadrants), _hbm_bytes(dims, vector_reads=1))


def _deepest(dims: Dims, hardware: Hardware) -> tuple[int, MemoryMap]:
    """As many S-tiles under way as there are, as help, and as fit.

    Raises:
        BudgetError: not even one fits.
    """
    most = ROWS_MAX_DEPTH if dims.modulation is Modulation.none else MAX_DEPTH
    depth = min(most, dims.s_tiles)
    while True:
        try:
            return depth, _sbuf_map(dims, hardware, depth)
        except BudgetError:
            if depth == 1:
                raise
            depth -= 1


def _sbuf_map(dims: Dims, hardware: Hardware, depth: int) -> MemoryMap:
    ledger = SbufLedger(hardware)
    if dims.modulation is not Modulation.none:
        ledger.allocate("eps", FP32_BYTES)
    for name, size, count in _buffers(dims, depth):
        for index in range(count):
            ledger.allocate(f"{name}_{index}", size)
    return ledger.freeze()


def _buffers(dims: Dims, depth: int) -> list[tuple[str, int, int]]:
    """Name, bytes per partition and number of all buffers that rotate."""
    buffers = [("rows", dims.input_bytes * dims.hidden, depth)]
    if dims.modulation is Modulation.none:
        buffers.append(("folded", dims.input_bytes * dims.hidden // 2, depth))
    else:
        vectors = min(MODULATION_BUFFERS, dims.sections) if dims.modulation is Modulation.batch else depth
        buffers.append(("gain", FP32_BYTES * dims.hidden, vectors))
        buffers.append(("shift", dims.modulation_bytes * dims.hidden, vectors))
        buffers.append(("statistics", FP32_BYTES * STATISTICS_VALUES * dims.statistics_chunks, depth))
        buffers.append(("moments", FP32_BYTES * (INVERSE_DEVIATION + 1), depth))
        buffers.append(("work", FP32_BYTES * dims.hidden, depth))
    if dims.quantised:
        buffers.append(("scaling", FP32_BYTES * (INVERSE_SCALE + 1), depth))
        buffers.append(("packed", dims.hidden + ROW_TAIL_BYTES, depth))
    else:
        buffers.append(("finished", BF16_BYTES * dims.hidden, depth))
    return buffers


def _hbm_bytes(dims: Dims, vector_reads: int) -> HbmBytes:
    """Traffic of all cores, each of which reads a batch's vectors `vector_reads` times."""
    vectors = {
        Modulation.none: 0,
        Modulation.batch: 2 * dims.batch * dims.cores * vector_reads,
        Modulation.token: 2 * dims.tokens,
    }
    row = dims.hidden + ROW_TAIL_BYTES if dims.quantised else BF16_BYTES * dims.hidden
    return HbmBytes(
        rows=dims.tokens * dims.hidden * dims.input_bytes,
        modulation=vectors[dims.modulation] * dims.hidden * dims.modulation_bytes,
        outputs=dims.tokens * row,
    )
