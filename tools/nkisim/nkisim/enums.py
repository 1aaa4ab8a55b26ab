"""The enumerations of `nki.isa` and the memory regions of `nki.language`."""

from __future__ import annotations

import functools
from enum import Enum


class _Constant(Enum):
    """An enumeration whose members hash by identity: instructions look them up thousands of times a kernel."""

    __hash__ = object.__hash__


class MemoryRegion(_Constant):
    """Where a tensor lies. `hbm` is another name of `private_hbm`."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, str) and self.value == other)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return self.value


class engine(_Constant):
    """Engines of a NeuronCore."""

    tensor = 1
    vector = 5
    scalar = 2
    gpsimd = 3
    dma = 4
    sync = 6
    unknown = 0

    def __repr__(self) -> str:
        return f"engine.{self.name}"


class reduce_cmd(_Constant):
    """What an instruction does with the engine's reduce registers."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(_Constant):
    """Who generates the descriptors of a DMA."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(_Constant):
    """What an indirect DMA does with an index out of bounds."""

    error = 0
    skip = 1


class matmul_perf_mode(_Constant):
    """Performance mode of `nc_matmul`."""

    none = "none"
    double_row = "double_row"


@functools.total_ordering
class nc_version(_Constant):
    """Generations of the NeuronCore; they order, also against plain integers."""

    gen2 = 2
    gen3 = 3
    gen4 = 4

    def _number(self, other: object) -> int | None:
        if isinstance(other, nc_version):
            return int(other.value)
        return other if isinstance(other, int) else None

    def __eq__(self, other: object) -> bool:
        return self is other or self._number(other) == self.value

    def __lt__(self, other: object) -> bool:
        number = self._number(other)
        return NotImplemented if number is None else self.value < number

    __hash__ = object.__hash__


class dma_engine(_Constant):
    """Which DMA carries a `sendrecv`."""

    dma = 1
    gpsimd_dma = 2
