"""The on-chip tensors that an eviction with norm and RoPE needs beside the projection's."""

from dataclasses import dataclass

import nki.language as nl
from kernels.qkv_cte.device.config import BANK_COLUMNS, CROSSED_BUFFERS, S_TILE, NormRopePass, ProjectionConfig
from kernels.qkv_cte.device.placing import place
from kernels.qkv_cte.device.tiling import count_tiles, scaled_columns
from nki.language import NKIObject, NkiTensor


@dataclass
class EarlyBuffers(NKIObject):
    """Lists run over segments (gammas), S-tiles of a block (caches), rotating buffers (crossed) or kept S-tiles."""

    gammas: list[NkiTensor | None]
    caches: list[tuple[NkiTensor, NkiTensor]]
    crossed: list[NkiTensor]
    kept: list[NkiTensor]
    piece_sums: NkiTensor | None


def allocate_early(
    config: ProjectionConfig,
    norm_rope: NormRopePass,
    q_gamma: NkiTensor | None,
    k_gamma: NkiTensor | None,
    cos_cache: NkiTensor | None,
    output: NkiTensor,
) -> EarlyBuffers:
    """Creates the buffers at their addresses. Layouts, partition dimension first:

    gammas [128, segment] of the gamma's type; caches, each cos and sin, [128 tokens, head_dim] of the cache's type;
    crossed [128 tokens, bank] fp32; kept [128 tokens, normalised columns] of the output's type; piece_sums
    [128 tokens, segment x S-tile x piece] fp32.
    """
    s_tiles = count_tiles(config.tokens_per_core, S_TILE)
    gammas: list[NkiTensor | None] = []
    sums = 0
    for segment in norm_rope.segments:
        source = q_gamma if segment.name == "q" else k_gamma
        gamma = None
        if source != None and segment.gamma_bytes > 0:
            gamma = place(config, f"gamma_{segment.name}", (S_TILE, segment.width), source.dtype)
            sums += s_tiles * segment.pieces
        gammas.append(gamma)
    caches, crossed, kept = [], [], []
    if cos_cache != None:
        for t in range(config.blocks[0].num_tiles):
            cos = place(config, f"cos_{t}", (S_TILE, norm_rope.head_dim), cos_cache.dtype)
            caches.append((cos, place(config, f"sin_{t}", (S_TILE, norm_rope.head_dim), cos_cache.dtype)))
        shape = (S_TILE, min(BANK_COLUMNS, config.width))
        for i in range(min(CROSSED_BUFFERS, s_tiles * config.segment_pieces)):
            crossed.append(place(config, f"crossed_{i}", shape, nl.float32))
    for i in range(config.flow.kept_tiles):
        kept.append(place(config, f"kept_{i}", (S_TILE, scaled_columns(norm_rope)[1]), output.dtype))
    piece_sums = None
    if sums > 0:
        piece_sums = place(config, "piece_sums", (S_TILE, sums), nl.float32)
    return EarlyBuffers(gammas=gammas, caches=caches, crossed=crossed, kept=kept, piece_sums=piece_sums)
