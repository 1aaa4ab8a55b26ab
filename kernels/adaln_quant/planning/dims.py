"""Sizes of one call and what follows from them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from common.checks import require_cores, require_int
from common.tiling import ceil_div
from kernels.adaln_quant.device.config import S_TILE, STATISTICS_COLUMNS, WORD_CODES


class Modulation(enum.Enum):
    """What scale and shift are."""

    none = "none"
    """There are none: rows are quantised as they are."""

    batch = "batch"
    """A vector for each batch, [B, H]."""

    token = "token"
    """A vector for each token, [B, S, H]."""


@dataclass(frozen=True)
class Dims:
    """Sizes of a call on x [B, S, H].

    Attributes:
        batch, seqlen: B and S.
        hidden: H, a multiple of 4: packed rows are whole words.
        cores: 1 or 2 (LNC); each takes half of the tokens.
        modulation: none, per batch or per token.
        quantised: whether the result is packed rows; else it is bfloat16.
        input_bytes: bytes of an element of x, 2 or 4.
        modulation_bytes: bytes of an element of scale and shift, 2 or 4; 0 without them.
    """

    batch: int
    seqlen: int
    hidden: int
    cores: int = 1
    modulation: Modulation = Modulation.batch
    quantised: bool = True
    input_bytes: int = 2
    modulation_bytes: int = 4

    def __post_init__(self) -> None:
        for name in ("batch", "seqlen", "hidden"):
            require_int(name, getattr(self, name), at_least=1)
        if self.hidden % WORD_CODES:
            raise ValueError(f"hidden is {self.hidden}; accepted: a multiple of {WORD_CODES}")
        require_cores("lnc", self.cores)
        if self.seqlen % self.cores:
            raise ValueError(
                f"seqlen is {self.seqlen} on {self.cores} cores; accepted: a multiple of {self.cores}, "
                f"padded by the caller with zero rows"
            )
        if self.input_bytes not in (2, 4):
            raise ValueError(f"input_bytes is {self.input_bytes!r}; accepted: 2 or 4")
        modulated = self.modulation is not Modulation.none
        accepted = (2, 4) if modulated else (0,)
        if self.modulation_bytes not in accepted:
            raise ValueError(
                f"modulation_bytes is {self.modulation_bytes!r} with {self.modulation}; accepted: "
                f"{' or '.join(map(str, accepted))}"
            )
        if not modulated and not self.quantised:
            raise ValueError(f"quantised is False with {self.modulation}; accepted: True, else there is nothing to do")

    @property
    def tokens(self) -> int:
        """Tokens of all cores."""
        return self.batch * self.seqlen

    @property
    def sections(self) -> int:
        """Runs of tokens with one modulation each; one run of all tokens where no vector is shared."""
        return self.batch if self.modulation is Modulation.batch else 1

    @property
    def section_tokens(self) -> int:
        """Tokens of a section, over all cores."""
        return self.tokens // self.sections

    @property
    def section_s_tiles(self) -> int:
        """S-tiles of a section on one core."""
        return ceil_div(self.section_tokens // self.cores, S_TILE)

    @property
    def s_tiles(self) -> int:
        """S-tiles of one core."""
        return self.sections * self.section_s_tiles

    @property
    def statistics_chunks(self) -> int:
        """Pieces of a row whose mean and variance are taken apart and then put together."""
        return ceil_div(self.hidden, STATISTICS_COLUMNS)
