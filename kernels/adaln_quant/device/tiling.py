"""Ranges of S-tiles and columns within a core's share."""

import nki.language as nl
from kernels.adaln_quant.device.config import S_TILE, AdalnQuantConfig


def count_tiles(extent: int, size: int) -> int:
    """Tiles of `size` that cover `extent`."""
    return (extent + size - 1) // size


def tile_tokens(config: AdalnQuantConfig, section: int, tile: int) -> tuple[int, int]:
    """First token, of all B*S, of this core's S-tile `tile` of a section, and how many it has."""
    section_first = section * config.section_tokens + nl.program_id(0) * config.tokens_per_core
    first = tile * S_TILE
    return section_first + first, min(S_TILE, config.tokens_per_core - first)
