"""Reading what the step needs: tables, this step's rows, and each token's selected rows of the cache."""

import nki.isa as nisa
import nki.language as nl
from kernels.mla_decode.device.buffers import Buffers
from kernels.mla_decode.device.config import BANKS_IN_TURN, P_MAX, SCALED_CODES, AttentionConfig
from kernels.mla_decode.device.placing import bank, place
from kernels.mla_decode.device.tiling import latent_tiles, prior_tiles
from nki.language import NkiTensor


def load_tables(
    config: AttentionConfig,
    buffers: Buffers,
    prior_rows: NkiTensor,
    prior_key_pos: NkiTensor,
    prior_rows_natural: NkiTensor,
    positions: NkiTensor,
) -> None:
    """Loads the indices of the gathers and works out which keys each token sees.

    keep[p, t, tile] = prior_key_pos[p, t, tile] < positions[t]
    """
    tiles = prior_tiles(config)
    nisa.dma_copy(dst=buffers.index, src=prior_rows)
    if buffers.natural_index != None:
        nisa.dma_copy(dst=buffers.natural_index, src=prior_rows_natural)
    key_pos = place(config, "key_pos", (P_MAX, config.n_tokens, tiles), nl.float32)
    nisa.dma_copy(dst=key_pos, src=prior_key_pos)
    own = place(config, "own_positions", (P_MAX, config.n_tokens), nl.float32)
    row = positions.reshape((1, config.n_tokens))
    nisa.dma_copy(dst=own, src=row.broadcast(0, P_MAX))
    for t in range(config.n_tokens):
        nisa.tensor_scalar(
            dst=buffers.keep[:, t, :],
            data=key_pos[:, t, :],
            op0=nl.less,
            operand0=own[:, t : t + 1],
            engine=nisa.engine.vector,
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
        name = f"current_features_{part % BANKS_IN_TURN}"
        spread = bank(config, name, (P_MAX, tokens), kv_row_cur.dtype)[0:height, :]
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
    """
    rows = buffers.rows[token % config.key_buffers]
    if config.fp8_cache:
        packed = buffers.packed[token % len(buffers.packed)]
        gather(config, buffers, cache_rows, packed, token)
        dequantise(config, packed, rows)
    else:
        gather(config, buffers, cache_rows, rows, token)
    return rows


def gather(config: AttentionConfig, buffers: Buffers, cache_rows: NkiTensor, target: NkiTensor, token: int) -> None:
    """Brings one token's rows as they are.

    The buffer is cleared first: a skipped slot would show an earlier token's row, and a weight of zero times a NaN
    of another sequence is a NaN. Not by GpSimd, which has the gathers' descriptors to make: that cost 7 % of the
    predicted time at the production shape, and with DMA transposes it was the slowest engine.
    """
    width = cache_rows.shape[1]
    nisa.memset(dst=target, value=0, engine=nisa.engine.vector)
    nisa.dma_copy(
        dst=target,
        src=cache_rows.ap(
            pattern=[[width, P_MAX * prior_tiles(config)], [1, width]],
            vector_offset=buffers.index[:, token, :],
            indirect_dim=0,
        ),
        oob_mode=nisa.oob_mode.skip,
        dge_mode=nisa.dge_mode.swdge,
    )


def dequantise(config: AttentionConfig, packed: NkiTensor, rows: NkiTensor) -> None:
    """rows[p, tile] = [k_pe | codes * scales] of a packed row, the products fp32 and rounded once."""
    rope, rank = config.rope, config.kv_lora_rank
    groups = rank // SCALED_CODES
    scales_end = rank + 4 * groups
    scales = packed[:, :, rank:scales_end].view(nl.float32)
    for group in range(groups):
        first = group * SCALED_CODES
        nisa.tensor_tensor(
            dst=rows[:, :, rope + first : rope + first + SCALED_CODES],
            data1=packed[:, :, first : first + SCALED_CODES].view(nl.float8_e4m3fn),
            data2=scales[:, :, group : group + 1].broadcast(2, SCALED_CODES),
            op=nl.multiply,
            engine=nisa.engine.vector,
        )
    k_pe = packed[:, :, scales_end : scales_end + 2 * rope].view(nl.bfloat16)
    nisa.tensor_copy(dst=rows[:, :, 0:rope], src=k_pe, engine=nisa.engine.scalar)


def clear_features(config: AttentionConfig, buffers: Buffers) -> None:
    """Gives what DMA transposes skip a value, once: a masked key's features may be an earlier token's, not nothing."""
    chunks = config.dma_transposed_chunks
    if chunks > 0:
        for features in buffers.features:
            nisa.memset(dst=features[:, 0:chunks, :], value=0.0, engine=nisa.engine.gpsimd)


def gather_features(
    config: AttentionConfig, buffers: Buffers, cache_rows: NkiTensor, features: NkiTensor, token: int
) -> None:
    """Brings one token's first latent tiles from the cache transposed, by DMA.

    features[f, part, 128 tile + p] = cache_rows[row of key 128 tile + p, column f of feature tile part]
    """
    natural_index = buffers.natural_index
    if natural_index == None:
        return
    width = config.rope + config.kv_lora_rank
    keys = prior_tiles(config) * P_MAX
    for part in range(config.dma_transposed_chunks):
        first, height = feature_columns(config, part)
        nisa.dma_transpose(
            dst=features[:, part, :],
            src=cache_rows[:, first : first + height].ap(
                pattern=[[width, keys], [1, height]],
                vector_offset=natural_index[:, token, :],
                indirect_dim=0,
            ),
            oob_mode=nisa.oob_mode.skip,
            dge_mode=nisa.dge_mode.swdge,
        )
