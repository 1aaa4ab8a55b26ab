"""Sizes of one call and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from common.tiling import ceil_div
from kernels.qkv_cte.config import BANK_COLUMNS, H_PACK, H_TILE_WORDS, S_TILE

H_MULTIPLE = 32 * H_PACK
"""The contraction takes whole quadrants of 32 partitions, of four rows each."""


@dataclass(frozen=True)
class Dims:
    """Sizes of a projection `[B, S, H] @ [H, I]`.

    Attributes:
        batch, seqlen: B and S; the B * S tokens are split evenly over `cores`.
        hidden: H, a multiple of 128.
        width: I, output columns.
        cores: 1 or 2 (LNC).
        bias_bytes: bytes of one bias element, 0 without a bias.
    """

    batch: int
    seqlen: int
    hidden: int
    width: int
    cores: int = 1
    bias_bytes: int = 4

    def __post_init__(self) -> None:
        for name in ("batch", "seqlen", "hidden", "width"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}; accepted: an integer from 1")
        if self.hidden % H_MULTIPLE:
            padded = ceil_div(self.hidden, H_MULTIPLE) * H_MULTIPLE
            raise ValueError(
                f"hidden is {self.hidden}; accepted: a multiple of {H_MULTIPLE} "
                f"(zero rows up to {padded} would cost {padded / self.hidden - 1:.1%} more weights and products)"
            )
        if self.cores not in (1, 2):
            raise ValueError(f"lnc is {self.cores!r}; accepted: 1 or 2")
        if self.seqlen % self.cores:
            raise ValueError(
                f"seqlen is {self.seqlen} on {self.cores} cores; accepted: a multiple of {self.cores}, "
                f"padded by the caller with zero rows"
            )
        if self.bias_bytes not in (0, 2, 4):
            raise ValueError(f"bias_bytes is {self.bias_bytes!r}; accepted: 0 (no bias), 2 or 4")

    @property
    def tokens(self) -> int:
        """Tokens of all cores."""
        return self.batch * self.seqlen

    @property
    def tokens_per_core(self) -> int:
        """Tokens of one core."""
        return self.tokens // self.cores

    @property
    def s_tiles(self) -> int:
        """S-tiles of one core."""
        return ceil_div(self.tokens_per_core, S_TILE)

    @property
    def h_tiles(self) -> int:
        """H-tiles of the contraction."""
        return ceil_div(self.hidden // H_PACK, H_TILE_WORDS)

    @property
    def i_banks(self) -> int:
        """PSUM banks that the output width takes."""
        return ceil_div(self.width, BANK_COLUMNS)
