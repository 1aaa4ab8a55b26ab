"""Ranges of S-tiles, H-tiles and I-tiles within a core's share."""

import nki.language as nl
from kernels.qkv_cte.device.config import H_TILE_WORDS, S_TILE, IGroup, NormRopePass, Piece, ProjectionConfig, SBlock


def count_tiles(extent: int, size: int) -> int:
    """Tiles of `size` that cover `extent`."""
    return (extent + size - 1) // size


def contraction_words(config: ProjectionConfig) -> int:
    """Partitions' worth of contraction: rows over all lanes."""
    return config.hidden // config.format.lanes


def count_h_tiles(config: ProjectionConfig) -> int:
    """H-tiles of the contraction."""
    return count_tiles(contraction_words(config), H_TILE_WORDS)


def h_tile_rows(config: ProjectionConfig, h: int) -> tuple[int, int]:
    """First word row of H-tile `h` and how many it has."""
    first = h * H_TILE_WORDS
    return first, min(H_TILE_WORDS, contraction_words(config) - first)


def tile_tokens(config: ProjectionConfig, tile: int) -> tuple[int, int]:
    """First token of S-tile `tile` within its core and how many it has."""
    first = tile * S_TILE
    return first, min(S_TILE, config.tokens_per_core - first)


def first_token(config: ProjectionConfig) -> int:
    """First token of this core."""
    return 0 if config.shared_columns > 0 else nl.program_id(0) * config.tokens_per_core


def core_columns(config: ProjectionConfig) -> tuple[int, int]:
    """First output column of this core and how many it makes; the last core's share may be smaller."""
    if config.shared_columns == 0:
        return 0, config.width
    first = nl.program_id(0) * config.width
    return first, min(config.width, config.shared_columns - first)


def core_groups(config: ProjectionConfig, block: SBlock) -> list[IGroup]:
    """The I-groups of a block, without banks beyond this core's columns."""
    banks = count_tiles(core_columns(config)[1], config.bank_columns)
    groups = []
    for group in block.groups:
        if group.first_bank < banks:
            groups.append(IGroup(group.first_bank, min(group.num_banks, banks - group.first_bank)))
    return groups


def bank_columns(config: ProjectionConfig, bank: int) -> tuple[int, int]:
    """First column of I-tile `bank` within its core and how many it has."""
    first = bank * config.bank_columns
    return first, min(config.bank_columns, core_columns(config)[1] - first)


def even(count: int) -> int:
    """`count`, or one more: the stationary operand has an even number of columns."""
    return count + count % 2


def multiplied_tokens(config: ProjectionConfig, tokens: int) -> int:
    """Columns of a stationary operand: in the MX formats an even number."""
    return tokens if config.format.lanes == 1 else even(tokens)


def scaled_columns(norm_rope: NormRopePass) -> tuple[int, int]:
    """First column of the normalised segments and how many they have; they lie side by side."""
    first, last = -1, 0
    for segment in norm_rope.segments:
        if segment.gamma_bytes > 0:
            first = segment.first_column if first < 0 else first
            last = segment.first_column + segment.width
    return max(first, 0), last - max(first, 0)


def first_kept_tile(config: ProjectionConfig) -> int:
    """First of the S-tiles whose normalised columns stay in SBUF; those follow to the last."""
    return count_tiles(config.tokens_per_core, S_TILE) - config.flow.kept_tiles


def core_pieces(config: ProjectionConfig) -> tuple[tuple[Piece, ...], ...]:
    """For each bank of this core, what it is evicted as."""
    return config.pieces[nl.program_id(0) if config.shared_columns > 0 else 0]
