"""Reading what the step needs: tables, this step's rows, and each token's selected rows of the cache."""

import nki.isa as nisa
import nki.language as nl
from kernels.mla_decode.buffers import Buffers, bank, place
from kernels.mla_decode.config import P_MAX, AttentionConfig
from kernels.mla_decode.tiling import latent_tiles, prior_tiles
from nki.language import NkiTensor

FEATURE_BANK = 0
"""PSUM bank of this step's transposed rows; free again before the first token."""


def load_tables(
    config: AttentionConfig,
    buffers: Buffers,
    prior_rows: NkiTensor,
    prior_key_pos: NkiTensor,
    positions: NkiTensor,
) -> None:
    """Loads the gather's index and works out which keys each token sees.

    keep[p, t, tile] = prior_key_pos[p, t, tile] < positions[t];  slots from n_prior on are never seen
    """
    tiles = prior_tiles(config)
    nisa.dma_copy(dst=buffers.index, src=prior_rows)
    key_pos = place(config, "key_pos", (P_MAX, config.n_tokens, tiles), nl.float32)
    nisa.dma_copy(dst=key_pos, src=prior_key_pos)
    own = place(config, "own_positions", (P_MAX, config.n_tokens), nl.float32)
    row = positions.reshape((1, config.n_tokens))
    nisa.dma_copy(dst=own, src=row.broadcast(0, P_MAX))
    for t in range(config.n_tokens):
        nisa.tensor_scalar(dst=buffers.keep[:, t, :], data=key_pos[:, t, :], op0=nl.less, operand0=own[:, t : t + 1])


def make_constants(buffers: Buffers) -> None:
    """identity[p, i] = (p == i);  ones[p, i] = 1"""
    nisa.memset(dst=buffers.ones, value=1.0, engine=nisa.engine.gpsimd)
    nisa.affine_select(
        dst=buffers.identity,
        pattern=[[-1, P_MAX]],
        channel_multiplier=1,
        on_true_tile=buffers.ones,
        on_false_value=0.0,
        cmp_op=nl.equal,
    )


def load_current_features(config: AttentionConfig, buffers: Buffers, kv_row_cur: NkiTensor) -> None:
    """Transposes this step's rows, all tokens at once.

    current_features[f, part, t] = kv_row_cur[t, rope + 128 part + f];  current_features[f, L, t] = kv_row_cur[t, f]
    """
    tokens, latents = config.n_tokens, latent_tiles(config)
    staged = place(config, "current_rows", (tokens, config.rope + config.kv_lora_rank), kv_row_cur.dtype)
    nisa.dma_copy(dst=staged, src=kv_row_cur)
    for part in range(latents + 1):
        first, height = feature_columns(config, part)
        spread = bank(FEATURE_BANK + part % 2, (P_MAX, tokens), kv_row_cur.dtype)[0:height, :]
        nisa.nc_transpose(dst=spread, data=staged[:, first : first + height], engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=buffers.current_features[0:height, part, :], src=spread, engine=nisa.engine.vector)


def feature_columns(config: AttentionConfig, part: int) -> tuple[int, int]:
    """First column in a cache row, and width, of feature tile `part`: the latent tiles, then the rope part."""
    if part < latent_tiles(config):
        return config.rope + part * P_MAX, P_MAX
    return 0, config.rope


def gather_rows(config: AttentionConfig, buffers: Buffers, cache_rows: NkiTensor, token: int) -> NkiTensor:
    """One token's selected rows, token-major.

    rows[p, tile] = cache_rows[index of key 128 tile + p], or zeros where that is out of range

    The buffer is cleared first: a skipped slot would show an earlier token's row, and a weight of zero times a NaN
    of another sequence is a NaN.
    """
    width = config.rope + config.kv_lora_rank
    tiles = prior_tiles(config)
    rows = buffers.rows[token % config.key_buffers]
    nisa.memset(dst=rows, value=0.0, engine=nisa.engine.gpsimd)
    nisa.dma_copy(
        dst=rows,
        src=cache_rows.ap(
            pattern=[[width, P_MAX * tiles], [1, width]],
            vector_offset=buffers.index[:, token, :],
            indirect_dim=0,
        ),
        oob_mode=nisa.oob_mode.skip,
        dge_mode=nisa.dge_mode.swdge,
    )
    return rows
