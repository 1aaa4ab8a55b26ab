"""Costs of DMAs: who makes their descriptors, which DMA engines move their bytes, and for how long."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from devicetime.constants import Constants
from devicetime.cost import GPSIMD, SYNC, Cost, Machine, Transfer
from nkisim.enums import dge_mode, dma_engine, engine
from nkisim.record import Record, is_hbm
from nkisim.storage import IndexedRegion, Region

_UNINDEXED = {"dma_transpose": dge_mode.hwdge, "dma_compute": dge_mode.none}
"""The only mode of an instruction without an index; nki/api/nki/isa."""


def is_dma(record: Record) -> bool:
    """Whether DMA engines carry it out."""
    return record.engine is engine.dma or record.op == "sendrecv"


def cost(record: Record, machine: Machine) -> Cost:
    """Cost of a copy, gather, scatter, transpose or sum by DMA, or of an exchange between cores."""
    constants = machine.constants
    first_engine, engines = _engines(record, machine)
    descriptors, bytes_each = _split(*_descriptors(record), engines, constants)
    each_ns = constants.dma_descriptor_ns + bytes_each / (constants.dma_engine_bytes_per_ns * _rate(record, machine))
    engine_ns = -(-descriptors // engines) * each_ns
    if record.op == "sendrecv" and record.detail[3] is dma_engine.gpsimd_dma:
        engine_ns = record.size_bytes / constants.gpsimd_dma_bytes_per_ns
    hbm_bytes = float(sum(r.size_bytes for r in (*record.reads, *record.writes) if is_hbm(r)))
    moved = Transfer(first_engine, engines, engine_ns, hbm_bytes, constants.dma_static_start_ns)
    mode = _mode(record)
    if mode is dge_mode.swdge:
        return _by_gpsimd(moved, descriptors, each_ns, constants)
    if mode is dge_mode.hwdge:
        hold = constants.hardware_dge_ns
        return Cost(SYNC, hold, hold, None, replace(moved, ready_ns=hold + constants.dma_fetch_ns))
    return Cost(SYNC, constants.dma_trigger_ns, constants.dma_trigger_ns, None, moved)


def _by_gpsimd(moved: Transfer, descriptors: int, each_ns: float, constants: Constants) -> Cost:
    """Descriptors are made engine by engine, as many at a time as a tile of 128 rows has, and fetched as they come."""
    hold = constants.software_dge_ns + descriptors * constants.software_dge_descriptor_ns
    at_a_time = min(descriptors / moved.engines, constants.dma_rows_per_engine)
    stagger = at_a_time * constants.software_dge_descriptor_ns
    ready = constants.software_dge_ns + stagger + constants.dma_fetch_ns
    last = constants.dma_fetch_ns + each_ns
    return Cost(GPSIMD, hold, hold, None, replace(moved, ready_ns=ready, stagger_ns=stagger, tail_ns=last))


def _mode(record: Record) -> dge_mode:
    """Who makes the descriptors. Where the compiler decides, GpSimd does, as in the vendor's profiles.

    Without an index, a transpose is documented for the hardware's generator only, and a sum for static descriptors.
    """
    if record.op in ("dma_copy", "dma_transpose") and record.detail is not dge_mode.unknown:
        return record.detail  # type: ignore[no-any-return]
    if any(type(region) is IndexedRegion for region in (*record.reads, *record.writes)):
        return dge_mode.swdge
    return _UNINDEXED.get(record.op, dge_mode.swdge)


def _descriptors(record: Record) -> tuple[int, float]:
    """How many, and the bytes of each: a descriptor moves a run that is dense on both sides."""
    regions = [*record.writes, *record.reads]
    total = max(region.elements for region in regions)
    if record.op == "dma_transpose":
        run = record.reads[0].shape[-1]
        return max(1, total // run), float(run * record.reads[0].dtype.itemsize)
    run = min(_run(region) for region in regions)
    size = max(region.dtype.itemsize for region in regions)
    return max(1, total // run), float(run * size)


def _split(descriptors: int, bytes_each: float, engines: int, constants: Constants) -> tuple[int, float]:
    """Long runs in HBM are cut so that every engine has a part, of a size that DMAs move well."""
    parts = min(-(-engines // descriptors), max(1, int(bytes_each / constants.dma_part_bytes)))
    return descriptors * parts, bytes_each / parts


def _run(region: Region) -> int:
    """Elements of a dense run: within a partition on-chip, anywhere in HBM."""
    first = 0 if is_hbm(region) else 1
    run = 1
    dims = [(n, s) for n, s in zip(region.shape[first:], region.strides[first:], strict=True) if n > 1]
    for n, stride in reversed(dims):
        if stride != run:
            break
        run *= n
    if type(region) is IndexedRegion and region.chosen_by is not None and is_hbm(region):
        run = min(run, prod(region.shape[1:]))
    return run


def _engines(record: Record, machine: Machine) -> tuple[int, int]:
    """First of the DMA engines that take part, and how many: each has its partitions; all where none are."""
    available, rows = machine.hardware.dma_engines_per_core, machine.constants.dma_rows_per_engine
    on_chip = [region for region in (*record.writes, *record.reads) if not is_hbm(region)]
    if not on_chip:
        return 0, available
    region = on_chip[0]
    first = region.offset * region.dtype.itemsize // region.allocation.row_bytes
    if region.allocation.address:
        first += region.allocation.address[0]
    count = -(-region.shape[0] // rows)
    return (0, available) if count >= available else (first // rows % available, count)


def _rate(record: Record, machine: Machine) -> float:
    """Share of a copy's rate."""
    constants = machine.constants
    if record.op == "dma_compute":
        return constants.dma_compute_rate
    if record.op != "dma_transpose":
        return 1.0
    return constants.dma_transpose_rate if is_hbm(record.reads[0]) else constants.dma_transpose_sbuf_rate
