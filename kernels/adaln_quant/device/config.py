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

QUADRANT = 32
"""Partitions within which the Vector Engine's shuffle moves rows."""

MAX_DEPTH = 4
"""Most S-tiles of AdaLN under way at once: one in each of Vector, GpSimd and Scalar Engine, and one that is moved.

Predicted for 9,452 tokens of H = 5,120: 847 us with 1, 452 with 2, 421 with 3, 395 with 4, 376 with 5; for 1,184 tokens
132, 88, 86, 85 and 87. With bf16 results 4 are the most that fit.
"""

ROWS_MAX_DEPTH = 8
"""The same where rows are quantised as they come: a short way through the engines, with DMAs as long on either side.

Predicted likewise: 460 us with 1, 237 with 2, 145 with 4, 139 with 6, 137 with 8 and with 10; the bytes alone take 124.
"""

MODULATION_BUFFERS = 2
"""Buffers that the modulation vectors of the batches rotate through."""

MEAN, VARIANCE, INVERSE_DEVIATION = 0, 1, 2
"""Columns of a row's moments."""

LARGEST, QUOTIENT, REMAINDER, INVERSE_SCALE = 0, 1, 2, 3
"""Columns of what leads to a row's scale."""


@dataclass(frozen=True)
class AdalnQuantConfig(NKIObject):
    """Everything the kernels need beside their tensors.

    Attributes:
        sections: runs of tokens with one modulation each: the batches, or 1 where modulation does not matter.
        section_tokens: tokens of a section, over all cores.
        tokens_per_core: tokens of a section that each core takes, one after the other.
        hidden: H.
        depth: S-tiles under way at once, each in buffers of its own.
        eps: added to the variance.
        addresses: first byte of each SBUF buffer in its partitions, by name.
    """

    sections: int
    section_tokens: int
    tokens_per_core: int
    hidden: int
    depth: int
    eps: float
    addresses: dict[str, int]
