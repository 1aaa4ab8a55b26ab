"""`nl.tile_size`: limits of the target as kernels ask for them."""

from __future__ import annotations

import warnings

from common import hardware
from common.hardware import Hardware
from nkisim import machine
from nkisim.options import Options

_BN_STATS_MAX = 512
# The documentation names the alignments without a number; these are those of AWS's published KLR front end.
_PSUM_ALIGNMENT_BYTES, _SBUF_ALIGNMENT_BYTES = 4, 1


class TileSize:
    """Limits of the core that runs; outside a kernel, those of the target that the environment names."""

    @property
    def _hardware(self) -> Hardware:
        if machine.current is not None:
            return machine.current.hardware
        return hardware.get(Options().target)

    @property
    def pmax(self) -> int:
        """Largest partition dimension."""
        return self._hardware.partitions

    @property
    def psum_bank_fmax(self) -> int:
        """fp32 elements of a PSUM bank, per partition."""
        return self._hardware.psum_bank_fp32

    @property
    def psum_fmax(self) -> int:
        """Deprecated name of `psum_bank_fmax`."""
        warnings.warn("nl.tile_size.psum_fmax is deprecated; use psum_bank_fmax", DeprecationWarning, stacklevel=2)
        return self.psum_bank_fmax

    @property
    def psum_bank_fmax_bytes(self) -> int:
        """Bytes of a PSUM bank, per partition."""
        return self._hardware.psum_bank_bytes

    @property
    def psum_num_banks(self) -> int:
        """PSUM banks of a partition."""
        return self._hardware.psum_banks

    @property
    def gemm_stationary_fmax(self) -> int:
        """Largest free dimension of a stationary operand."""
        return self._hardware.matmul_stationary_free_max

    @property
    def gemm_moving_fmax(self) -> int:
        """Largest free dimension of a moving operand that stays within one PSUM bank."""
        return self._hardware.psum_bank_fp32

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Bytes of SBUF a kernel may use, per partition."""
        return self._hardware.sbuf_usable_bytes_per_partition

    @property
    def sbuf_fmax(self) -> int:
        """The same in fp32 elements."""
        return self.sbuf_fmax_bytes // 4

    @property
    def sbuf_size_bytes(self) -> int:
        """Bytes of SBUF over all partitions."""
        return self._hardware.sbuf_bytes_per_partition * self._hardware.partitions

    @property
    def total_available_sbuf_size(self) -> int:
        """Deprecated name of `sbuf_fmax_bytes`."""
        warnings.warn(
            "nl.tile_size.total_available_sbuf_size is deprecated; use sbuf_fmax_bytes",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.sbuf_fmax_bytes

    @property
    def bn_stats_fmax(self) -> int:
        """Most elements per partition that `nisa.bn_stats` takes."""
        return _BN_STATS_MAX

    @property
    def psum_min_align(self) -> int:
        """Bytes to which an address within a PSUM partition is aligned."""
        return _PSUM_ALIGNMENT_BYTES

    @property
    def sbuf_min_align(self) -> int:
        """Bytes to which an address within an SBUF partition is aligned."""
        return _SBUF_ALIGNMENT_BYTES


tile_size = TileSize()
