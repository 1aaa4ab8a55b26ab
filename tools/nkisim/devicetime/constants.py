"""Every number of the device-time model that `common.hardware` does not hold: value, unit, mark and source.

Marks: documented (a page of the vendor states it), calibrated (fitted to published measurements, which are named),
assumed (neither; the note says why this value). Nothing is fitted to the ablations of the MLA decode kernel.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import Any

from common.hardware import Hardware

_TRN1 = "guides/architecture/trainium_inferentia2_arch.rst"
_TRN2 = "guides/architecture/trainium2_arch.rst"
_TRN3 = "guides/architecture/trainium3_arch.rst"
_ISA = "older edition of nki/isa, estimated instruction costs"
_DMA = "get-started/about/nki-dma-overview.rst"
_ZOOM = "guides/tutorials/kernel-optimization.rst, v5-zoom.png"


class Mark(enum.Enum):
    """Where a number comes from."""

    documented = "documented"
    calibrated = "calibrated"
    assumed = "assumed"


def _constant(unit: str, mark: Mark, source: str, note: str = "") -> Any:
    return dataclasses.field(metadata={"unit": unit, "mark": mark, "source": source, "note": note})


@dataclass(frozen=True, kw_only=True)
class Constants:
    """One target's numbers. `describe` gives a field's unit, mark and source; clocks are in `common.hardware`."""

    tensor_interval_min_cycles: float = _constant(
        "PE cycles", Mark.documented, f"{_ISA}, nc_matmul: max(min(64, N_stationary), N_moving)"
    )
    tensor_fill_ns: float = _constant(
        "ns",
        Mark.calibrated,
        f"{_ZOOM}: a matmul's bar is 600 ns, its issue interval 429 ns",
        "The performance guide's profile has about 130 ns beyond the 128 columns of a matmul, generation unstated.",
    )
    tensor_issue_ns: float = _constant(
        "ns per instruction",
        Mark.calibrated,
        "guides/tutorials/kernel-optimization.rst, v5-pe.png: 429.7 ns apart; 2 x 512 cycles are 426.7 ns",
    )
    tensor_fp32_passes: float = _constant("passes", Mark.documented, f"{_ISA}, nc_matmul: fp32 is 4x")
    tensor_fp32_instructions: int = _constant(
        "instructions",
        Mark.documented,
        "guides/tutorials/kernel-optimization.rst, v5-pe.png: 65,536 instructions for 32,768 fp32 matmuls",
    )
    tensor_fp32_transpose_speedup: float = _constant(
        "times", Mark.documented, f"{_TRN2}, Built-in Transpose Support: 2x in transpose mode"
    )
    tensor_load_columns_per_cycle: float = _constant(
        "columns/cycle",
        Mark.documented,
        f"{_TRN1}, Fast LoadStationary: up to 4x; hidden behind the matmul before",
    )
    tensor_transpose_overlap: float = _constant(
        "times",
        Mark.documented,
        f"{_TRN3}, Background Transpose: close to double on long chains; trn2 has none",
        "Taken as 2 for every transpose on trn3.",
    )
    tensor_throttled_rate: float = _constant(
        "of full rate", Mark.documented, "tools/neuron-explorer/overview-summary-page.rst: starts at roughly 50 %"
    )
    tensor_throttle_window_ns: float = _constant(
        "ns",
        Mark.documented,
        "tools/neuron-explorer/overview-summary-page.rst: full after about 3 us of work; back below 50 % over 3 us",
        "Utilization is read as the share of the array's multipliers at work, since that page counts it in FLOPs.",
    )
    tensor_full_share: float = _constant(
        "of the window",
        Mark.assumed,
        "the page says only that the ramp ends at full rate; matmuls back to back work 95 to 99 % of the time",
    )
    vector_lane_elements: float = _constant(
        "elements/cycle/lane",
        Mark.documented,
        f"{_TRN2}, {_TRN3}: data path of 256 elements a cycle, 512 for 16 bits",
        "For copies and tensor_scalar. Older cost formulas have half; v5-zoom.png has 512 fp32 columns in 267 ns.",
    )
    vector_overhead_cycles: float = _constant(
        "cycles",
        Mark.calibrated,
        f"{_ZOOM}: interval between independent instructions is N / rate + 68 cycles",
        f"{_TRN1} has about 60 cycles of access overhead.",
    )
    vector_latency_cycles: float = _constant(
        "cycles", Mark.calibrated, f"{_ZOOM}: an instruction's bar is N / rate + 150 cycles", "nki-library has 144."
    )
    vector_16_bit_speedup: float = _constant(
        "times", Mark.documented, f"{_TRN2}, Vector Engine Performance Mode: where all elements have 16 bits"
    )
    vector_detour_slowdown: float = _constant(
        "times", Mark.documented, f"{_TRN2}, Vector Engine Performance Mode: an operand in PSUM, or 16 bits with steps"
    )
    vector_predicated_cycles: float = _constant(
        "cycles/element", Mark.documented, f"{_ISA}, tensor_copy_predicated: 1 if source and predicate lie apart"
    )
    vector_scan_cycles: float = _constant("cycles/element", Mark.documented, f"{_ISA}, tensor_tensor_scan")
    vector_reciprocal_cycles: float = _constant("cycles/element", Mark.documented, f"{_ISA}, reciprocal")
    vector_bn_aggr_cycles: float = _constant("cycles/element", Mark.documented, f"{_ISA}, bn_aggr: 13 (N / 3)")
    vector_reduce_16_bit_speedup: float = _constant(
        "times", Mark.documented, f"{_ISA}, tensor_reduce: N / 2 for add and max of 16 bits"
    )
    vector_quadruple_elements: float = _constant(
        "elements/cycle", Mark.documented, f"{_TRN3}: quantize_mx and exponential, four a cycle"
    )
    engine_interval_min_cycles: float = _constant("cycles", Mark.documented, f"{_ISA}: MIN_II is roughly 64 cycles")
    scalar_latency_ns: float = _constant(
        "ns", Mark.calibrated, f"{_DMA}, nki-dma-intro-3.png and -5.png: exp takes N / 1.2 + 293 to 296 ns"
    )
    scalar_overhead_cycles: float = _constant(
        "cycles", Mark.assumed, "as the Vector Engine's; no measurement of independent instructions is published"
    )
    scalar_table_load_ns: float = _constant(
        "ns", Mark.calibrated, f"{_DMA}, nki-dma-intro-3.png and -5.png: 1285 and 1326 ns before the first exp"
    )
    scalar_lane_elements_16_bit: float = _constant(
        "elements/cycle/lane",
        Mark.documented,
        f"{_TRN3}: 256 elements a cycle for 16 bits, in copies and tensor_scalar; trn2 128",
    )
    gpsimd_overhead_cycles: float = _constant("cycles", Mark.documented, f"{_ISA}: GPSIMD_START, 150 + N")
    gpsimd_topk_cycles: float = _constant(
        "cycles/element", Mark.documented, "nki/api/nki/isa, topk: 4n + K, n of the values of 16 partitions"
    )
    dynamic_address_cycles: float = _constant("cycles", Mark.documented, f"{_ISA}: tensor_copy_dynamic_*, about 600")
    semaphore_ns: float = _constant(
        "ns",
        Mark.assumed,
        "no official figure; third-party quotes have 268 ns, of an engine waiting for a semaphore",
    )
    dma_engine_bytes_per_ns: float = _constant(
        "B/ns",
        Mark.calibrated,
        "guides/tutorials/kernel-optimization.rst, packet times of v2 to v5: 8.3 ns + bytes / 24.2 per descriptor",
        f"{_DMA} has 27.2 (trn2) and 38.4 (trn3) in its text, 23 and 33 in its table; trn3 is scaled by the table.",
    )
    dma_descriptor_ns: float = _constant(
        "ns per descriptor and engine", Mark.calibrated, "guides/tutorials/kernel-optimization.rst, packet times"
    )
    dma_fetch_ns: float = _constant(
        "ns",
        Mark.calibrated,
        f"{_DMA}, nki-dma-intro-6.png: 739 ns from trigger to first byte, less the first engine's descriptors",
        "The bandwidth guide has about 1300 ns from a semaphore to the start.",
    )
    dma_static_start_ns: float = _constant(
        "ns", Mark.calibrated, f"{_DMA}, nki-dma-intro-3.png: 1003 ns from trigger to first byte, static descriptors"
    )
    dma_completion_ns: float = _constant(
        "ns", Mark.calibrated, f"{_DMA}, nki-dma-intro-3.png, -5.png: 357 and 293 ns from the last byte to a consumer"
    )
    dma_trigger_ns: float = _constant(
        "ns", Mark.calibrated, f"{_DMA}, nki-dma-intro-6.png: the trigger instruction takes 8 ns"
    )
    software_dge_ns: float = _constant(
        "ns per DMA",
        Mark.calibrated,
        "guides/tutorials/kernel-optimization.rst, v2: 65,536 DMAs of 128 descriptors in 39.89 ms, 608 ns each",
        "What the staggered starts of the engines leave of it; the page does not prove that descriptors are its limit.",
    )
    software_dge_descriptor_ns: float = _constant(
        "ns per descriptor",
        Mark.calibrated,
        f"{_DMA}, nki-dma-intro-7.png: 468 ns from the first engine's start to the last one's end, 8 descriptors each",
        "That page states 97 ns for one of the engines and shows 80 to 165 for others; the packet times give 151.",
    )
    hardware_dge_ns: float = _constant(
        "ns per DMA", Mark.documented, "deep-dives/nki-dge.rst and trn2 guide, DGE: approximately 600 ns"
    )
    dma_rows_per_engine: int = _constant("partitions", Mark.documented, f"{_DMA}, Example 1: 8 for each engine")
    dma_part_bytes: int = _constant(
        "bytes",
        Mark.assumed,
        "no run of HBM is cut smaller to occupy more engines; below it DMAs are documented as poor",
    )
    dma_queues: int = _constant("queues", Mark.documented, f"{_DMA}, DMA Queues: 16")
    dma_transpose_rate: float = _constant(
        "of a copy's rate", Mark.documented, f"{_TRN2}, DMA Transpose: up to 90 % from HBM"
    )
    dma_transpose_sbuf_rate: float = _constant(
        "of a copy's rate", Mark.documented, f"{_TRN2}, SBUF2SBUF DMA transpose: up to 50 %"
    )
    dma_compute_rate: float = _constant(
        "of a copy's rate", Mark.documented, f"{_TRN3}, SBUF Read-Add-Write: 50 % before NeuronCore-v4"
    )
    gpsimd_dma_bytes_per_ns: float = _constant(
        "B/ns", Mark.documented, f"{_TRN2}, Gpsimd Engine: 153 GB/s per direction"
    )
    hbm_pair_bytes_per_ns: float = _constant(
        "B/ns",
        Mark.documented,
        f"{_TRN2}, {_TRN3}: a stack's share of the chip, which two cores share",
        "trn2: what the profiler counts MBU against; 3 TB/s / 4 would be 750.",
    )
    core_barrier_ns: float = _constant("ns", Mark.assumed, "none published; a semaphore to the other core and back")
    collective_hop_ns: float = _constant(
        "ns", Mark.documented, "neuron-runtime/explore/intranode-collective-comm.rst: 1 to 2 us per hop"
    )
    link_bytes_per_ns: float = _constant(
        "B/ns",
        Mark.documented,
        "trainium2.rst, trainium3.rst: 1.28 and 2.56 TB/s per chip, an eighth for each core",
    )

    @classmethod
    def describe(cls, name: str) -> dict[str, Any]:
        """Unit, mark, source and note of a field."""
        return dict(next(f for f in dataclasses.fields(cls) if f.name == name).metadata)


TRN2 = Constants(
    tensor_interval_min_cycles=64,
    tensor_fill_ns=165,
    tensor_issue_ns=3,
    tensor_fp32_passes=4,
    tensor_fp32_instructions=2,
    tensor_fp32_transpose_speedup=2,
    tensor_load_columns_per_cycle=4,
    tensor_transpose_overlap=1,
    tensor_throttled_rate=0.5,
    tensor_throttle_window_ns=3000,
    tensor_full_share=0.9,
    vector_lane_elements=2,
    vector_overhead_cycles=68,
    vector_latency_cycles=150,
    vector_16_bit_speedup=2,
    vector_detour_slowdown=2,
    vector_predicated_cycles=2,
    vector_scan_cycles=2,
    vector_reciprocal_cycles=8,
    vector_bn_aggr_cycles=13 / 3,
    vector_reduce_16_bit_speedup=2,
    vector_quadruple_elements=4,
    engine_interval_min_cycles=64,
    scalar_latency_ns=295,
    scalar_overhead_cycles=68,
    scalar_table_load_ns=1305,
    scalar_lane_elements_16_bit=1,
    gpsimd_overhead_cycles=150,
    gpsimd_topk_cycles=4,
    dynamic_address_cycles=600,
    semaphore_ns=268,
    dma_engine_bytes_per_ns=24.2,
    dma_descriptor_ns=8.3,
    dma_fetch_ns=448,
    dma_static_start_ns=1003,
    dma_completion_ns=325,
    dma_trigger_ns=8,
    software_dge_ns=270,
    software_dge_descriptor_ns=2.64,
    hardware_dge_ns=600,
    dma_rows_per_engine=8,
    dma_part_bytes=512,
    dma_queues=16,
    dma_transpose_rate=0.9,
    dma_transpose_sbuf_rate=0.5,
    dma_compute_rate=0.5,
    gpsimd_dma_bytes_per_ns=153,
    hbm_pair_bytes_per_ns=716.8,
    core_barrier_ns=600,
    collective_hop_ns=1500,
    link_bytes_per_ns=160,
)

TRN3 = dataclasses.replace(
    TRN2,
    tensor_transpose_overlap=2,
    scalar_lane_elements_16_bit=2,
    dma_engine_bytes_per_ns=24.2 * 33 / 23,
    dma_compute_rate=1.0,
    hbm_pair_bytes_per_ns=1175,
    link_bytes_per_ns=320,
)

_BY_TARGET = {"trn2": TRN2, "trn3": TRN3}


def of(hardware: Hardware) -> Constants:
    """The numbers of a target."""
    return _BY_TARGET[hardware.name]


def table() -> str:
    """All constants as a Markdown table."""
    lines = ["| constant | trn2 | trn3 | unit | mark | source |", "|---|---|---|---|---|---|"]
    for field in dataclasses.fields(Constants):
        about = field.metadata
        values = [f"{getattr(c, field.name):g}" for c in (TRN2, TRN3)]
        said = " ".join(part for part in (about["source"] + ".", about["note"]) if part)
        lines.append(f"| `{field.name}` | {' | '.join(values)} | {about['unit']} | {about['mark'].value} | {said} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
