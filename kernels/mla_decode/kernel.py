"""MLA decode attention over the prior keys that an indexer selected."""

import nki
import nki.isa as nisa
import nki.language as nl
from kernels.mla_decode.buffers import allocate, place
from kernels.mla_decode.config import P_MAX, AttentionConfig
from kernels.mla_decode.gather import gather_rows, load_current_features, load_tables, make_constants
from kernels.mla_decode.scores import make_features, score
from kernels.mla_decode.softmax import softmax_group
from kernels.mla_decode.tails import absorb_out, project_out
from kernels.mla_decode.tiling import group_ranges, latent_tiles
from kernels.mla_decode.values import weighted_sum
from nki.language import NkiTensor


def attend(
    q_absorbed_sbuf: NkiTensor,
    q_pe_sbuf: NkiTensor,
    kv_cache: NkiTensor,
    kv_row_cur: NkiTensor,
    prior_rows: NkiTensor,
    prior_key_pos: NkiTensor,
    positions: NkiTensor,
    out_absorb_w: NkiTensor,
    o_proj_w: NkiTensor,
    config: AttentionConfig,
) -> NkiTensor:
    """One decode step's sparse attention, traced inline after the front-fold.

    Dimensions:
        n_tokens: decode tokens, up to 128; n_heads: heads of this rank, up to 128.
        n_prior: selected keys per token; T = ceil(n_prior / 128) key tiles.
        kv_lora_rank: C, a multiple of 128 that fits a PSUM bank; L = C / 128 latent tiles.
        rope: R, up to 128; v_head_dim: up to 128; hidden: what the o-projection emits.

    Args:
        q_absorbed_sbuf: [128, L, n_tokens, n_heads] in SBUF.
        q_pe_sbuf: [128, n_tokens, n_heads] in SBUF, the first R partitions in use.
        kv_cache: [n_blocks, 1, block_size, R + C], read only.
        kv_row_cur: [n_tokens, R + C], `[k_pe | kv_latent]`.
        prior_rows: [128, n_tokens, T] int32; prior_key_pos: [128, n_tokens, T] float32; from `tables`.
        positions: [n_tokens] int32.
        out_absorb_w: [n_heads, v_head_dim, C]; o_proj_w: [n_heads * v_head_dim, hidden].
        config: from `plan.Plan.config`.

    Returns:
        [n_tokens, hidden] in the cache's type, this rank's part before the all-reduce.

    Notes:
        Rounding, with a bf16 cache: scores, softmax and both denominators and maxima are fp32; numerators, latent
        output, values and the result are rounded to bf16 once each.

    Pseudocode:
        for group of tokens:
            for token in group:
                rows = gather(cache);  features = transpose(rows)
                scores[:, token] = select(keep, features.T @ q, masked)
            weights = softmax numerators of the group
            for token in group:
                latent[token] = weights.T @ rows / sum(weights)
        values = out_absorb_w @ latent;  output = values.T @ o_proj_w
    """
    output = nl.ndarray((config.n_tokens, config.hidden), dtype=kv_cache.dtype, buffer=nl.shared_hbm, name="output")
    row_width = config.rope + config.kv_lora_rank
    cache_rows = kv_cache.reshape((kv_cache.shape[0] * kv_cache.shape[2], row_width))
    buffers = allocate(config, kv_cache.dtype)
    make_constants(buffers)
    load_tables(config, buffers, prior_rows, prior_key_pos, positions)
    load_current_features(config, buffers, kv_row_cur)
    for first, tokens in group_ranges(config):
        gathered = []
        for slot in range(tokens):
            rows = gather_rows(config, buffers, cache_rows, first + slot)
            features = make_features(config, buffers, rows, first + slot)
            score(config, buffers, features, q_absorbed_sbuf, q_pe_sbuf, first + slot, slot)
            gathered.append(rows)
        softmax_group(config, buffers, tokens)
        for slot in range(tokens):
            weighted_sum(config, buffers, gathered[slot], kv_row_cur, first + slot, slot)
    absorb_out(config, buffers, out_absorb_w)
    project_out(config, buffers, o_proj_w, output)
    return output


@nki.jit
def staged_attention(
    q_absorbed: NkiTensor,
    q_pe: NkiTensor,
    kv_cache: NkiTensor,
    kv_row_cur: NkiTensor,
    prior_rows: NkiTensor,
    prior_key_pos: NkiTensor,
    positions: NkiTensor,
    out_absorb_w: NkiTensor,
    o_proj_w: NkiTensor,
    config: AttentionConfig,
) -> NkiTensor:
    """`attend` on its own: stages the queries, which lie in HBM in the layouts of SBUF, first."""
    tokens, heads = config.n_tokens, config.n_heads
    absorbed = place(config, "q_absorbed", (P_MAX, latent_tiles(config), tokens, heads), q_absorbed.dtype)
    nisa.dma_copy(dst=absorbed, src=q_absorbed)
    rotary = place(config, "q_pe", (P_MAX, tokens, heads), q_pe.dtype)
    nisa.dma_copy(dst=rotary[0 : config.rope, :, :], src=q_pe[0 : config.rope, :, :])
    return attend(
        absorbed,
        rotary,
        kv_cache,
        kv_row_cur,
        prior_rows,
        prior_key_pos,
        positions,
        out_absorb_w,
        o_proj_w,
        config,
    )
