"""What the kernels are told: sizes and addresses, in a class that the NKI language knows."""

from dataclasses import dataclass

from nki.language import NKIObject

S_TILE = 128
"""Tokens of an S-tile: one per partition."""

WORD_CODES = 4
"""Codes in a word of a packed row."""

STATISTICS_COLUMNS = 512
"""Most columns that one `bn_stats` takes (`nl.tile_size.bn_stats_fmax`)."""

STATISTICS_VALUES = 6
"""Values that it gives: count, mean and count x variance of the even and of the odd columns."""

BANK_COLUMNS = 512
"""fp32 elements of a PSUM bank."""

BROADCAST_BANKS = 2
"""Rotating PSUM banks of the modulation's broadcast: one is filled while the other is read."""

ROTATING_BUFFERS = 2
"""Buffers of each kind that S-tiles rotate through: one is loaded or stored while the other is computed with."""

MODULATION_BUFFERS = 2
"""Buffers that the modulation vectors of the batches rotate through."""


MEAN, VARIANCE, INVERSE_DEVIATION = 0, 1, 2
"""Columns of a row's moments."""

LARGEST, QUOTIENT, REMAINDER, SCALE, INVERSE_SCALE = 0, 1, 2, 3, 4
"""Columns of what leads to a row's scale."""


@dataclass(frozen=True)
class AdalnQuantConfig(NKIObject):
    """Everything the kernels need beside their tensors.

    Attributes:
        sections: runs of tokens with one modulation each: the batches, or 1 where modulation does not matter.
        section_tokens: tokens of a section, over all cores.
        tokens_per_core: tokens of a section that each core takes, one after the other.
        hidden: H.
        eps: added to the variance.
        addresses: first byte of each SBUF buffer in its partitions, by name.
    """

    sections: int
    section_tokens: int
    tokens_per_core: int
    hidden: int
    eps: float
    addresses: dict[str, int]
