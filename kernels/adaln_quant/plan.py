"""The plan of a call: memory maps and HBM traffic, exact to the byte."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from common.budget import MemoryMap, PsumLedger, SbufLedger
from common.hardware import Hardware
from kernels.adaln_quant.config import (
    BROADCAST_BANKS,
    INVERSE_DEVIATION,
    INVERSE_SCALE,
    MODULATION_BUFFERS,
    ROTATING_BUFFERS,
    S_TILE,
    STATISTICS_VALUES,
    AdalnQuantConfig,
)
from kernels.adaln_quant.dims import Dims, Modulation

FP32_BYTES, BF16_BYTES = 4, 2
ROW_TAIL_BYTES = 4


@dataclass(frozen=True)
class HbmBytes:
    """Bytes between HBM and the cores of a launch, by purpose.

    Attributes:
        rows: x, read.
        modulation: scale and shift, read; vectors of a batch by each core.
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
        sbuf, psum: every allocation of a core.
        hbm: bytes moved by all cores; each is needed, so this is the minimum too.
    """

    dims: Dims
    hardware: Hardware
    eps: float
    sbuf: MemoryMap
    psum: MemoryMap
    hbm: HbmBytes

    @property
    def config(self) -> AdalnQuantConfig:
        """The plan as the kernels take it."""
        dims = self.dims
        return AdalnQuantConfig(
            sections=dims.sections,
            section_tokens=dims.section_tokens,
            tokens_per_core=dims.section_tokens // dims.cores,
            hidden=dims.hidden,
            eps=self.eps,
            addresses={a.name: a.address_bytes for a in self.sbuf.allocations},
        )

    def __str__(self) -> str:
        dims = self.dims
        lines = [
            f"[{dims.tokens // dims.cores} tokens x {dims.hidden}] per core of {self.hardware.name}, "
            f"{dims.cores} cores, {dims.sections} sections of {dims.section_s_tiles} S-tiles, "
            f"modulation {dims.modulation.value}, {'packed rows' if dims.quantised else 'bfloat16'} out",
            "",
            str(self.sbuf),
            "",
            str(self.psum),
        ]
        return "\n".join(lines)


def make(dims: Dims, hardware: Hardware, eps: float = 1e-6) -> Plan:
    """Plans a call.

    Args:
        dims: its sizes.
        hardware: the target.
        eps: added to the variance.

    Raises:
        ValueError: quantised rows on a target without float8_e4m3fn.
        BudgetError: rows are too wide for SBUF.
    """
    if dims.quantised and not hardware.supports_mx:
        raise ValueError(
            f"target is {hardware.name!r}; accepted with quantised rows: 'trn3', float8_e4m3fn exists from there on"
        )
    sbuf = SbufLedger(hardware)
    for name, size, count in _buffers(dims):
        for index in range(count):
            sbuf.allocate(f"{name}_{index}", size)
    for name, size in _constants(dims):
        sbuf.allocate(name, size)
    psum = PsumLedger(hardware)
    if dims.modulation is Modulation.batch:
        for bank in range(min(BROADCAST_BANKS, dims.modulation_banks)):
            psum.allocate(f"bank_{bank}")
    return Plan(dims, hardware, eps, sbuf.freeze(), psum.freeze(), _hbm_bytes(dims))


def _buffers(dims: Dims) -> list[tuple[str, int, int]]:
    """Name, bytes per partition and number of all buffers that rotate."""
    tiles = min(ROTATING_BUFFERS, dims.s_tiles)
    buffers = [("rows", dims.input_bytes * dims.hidden, tiles)]
    if dims.modulation is not Modulation.none:
        if dims.input_bytes != FP32_BYTES:
            buffers.append(("work", FP32_BYTES * dims.hidden, tiles))
        per_batch = dims.modulation is Modulation.batch
        vector = (FP32_BYTES if per_batch else dims.modulation_bytes) * dims.hidden
        vectors = min(MODULATION_BUFFERS, dims.sections if per_batch else dims.s_tiles)
        buffers += [("scale", vector, vectors), ("shift", vector, vectors)]
        buffers.append(("statistics", FP32_BYTES * STATISTICS_VALUES * dims.statistics_chunks, tiles))
        buffers.append(("moments", FP32_BYTES * (INVERSE_DEVIATION + 1), tiles))
    if dims.quantised:
        buffers.append(("scaling", FP32_BYTES * (INVERSE_SCALE + 1), tiles))
        buffers.append(("packed", dims.hidden + ROW_TAIL_BYTES, tiles))
    else:
        buffers.append(("output", BF16_BYTES * dims.hidden, tiles))
    return buffers


def _constants(dims: Dims) -> list[tuple[str, int]]:
    """Name and bytes per partition of what exists once."""
    if dims.modulation is Modulation.none:
        return []
    constants = [("eps", FP32_BYTES)]
    if dims.modulation is Modulation.batch:
        constants += [("modulation_vector", FP32_BYTES * dims.hidden), ("ones", FP32_BYTES * S_TILE)]
    return constants


def _hbm_bytes(dims: Dims) -> HbmBytes:
    vectors = {
        Modulation.none: 0,
        Modulation.batch: 2 * dims.batch * dims.cores,
        Modulation.token: 2 * dims.tokens,
    }
    row = dims.hidden + ROW_TAIL_BYTES if dims.quantised else BF16_BYTES * dims.hidden
    return HbmBytes(
        rows=dims.tokens * dims.hidden * dims.input_bytes,
        modulation=vectors[dims.modulation] * dims.hidden * dims.modulation_bytes,
        outputs=dims.tokens * row,
    )
