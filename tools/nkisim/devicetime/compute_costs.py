"""Costs of instructions on the Tensor, Vector, Scalar and GpSimd Engines.

The Vector and Scalar Engines stream the free elements of a partition; all partitions run at once. `Rates` says how
many elements a cycle, from the kinds of operands.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from devicetime.constants import Constants
from devicetime.cost import GPSIMD, SCALAR, SYNC, TENSOR, VECTOR, Cost, Machine
from nkisim.enums import MemoryRegion, engine
from nkisim.record import Record
from nkisim.storage import IndexedRegion, Region

_16_BIT = ("bfloat16", "float16")
_COPIES = ("tensor_copy", "tensor_scalar", "memset")
_PAIRS = ("tensor_tensor", "scalar_tensor_tensor")
_FAST_REDUCTIONS = ("add", "maximum", "max")
_PLAIN_FUNCTIONS = ("copy", "identity", "None")


def cost(record: Record, machine: Machine) -> Cost:
    """Cost of an instruction that moves nothing by DMA."""
    if record.op == "core_barrier":
        barrier_ns = machine.constants.core_barrier_ns
        return Cost(_NUMBER[record.engine], barrier_ns, barrier_ns)
    return _BY_ENGINE[record.engine](record, machine)


def free_elements(region: Region) -> int:
    """Elements per partition."""
    return prod(region.shape[1:])


def _tensor(record: Record, machine: Machine) -> Cost:
    """`max(min(64, stationary columns), moving columns)` cycles, as often as the type needs passes.

    Loading the next stationary runs behind the matmul before it, at up to four columns a cycle.
    """
    constants, clock = machine.constants, machine.hardware.tensor_clock_ghz
    if record.op == "nc_transpose" or (record.op == "nc_matmul" and record.detail[0] == "transpose"):
        data = record.reads[0]
        stationary, moving = free_elements(data), data.shape[0]
        passes = _passes(data, constants)
        if passes > 1:
            passes /= constants.tensor_fp32_transpose_speedup
        passes /= constants.tensor_transpose_overlap
    else:
        halves = 2 if record.op == "nc_matmul" and record.detail[0] == "double_row" else 1
        stationary, moving = free_elements(record.reads[0]) // halves, free_elements(record.reads[1]) // halves
        passes = max(_passes(record.reads[0], constants), _passes(record.reads[1], constants))
    multiply = max(min(constants.tensor_interval_min_cycles, stationary), moving)
    load = stationary / constants.tensor_load_columns_per_cycle
    instructions = constants.tensor_fp32_instructions if passes > 1 else 1
    hold = passes * max(multiply, load) / clock + instructions * constants.tensor_issue_ns
    array = machine.hardware.matmul_contraction_max * machine.hardware.matmul_stationary_free_max
    activity = passes * moving / clock / hold * record.reads[0].shape[0] * stationary / array
    return Cost(TENSOR, hold, hold + constants.tensor_fill_ns, activity=activity)


def _passes(region: Region, constants: Constants) -> float:
    return constants.tensor_fp32_passes if str(region.dtype) == "float32" else 1


def _vector(record: Record, machine: Machine) -> Cost:
    constants, clock = machine.constants, machine.hardware.vector_clock_ghz
    cycles = _vector_cycles(record, constants)
    if _is_dynamic(record):
        cycles = max(cycles, constants.dynamic_address_cycles)
    hold = max(cycles + constants.vector_overhead_cycles, constants.engine_interval_min_cycles)
    return Cost(VECTOR, hold / clock, (cycles + constants.vector_latency_cycles) / clock)


def _vector_cycles(record: Record, constants: Constants) -> float:
    op, operands = record.op, (*record.writes, *record.reads)
    elements = max(free_elements(region) for region in operands)
    if op in _COPIES:
        return elements / _copy_rate(operands, constants)
    if op in _PAIRS:
        return _pair_cycles(record, elements, constants)
    if op == "tensor_copy_predicated":
        apart = _in_psum(record.reads[0]) != _in_psum(record.reads[-1])
        return elements if apart else elements * constants.vector_predicated_cycles
    if op == "tensor_reduce":
        fast = _all_16_bit(operands) and record.detail in _FAST_REDUCTIONS
        return elements / constants.vector_reduce_16_bit_speedup if fast else elements
    return elements * _CYCLES.get(op, _one)(constants)


def _copy_rate(operands: tuple[Region, ...], constants: Constants) -> float:
    """Elements a cycle: the data path's width, more for 16 bits; less where PSUM or steps are in the way."""
    tiles = [region for region in operands if free_elements(region) > 1] or list(operands)
    narrow = _all_16_bit(tiles)
    rate = constants.vector_lane_elements * (constants.vector_16_bit_speedup if narrow else 1)
    detour = any(_in_psum(region) for region in tiles) or (narrow and not all(_dense(region) for region in tiles))
    return rate / constants.vector_detour_slowdown if detour else rate


def _pair_cycles(record: Record, elements: int, constants: Constants) -> float:
    """Two inputs from SBUF take turns on the data path; where one comes from PSUM they come together."""
    inputs = [region for region in record.reads if free_elements(region) > 1] or list(record.reads)
    if any(_in_psum(region) for region in inputs) or len(inputs) < 2:
        return elements
    narrow = _all_16_bit((*inputs, *record.writes))
    rate = constants.vector_lane_elements * (constants.vector_16_bit_speedup if narrow else 1)
    return len(inputs) * elements / rate


def _scalar(record: Record, machine: Machine) -> Cost:
    constants, clock = machine.constants, machine.hardware.scalar_clock_ghz
    operands = (*record.writes, *record.reads)
    elements = max(free_elements(region) for region in operands)
    copies = record.op in _COPIES
    rate = constants.scalar_lane_elements_16_bit if copies and _all_16_bit(operands) else 1.0
    cycles = elements / rate
    if record.op == "activation_reduce":
        cycles += constants.engine_interval_min_cycles
    if _is_dynamic(record):
        cycles = max(cycles, constants.dynamic_address_cycles)
    hold = max(cycles + constants.scalar_overhead_cycles, constants.engine_interval_min_cycles)
    return Cost(SCALAR, hold / clock, max(cycles / clock + constants.scalar_latency_ns, hold / clock), _table(record))


def _table(record: Record) -> str | None:
    if not record.op.startswith("activat"):
        return None
    function = record.detail[0] if isinstance(record.detail, tuple) else record.detail
    name = str(getattr(function, "name", function))
    return None if name in _PLAIN_FUNCTIONS else name


def _gpsimd(record: Record, machine: Machine) -> Cost:
    constants, clock = machine.constants, machine.hardware.gpsimd_clock_ghz
    if record.op == "topk":
        cycles = constants.gpsimd_topk_cycles * int(record.detail) + free_elements(record.writes[0])
    else:
        operands = (*record.writes, *record.reads)
        cycles = constants.gpsimd_overhead_cycles + max((free_elements(region) for region in operands), default=1)
    return Cost(GPSIMD, cycles / clock, cycles / clock)


def _sync(record: Record, machine: Machine) -> Cost:
    """What a sequencer does alone, and a rank that sends and receives nothing: about a trigger."""
    del record
    return Cost(SYNC, machine.constants.dma_trigger_ns, machine.constants.dma_trigger_ns)


def _in_psum(region: Region) -> bool:
    return region.allocation.buffer is MemoryRegion.psum


def _all_16_bit(regions: tuple[Region, ...] | list[Region]) -> bool:
    return all(str(region.dtype) in _16_BIT for region in regions)


def _dense(region: Region) -> bool:
    """Whether the innermost free dimension that has more than one element is contiguous."""
    inner = [stride for n, stride in zip(region.shape[1:], region.strides[1:], strict=True) if n > 1]
    return not inner or inner[-1] == 1


def _is_dynamic(record: Record) -> bool:
    return any(type(region) is IndexedRegion for region in (*record.writes, *record.reads))


def _one(_: Constants) -> float:
    return 1.0


_CYCLES: dict[str, Callable[[Constants], float]] = {
    "tensor_tensor_scan": lambda constants: constants.vector_scan_cycles,
    "reciprocal": lambda constants: constants.vector_reciprocal_cycles,
    "bn_aggr": lambda constants: constants.vector_bn_aggr_cycles,
    "quantize_mx": lambda constants: 1 / constants.vector_quadruple_elements,
    "exponential": lambda constants: 1 / constants.vector_quadruple_elements,
}
"""Cycles per element of instructions on the Vector Engine that have one input and are not listed above."""

_BY_ENGINE = {
    engine.tensor: _tensor,
    engine.vector: _vector,
    engine.scalar: _scalar,
    engine.gpsimd: _gpsimd,
    engine.sync: _sync,
    engine.dma: _sync,
}
_NUMBER = {
    engine.tensor: TENSOR,
    engine.vector: VECTOR,
    engine.scalar: SCALAR,
    engine.gpsimd: GPSIMD,
    engine.sync: SYNC,
}
