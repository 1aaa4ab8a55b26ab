"""The pass that is left after evictions with norm and RoPE: each normalised token times its `inv_rms`."""

import nki.isa as nisa
import nki.language as nl
from kernels.qkv_cte.device.buffers import Buffers
from kernels.qkv_cte.device.config import S_TILE, ProjectionConfig
from kernels.qkv_cte.device.early_buffers import EarlyBuffers
from kernels.qkv_cte.device.evict import output_columns
from kernels.qkv_cte.device.norm_pass import reduce_to_inv_rms
from kernels.qkv_cte.device.placing import place
from kernels.qkv_cte.device.tiling import count_tiles, first_kept_tile, first_token, scaled_columns, tile_tokens
from kernels.qkv_cte.device.transfer import copy
from nki.language import NkiTensor


def scale_pass(config: ProjectionConfig, buffers: Buffers, early: EarlyBuffers, output: NkiTensor) -> None:
    """output[s, segment] = row[s, segment] * inv_rms[s]   for every S-tile and normalised segment

    Rows that were kept are in SBUF; the others come from `output`, where the projection has stored them.
    """
    norm_rope = config.norm_rope
    inv_rms = reduce_to_inv_rms(config, buffers, early.piece_sums)
    if norm_rope == None or inv_rms == None:
        return
    first_column, width = scaled_columns(norm_rope)
    core_first = first_token(config)
    first_kept = first_kept_tile(config)
    loaded = []
    for i in range(config.flow.pass_buffers):
        loaded.append(place(config, f"pass_rows_{i}", (S_TILE, width), output.dtype))
    scaled = 0
    for tile in range(count_tiles(config.tokens_per_core, S_TILE)):
        first, tokens = tile_tokens(config, tile)
        columns = output_columns(config, output, core_first + first, tokens, first_column, width)
        if tile < first_kept:
            rows = loaded[tile % len(loaded)][0:tokens, :]
            copy(dst=rows, src=columns)
        else:
            rows = early.kept[tile - first_kept][0:tokens, :]
        for segment in norm_rope.segments:
            if segment.gamma_bytes > 0:
                start, column = segment.first_column - first_column, segment.sum_column + tile
                part = rows[:, start : start + segment.width]
                # One multiplication on 16-bit rows, which both engines do at several elements a cycle.
                engine = nisa.engine.vector if scaled % 3 < 2 or config.flow.one_engine else nisa.engine.scalar
                scale = inv_rms[0:tokens, column : column + 1]
                nisa.tensor_scalar(dst=part, data=part, op0=nl.multiply, operand0=scale, engine=engine)
                scaled += 1
        copy(dst=columns, src=rows)
