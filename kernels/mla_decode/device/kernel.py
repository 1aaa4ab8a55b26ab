"""MLA decode attention over the prior keys that an indexer selected."""

import nki
import nki.isa as nisa
import nki.language as nl
from kernels.mla_decode.device.buffers import allocate
from kernels.mla_decode.device.config import P_MAX, AttentionConfig
from kernels.mla_decode.device.gather import (
    clear_features,
    gather_rows,
    load_current_features,
    load_tables,
)
from kernels.mla_decode.device.placing import place
from kernels.mla_decode.device.scores import make_features, score
from kernels.mla_decode.device.softmax import softmax_group
from kernels.mla_decode.device.tails import absorb_out, exchange_values, project_out
from kernels.mla_decode.device.tiling import (
    all_tokens,
    first_head,
    first_token,
    group_ranges,
    latent_tiles,
    tail_ranges,
)
from kernels.mla_decode.device.values import sum_group
from nki.language import NkiTensor


def mla_decode_attention(
    q_absorbed_sbuf: NkiTensor,
    q_pe_sbuf: NkiTensor,
    kv_cache: NkiTensor,
    kv_row_cur: NkiTensor,
    prior_rows: NkiTensor,
    prior_key_pos: NkiTensor,
    prior_rows_natural: NkiTensor,
    positions: NkiTensor,
    out_absorb_w: NkiTensor,
    o_proj_w: NkiTensor,
    n_prior: int,
    softmax_scale: float,
    config: AttentionConfig,
) -> NkiTensor:
    """One decode step's sparse attention, traced inline after the front-fold.

    Dimensions:
        n_tokens: decode tokens, up to 128; n_heads: heads of this rank, up to 128.
        n_prior: selected keys per token; T = ceil(n_prior / 128) key tiles.
        kv_lora_rank: C, a multiple of 128 that fits a PSUM bank; L = C / 128 latent tiles.
        rope: R, even, up to 128; v_head_dim: up to 128; hidden: what the o-projection emits.

    Args:
        q_absorbed_sbuf: [128, L, n_tokens, n_heads] in SBUF; on two cores each has its half of the tokens or heads.
        q_pe_sbuf: [128, n_tokens, n_heads] in SBUF, likewise, the first R partitions in use.
        kv_cache: [n_blocks, 1, block_size, R + C], or [n_blocks, 1, block_size, bytes of a row] uint8 in the format
            of `host.cache_format`; read only.
        kv_row_cur: [n_tokens, R + C], `[k_pe | kv_latent]`.
        prior_rows: [128, n_tokens, T] int32; prior_key_pos: [128, n_tokens, T] float32; prior_rows_natural:
            [128, n_tokens, T] uint32, read only where the plan has chunks transposed by DMA. From `host.tables`.
        positions: [n_tokens] int32.
        out_absorb_w: [n_heads, v_head_dim, C]; o_proj_w: [n_heads * v_head_dim, hidden].
        n_prior: as the plan has it.
        softmax_scale: applied to the scores.
        config: from `plan.Plan.config`: a plan's schedule and addresses cannot be worked out in a trace, so they
            come with the call, after the arguments of the public kernel.

    Returns:
        [n_tokens, hidden] in the weights' type, this rank's part before the all-reduce.

    Notes:
        Rounding, with bf16 weights: an fp8 row's numbers once, when they are dequantised. Scores, softmax and both
        denominators and maxima are fp32; numerators, latent output, values and the result are rounded to bf16 once
        each.
        Two cores take half of the tokens, or of the heads, each. With half of the heads both gather all keys, and
        each reads its heads' weights. Either way they exchange values, v_head_dim numbers a head and token, and each
        projects all of them to half of the columns.
        The mask replaces a key's score, but its row is still read, unless its index lies outside the cache, and a
        weight of 0 times a NaN is a NaN. Tables must therefore give empty slots a row outside the cache, as
        `host.tables.build_prior_index` does.

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
    assert n_prior == config.n_prior, f"n_prior is {n_prior}; accepted: {config.n_prior}, which the plan is made for"
    shape = (all_tokens(config), config.hidden)
    output = nl.ndarray(shape, dtype=kv_row_cur.dtype, buffer=nl.shared_hbm, name="output")
    start = first_token(config)
    stop = start + config.n_tokens
    own_rows = kv_row_cur[start:stop, :]
    cache_rows = kv_cache.reshape((kv_cache.shape[0] * kv_cache.shape[2], kv_cache.shape[3]))
    buffers = allocate(config, kv_row_cur.dtype)
    if buffers.key_major != None:
        nisa.memset(dst=buffers.key_major.ones, value=1.0, engine=nisa.engine.gpsimd)
    load_tables(
        config,
        buffers,
        prior_rows[:, start:stop, :],
        prior_key_pos[:, start:stop, :],
        prior_rows_natural[:, start:stop, :],
        positions[start:stop],
    )
    load_current_features(config, buffers, own_rows)
    clear_features(config, buffers)
    waiting: list[NkiTensor] = []
    waiting_first = 0
    for first, tokens in group_ranges(config):
        gathered = []
        for slot in range(tokens):
            rows = gather_rows(config, buffers, cache_rows, first + slot)
            features = make_features(config, buffers, cache_rows, rows, first + slot)
            score(config, buffers, features, q_absorbed_sbuf, q_pe_sbuf, first + slot, slot)
            gathered.append(rows)
            if slot == 0:
                sum_group(config, buffers, waiting, own_rows, waiting_first)
        softmax_group(config, buffers, tokens, softmax_scale)
        waiting, waiting_first = gathered, first
        if not config.schedule.late_weighted_sum:
            sum_group(config, buffers, waiting, own_rows, waiting_first)
            waiting = []
    sum_group(config, buffers, waiting, own_rows, waiting_first)
    for first, stop_token in tail_ranges(config):
        absorb_out(config, buffers, out_absorb_w, first, stop_token)
        exchange_values(config, buffers, first, stop_token)
        project_out(config, buffers, o_proj_w, output, first, stop_token)
    return output


@nki.jit
def staged_attention(
    q_absorbed: NkiTensor,
    q_pe: NkiTensor,
    kv_cache: NkiTensor,
    kv_row_cur: NkiTensor,
    prior_rows: NkiTensor,
    prior_key_pos: NkiTensor,
    prior_rows_natural: NkiTensor,
    positions: NkiTensor,
    out_absorb_w: NkiTensor,
    o_proj_w: NkiTensor,
    n_prior: int,
    softmax_scale: float,
    config: AttentionConfig,
) -> NkiTensor:
    """`mla_decode_attention` on its own: first brings the queries from HBM, where they lie as they will in SBUF."""
    tokens, heads = config.n_tokens, config.n_heads
    start, head = first_token(config), first_head(config)
    stop, stop_head = start + tokens, head + heads
    absorbed = place(config, "q_absorbed", (P_MAX, latent_tiles(config), tokens, heads), q_absorbed.dtype)
    nisa.dma_copy(dst=absorbed, src=q_absorbed[:, :, start:stop, head:stop_head])
    rotary = place(config, "q_pe", (P_MAX, tokens, heads), q_pe.dtype)
    nisa.dma_copy(dst=rotary[0 : config.rope, :, :], src=q_pe[0 : config.rope, start:stop, head:stop_head])
    return mla_decode_attention(
        absorbed,
        rotary,
        kv_cache,
        kv_row_cur,
        prior_rows,
        prior_key_pos,
        prior_rows_natural,
        positions,
        out_absorb_w,
        o_proj_w,
        n_prior,
        softmax_scale,
        config,
    )
