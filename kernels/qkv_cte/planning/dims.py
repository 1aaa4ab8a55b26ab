"""Sizes of one call and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from common.checks import require_cores
from common.tiling import ceil_div, round_up
from kernels.qkv_cte.device.config import BANK_COLUMNS, H_PACK, H_TILE_WORDS, ROW_MX_FORMAT, S_TILE, OperandFormat

H_MULTIPLE = 32 * H_PACK
"""An MX contraction takes whole quadrants of 32 partitions, of four rows each."""


def h_multiple(hidden: int) -> str:
    """What H of an MX format is accepted, and what padding another one would cost."""
    accepted = f"a multiple of {H_MULTIPLE}"
    if hidden < 1 or hidden % H_MULTIPLE == 0:
        return accepted
    padded = round_up(hidden, H_MULTIPLE)
    return f"{accepted} (zero rows up to {padded} would cost {padded / hidden - 1:.1%} more weights and products)"


@dataclass(frozen=True)
class Dims:
    """Sizes of a projection `[B, S, H] @ [H, I]`.

    Attributes:
        batch, seqlen: B and S; the B * S tokens are split evenly over `cores`, unless these share the columns.
        hidden: H; a multiple of 128 in the MX formats.
        width: I, output columns.
        cores: 1 or 2 (LNC).
        bias_bytes: bytes of one bias element, 0 without a bias.
        format: of the operands.
        bank_columns: output columns in a PSUM bank.
        column_unit: 0, or columns that stay together where the cores share the columns and each takes all tokens.
    """

    batch: int
    seqlen: int
    hidden: int
    width: int
    cores: int = 1
    bias_bytes: int = 4
    format: OperandFormat = ROW_MX_FORMAT
    bank_columns: int = BANK_COLUMNS
    column_unit: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "seqlen", "hidden", "width"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}; accepted: an integer from 1")
        if self.format.lanes > 1 and self.hidden % H_MULTIPLE:
            raise ValueError(f"hidden is {self.hidden}; accepted: {h_multiple(self.hidden)}")
        require_cores("lnc", self.cores)
        if not self.column_unit and self.seqlen % self.cores:
            raise ValueError(
                f"seqlen is {self.seqlen} on {self.cores} cores; accepted: a multiple of {self.cores}, "
                f"padded by the caller with zero rows"
            )
        if self.column_unit and self.columns_per_core * (self.cores - 1) >= self.width:
            raise ValueError(
                f"lnc is {self.cores} with {self.width} output columns that only divide into {self.column_unit}; "
                f"accepted: 1"
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
        return self.tokens if self.column_unit else self.tokens // self.cores

    @property
    def columns_per_core(self) -> int:
        """Output columns of the core that has the most."""
        if not self.column_unit:
            return self.width
        return round_up(ceil_div(self.width, self.cores), self.column_unit)

    @property
    def token_copies(self) -> int:
        """How many cores read each token."""
        return self.cores if self.column_unit else 1

    @property
    def weight_copies(self) -> int:
        """How many cores read each weight."""
        return 1 if self.column_unit else self.cores

    @property
    def s_tiles(self) -> int:
        """S-tiles of one core."""
        return ceil_div(self.tokens_per_core, S_TILE)

    @property
    def h_tiles(self) -> int:
        """H-tiles of the contraction."""
        return ceil_div(self.hidden // self.format.lanes, H_TILE_WORDS)

    @property
    def i_banks(self) -> int:
        """PSUM banks that a core's output columns take."""
        return ceil_div(self.columns_per_core, self.bank_columns)
