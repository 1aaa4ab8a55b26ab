"""A kernel against the two limits of its cores: what the Tensor Engine can multiply and what HBM can deliver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from common.hardware import Hardware
from devicetime.timeline import Timeline
from nkisim.record import Record, is_hbm

_VALUES = {"float8_e4m3fn_x4": 4, "float8_e5m2_x4": 4, "float4_e2m1fn_x4": 4}
"""Values in an element of a packed type."""


def peaks(hardware: Hardware) -> dict[str, float]:
    """FLOP per second of one core's Tensor Engine by type of product, slowest first, of those that are published."""
    tflops = {
        "fp32": hardware.tensor_peak_fp32_tflops,
        "bf16": hardware.tensor_peak_bf16_tflops,
        "fp8": hardware.tensor_peak_fp8_tflops,
        "MX": hardware.tensor_peak_mx_tflops,
    }
    return {name: value * 1e12 for name, value in tflops.items() if value}


@dataclass(frozen=True)
class Point:
    """One run of a kernel.

    A core whose neighbour leaves their HBM stack alone can have more than its share of the bandwidth.

    Attributes:
        name: of the kernel or shape.
        hardware, cores: where it ran; limits are those of all of its cores together.
        flops: of its matrix products by type, two per multiply-add; transposes on the Tensor Engine are none.
        hbm_bytes: between HBM and all cores.
        seconds: predicted.
    """

    name: str
    hardware: Hardware
    cores: int
    flops: dict[str, float]
    hbm_bytes: int
    seconds: float

    @property
    def hbm_bytes_per_s(self) -> float:
        """The cores' share of the chip's HBM bandwidth."""
        return self.hardware.hbm_bytes_per_s_per_chip * self.cores / self.hardware.cores_per_chip

    @property
    def tensor_seconds(self) -> float:
        """What the products take at their peak rates."""
        rates = peaks(self.hardware)
        return sum(count / (rates[product] * self.cores) for product, count in self.flops.items())

    @property
    def hbm_seconds(self) -> float:
        """What the bytes take at the full share of the bandwidth."""
        return self.hbm_bytes / self.hbm_bytes_per_s

    @property
    def limit(self) -> str:
        """The slower of both: "PE" or "HBM"."""
        return "PE" if self.tensor_seconds > self.hbm_seconds else "HBM"

    @property
    def share_of_limit(self) -> float:
        """Of the time, what the limit alone would take."""
        return max(self.tensor_seconds, self.hbm_seconds) / self.seconds

    @property
    def intensity(self) -> float:
        """FLOP per byte of HBM."""
        return sum(self.flops.values()) / self.hbm_bytes

    @property
    def flops_per_s(self) -> float:
        """As predicted."""
        return sum(self.flops.values()) / self.seconds


def point(name: str, timeline: Timeline) -> Point:
    """The point of a timeline."""
    streams = timeline.streams
    return Point(
        name,
        timeline.hardware,
        len(streams),
        flops(streams, timeline.hardware),
        sum(map(hbm_bytes, streams)),
        timeline.total_ns / 1e9,
    )


def flops(streams: Sequence[Iterable[Record]], hardware: Hardware) -> dict[str, float]:
    """FLOP of the matrix products of all cores by type of product."""
    found: Counter[str] = Counter()
    for stream in streams:
        for record in stream:
            if record.op.startswith("nc_matmul") and not _is_transpose(record):
                found[_product(record, hardware)] += 2 * _multiply_adds(record)
    return {product: float(count) for product, count in found.items()}


def hbm_bytes(stream: Iterable[Record]) -> int:
    """Bytes that a stream reads from and writes to HBM. A barrier names the tensor that it orders, and moves none."""
    moves = (record for record in stream if record.op != "core_barrier")
    return sum(region.size_bytes for record in moves for region in (*record.reads, *record.writes) if is_hbm(region))


def _is_transpose(record: Record) -> bool:
    """Whether a matrix product only moves data."""
    return record.op == "nc_matmul" and record.detail[0] == "transpose"


def _doubles_rows(record: Record) -> bool:
    return record.op == "nc_matmul" and record.detail[0] == "double_row"


def _product(record: Record, hardware: Hardware) -> str:
    if record.op == "nc_matmul_mx":
        return "MX"
    if _doubles_rows(record) and hardware.tensor_peak_fp8_tflops:
        return "fp8"
    return "fp32" if record.reads[0].dtype.itemsize == 4 else "bf16"


def _multiply_adds(record: Record) -> int:
    """As many per element of the result as values are contracted: two rows at once, or packed ones, count each."""
    stationary = record.reads[0]
    contracted = stationary.shape[0] * _VALUES.get(str(stationary.dtype), 1) * (2 if _doubles_rows(record) else 1)
    return contracted * record.writes[0].elements
