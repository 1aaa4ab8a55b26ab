"""Block scales of MXFP8, in the layout that quantisation writes and products read.

A block is 8 partitions x 4 lanes, so that an H-tile of 128 words has 16 blocks of contraction rows, four in each
quadrant of 32 partitions. Their scales lie in the same quadrant, at partition 0, 4, 8 or 12 of it. So the scales of
four H-tiles share one tile: those of H-tile h begin 4 (h % 4) partitions into each quadrant of tile h // 4.
"""

from kernels.qkv_cte.device.buffers import Buffers
from kernels.qkv_cte.device.config import H_TILE_WORDS, QUADRANT, SCALE_SLOTS, ProjectionConfig
from kernels.qkv_cte.device.tiling import core_columns, count_h_tiles, h_tile_rows
from kernels.qkv_cte.device.transfer import copy
from nki.language import NkiTensor

BLOCK_WORDS = 8
QUADRANT_BLOCKS = QUADRANT // BLOCK_WORDS


def scales_of(config: ProjectionConfig, scales: NkiTensor, h: int) -> NkiTensor:
    """The scales of H-tile `h` in a scale buffer [128, H-tiles / 4, columns]: [partitions, columns]."""
    height = h_tile_rows(config, h)[1]
    start = QUADRANT_BLOCKS * (h % SCALE_SLOTS)
    return scales[start : start + height - QUADRANT + QUADRANT_BLOCKS, h // SCALE_SLOTS, :]


def load_weight_scales(config: ProjectionConfig, buffers: Buffers, weight_scales: NkiTensor) -> None:
    """Loads the block scales [H / 32, I] of all weights, once, one DMA for each quadrant of an H-tile.

    mx_scale[32 q + 4 (h % 4) + r, h // 4, i] = weight_scales[16 h + 4 q + r, i]
    """
    if buffers.mx_scale == None:
        return
    first, width = core_columns(config)
    for h in range(count_h_tiles(config)):
        start = QUADRANT_BLOCKS * (h % SCALE_SLOTS)
        for quadrant in range(h_tile_rows(config, h)[1] // QUADRANT):
            partition = quadrant * QUADRANT + start
            block = h * (H_TILE_WORDS // BLOCK_WORDS) + quadrant * QUADRANT_BLOCKS
            copy(
                dst=buffers.mx_scale[partition : partition + QUADRANT_BLOCKS, h // SCALE_SLOTS, 0:width],
                src=weight_scales[block : block + QUADRANT_BLOCKS, first : first + width],
            )
