"""Facts about Trainium2 and Trainium3: one frozen record each, every number with its source.

Planner, simulator and device-time model take their numbers from here, so that they cannot disagree. Sizes
are per NeuronCore unless the name says chip. Sources are pages of the AWS Neuron documentation (paths below
`nki/`) and, where it is silent, the file of the public NKI Library that states the value; `Hardware.source`
gives them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

_TRN1_GUIDE = "guides/architecture/trainium_inferentia2_arch.rst"
_TRN2_GUIDE = "guides/architecture/trainium2_arch.rst"
_TRN3_GUIDE = "guides/architecture/trainium3_arch.rst"
_BOTH_GUIDES = f"{_TRN2_GUIDE}; {_TRN3_GUIDE}"


def _fact(source: str) -> Any:
    return dataclasses.field(metadata={"source": source})


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One NeuronCore generation. `source(field_name)` tells where a value comes from."""

    name: str = _fact("compiler target name")
    generation: str = _fact("api/nki/isa/__init__.py, nc_version: gen3 for trn2, gen4 for trn3")

    partitions: int = _fact(f"{_TRN1_GUIDE}, On-chip Memory: 128 partitions in SBUF and in PSUM")
    start_partitions: tuple[int, ...] = _fact(f"{_TRN1_GUIDE}, start_partition rule: one of 0/32/64/96")

    sbuf_bytes_per_partition: int = _fact(f"{_TRN2_GUIDE}: 28 MiB / 128; {_TRN3_GUIDE}: 32 MiB / 128")
    sbuf_reserved_bytes_per_partition: int = _fact(
        "nki-library core/mlp/mlp_cte/mlp_cte_constants.py, MAX_AVAILABLE_SBUF_SIZE: capacity - 16 KiB - 8 B "
        "(stated for trn2; the qkv_cte reference page gives 16 KiB reserved on trn3)"
    )
    psum_banks: int = _fact(f"{_TRN1_GUIDE}, Near-memory accumulation in PSUM: 8 banks")
    psum_bank_bytes: int = _fact(f"{_TRN1_GUIDE}, Near-memory accumulation in PSUM: 2 KiB per bank")

    matmul_contraction_max: int = _fact(f"{_TRN1_GUIDE}, Tensor Engine, Tile Size: PE rows")
    matmul_stationary_free_max: int = _fact(f"{_TRN1_GUIDE}, Tensor Engine, Tile Size: PE columns")
    matmul_moving_free_max_fp32: int = _fact(
        f"trn2: {_TRN1_GUIDE}, Tensor Engine, Tile Size; trn3: api/nki/isa/__init__.py, nc_matmul, Tile size"
    )
    matmul_moving_free_max_bf16: int = _fact(
        f"trn2: {_TRN1_GUIDE}, Tensor Engine, Tile Size; trn3: api/nki/isa/__init__.py, nc_matmul, Tile size"
    )
    supports_mx: bool = _fact(f"{_TRN3_GUIDE}, Quad-MXFP8/MXFP4 Matmul Performance: new in NeuronCore-v4")

    tensor_clock_ghz: float = _fact(f"{_BOTH_GUIDES}, Compute Engine Specifications")
    vector_clock_ghz: float = _fact(f"{_BOTH_GUIDES}, Compute Engine Specifications")
    scalar_clock_ghz: float = _fact(f"{_BOTH_GUIDES}, Compute Engine Specifications")
    gpsimd_clock_ghz: float = _fact(f"{_BOTH_GUIDES}, Compute Engine Specifications")

    tensor_peak_fp32_tflops: float = _fact(f"{_BOTH_GUIDES}, Tensor Engine")
    tensor_peak_bf16_tflops: float = _fact(f"{_BOTH_GUIDES}, Tensor Engine")
    tensor_peak_fp8_tflops: float | None = _fact(f"{_TRN2_GUIDE}, Tensor Engine; trn3: not published")
    tensor_peak_mx_tflops: float | None = _fact(f"{_TRN3_GUIDE}, Tensor Engine; trn2: no MX")

    cores_per_chip: int = _fact(f"{_BOTH_GUIDES}, list of what a device consists of")
    hbm_bytes_per_chip: int = _fact(f"{_BOTH_GUIDES}, list of what a device consists of")
    hbm_stacks_per_chip: int = _fact(f"{_BOTH_GUIDES}, list of what a device consists of")
    hbm_bytes_per_s_per_chip: float = _fact(f"{_BOTH_GUIDES}, list of what a device consists of")
    dma_engines_per_core: int = _fact("get-started/about/nki-dma-overview.rst: 16 DMA engines per NeuronCore")

    @property
    def sbuf_usable_bytes_per_partition(self) -> int:
        """What a kernel may allocate, per partition."""
        return self.sbuf_bytes_per_partition - self.sbuf_reserved_bytes_per_partition

    @property
    def psum_bank_fp32(self) -> int:
        """fp32 elements per PSUM bank and partition."""
        return self.psum_bank_bytes // 4

    @property
    def psum_bytes_per_partition(self) -> int:
        """All PSUM banks, per partition."""
        return self.psum_banks * self.psum_bank_bytes

    def allowed_start_partitions(self, num_partitions: int) -> tuple[int, ...]:
        """Where an access of `num_partitions` partitions may start.

        Source: guides/architecture/trainium_inferentia2_arch.rst: more than 64 partitions start at 0, more
        than 32 at 0 or 64, others at 0/32/64/96.

        Raises:
            ValueError: `num_partitions` is not in 1..partitions.
        """
        if not 1 <= num_partitions <= self.partitions:
            raise ValueError(f"num_partitions must be 1..{self.partitions}, got {num_partitions}")
        span = 1 << (num_partitions - 1).bit_length()
        return tuple(start for start in self.start_partitions if start % span == 0)

    def source(self, field_name: str) -> str:
        """Where the value of the field `field_name` comes from."""
        sources = {field.name: field.metadata["source"] for field in dataclasses.fields(self)}
        if field_name not in sources:
            raise ValueError(f"field_name must be one of {', '.join(sources)}; got {field_name!r}")
        return str(sources[field_name])


TRN2 = Hardware(
    name="trn2",
    generation="gen3",
    partitions=128,
    start_partitions=(0, 32, 64, 96),
    sbuf_bytes_per_partition=224 * 1024,
    sbuf_reserved_bytes_per_partition=16 * 1024 + 8,
    psum_banks=8,
    psum_bank_bytes=2048,
    matmul_contraction_max=128,
    matmul_stationary_free_max=128,
    matmul_moving_free_max_fp32=512,
    matmul_moving_free_max_bf16=512,
    supports_mx=False,
    tensor_clock_ghz=2.4,
    vector_clock_ghz=0.96,
    scalar_clock_ghz=1.2,
    gpsimd_clock_ghz=1.2,
    tensor_peak_fp32_tflops=20.0,
    tensor_peak_bf16_tflops=79.0,
    tensor_peak_fp8_tflops=158.0,
    tensor_peak_mx_tflops=None,
    cores_per_chip=8,
    hbm_bytes_per_chip=96 * 1024**3,
    hbm_stacks_per_chip=4,
    hbm_bytes_per_s_per_chip=3.0e12,
    dma_engines_per_core=16,
)

TRN3 = dataclasses.replace(
    TRN2,
    name="trn3",
    generation="gen4",
    sbuf_bytes_per_partition=256 * 1024,
    matmul_moving_free_max_fp32=4096,
    matmul_moving_free_max_bf16=8192,
    supports_mx=True,
    vector_clock_ghz=1.2,
    tensor_peak_fp8_tflops=None,
    tensor_peak_mx_tflops=315.0,
    hbm_bytes_per_chip=144 * 1024**3,
    hbm_bytes_per_s_per_chip=4.7e12,
)

_BY_TARGET = {hardware.name: hardware for hardware in (TRN2, TRN3)}


def get(target: str) -> Hardware:
    """The record of a compiler target, "trn2" or "trn3".

    Raises:
        ValueError: another target; the message names those accepted.
    """
    if not isinstance(target, str) or target not in _BY_TARGET:
        accepted = " or ".join(repr(name) for name in _BY_TARGET)
        raise ValueError(f"target must be {accepted}, got {target!r}")
    return _BY_TARGET[target]
