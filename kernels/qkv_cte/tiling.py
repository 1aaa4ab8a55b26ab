"""Ranges of S-tiles, H-tiles and I-tiles within a core's share."""

from kernels.qkv_cte.config import BANK_COLUMNS, H_PACK, H_TILE_WORDS, S_TILE, NormRopePass, ProjectionConfig


def count_tiles(extent: int, size: int) -> int:
    """Tiles of `size` that cover `extent`."""
    return (extent + size - 1) // size


def h_tile_rows(config: ProjectionConfig, h: int) -> tuple[int, int]:
    """First word row of H-tile `h` and how many it has."""
    first = h * H_TILE_WORDS
    return first, min(H_TILE_WORDS, config.hidden // H_PACK - first)


def tile_tokens(config: ProjectionConfig, tile: int) -> tuple[int, int]:
    """First token of S-tile `tile` within its core and how many it has."""
    first = tile * S_TILE
    return first, min(S_TILE, config.tokens_per_core - first)


def bank_columns(config: ProjectionConfig, bank: int) -> tuple[int, int]:
    """First output column of I-tile `bank` and how many it has."""
    first = bank * BANK_COLUMNS
    return first, min(BANK_COLUMNS, config.width - first)


def even(count: int) -> int:
    """`count`, or one more: the stationary operand has an even number of columns."""
    return count + count % 2


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
