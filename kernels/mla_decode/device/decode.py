"""The kernels with the front-fold: alone, and fused with the attention."""

import nki
import nki.isa as nisa
import nki.language as nl
from kernels.mla_decode.device.front_config import FrontConfig
from kernels.mla_decode.device.front_fold import mla_decode_qkv
from kernels.mla_decode.device.kernel import mla_decode_attention
from kernels.mla_decode.device.tiling import all_heads, all_tokens, first_head, first_token
from nki.language import NkiTensor


@nki.jit
def fused_decode(
    hidden_states: NkiTensor,
    wq_a: NkiTensor,
    q_norm_w: NkiTensor,
    wq_b: NkiTensor,
    wkv_a: NkiTensor,
    kv_norm_w: NkiTensor,
    cos: NkiTensor,
    sin: NkiTensor,
    q_absorb_w: NkiTensor,
    kv_cache: NkiTensor,
    slot_mapping: NkiTensor,
    prior_rows: NkiTensor,
    prior_key_pos: NkiTensor,
    prior_rows_natural: NkiTensor,
    positions: NkiTensor,
    out_absorb_w: NkiTensor,
    o_proj_w: NkiTensor,
    n_prior: int,
    softmax_scale: float,
    input_norm_w: NkiTensor | None,
    norm_eps: float,
    config: FrontConfig,
) -> tuple[NkiTensor, NkiTensor]:
    """Hidden states in, the attention block's output [n_tokens, hidden] and kv_row_cur out, cache rows written.

    Arguments are those of `mla_decode_qkv`, then those of `mla_decode_attention`. The queries stay in SBUF. All of the
    step's rows are in the cache before a token's keys are read: tokens of one sequence see those before them.
    """
    absorbed, rotary, kv_row_cur = mla_decode_qkv(
        hidden_states,
        wq_a,
        q_norm_w,
        wq_b,
        wkv_a,
        kv_norm_w,
        cos,
        sin,
        q_absorb_w,
        kv_cache,
        slot_mapping,
        input_norm_w,
        norm_eps,
        config,
    )
    if config.attention.cores > 1:
        # Tokens of one sequence may lie on both cores, and select each other's rows; or one core writes all rows.
        nisa.core_barrier(kv_cache, (0, 1))
        nisa.core_barrier(kv_row_cur, (0, 1))
    output = mla_decode_attention(
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
        config.attention,
    )
    return output, kv_row_cur


@nki.jit
def stored_qkv(
    hidden_states: NkiTensor,
    wq_a: NkiTensor,
    q_norm_w: NkiTensor,
    wq_b: NkiTensor,
    wkv_a: NkiTensor,
    kv_norm_w: NkiTensor,
    cos: NkiTensor,
    sin: NkiTensor,
    q_absorb_w: NkiTensor,
    kv_cache: NkiTensor,
    slot_mapping: NkiTensor,
    input_norm_w: NkiTensor | None,
    norm_eps: float,
    config: FrontConfig,
) -> tuple[NkiTensor, NkiTensor, NkiTensor]:
    """`mla_decode_qkv` on its own: its queries go to HBM in the layouts of SBUF, q_pe without unused partitions."""
    absorbed, rotary, kv_row_cur = mla_decode_qkv(
        hidden_states,
        wq_a,
        q_norm_w,
        wq_b,
        wkv_a,
        kv_norm_w,
        cos,
        sin,
        q_absorb_w,
        kv_cache,
        slot_mapping,
        input_norm_w,
        norm_eps,
        config,
    )
    at = config.attention
    tokens, heads = all_tokens(at), all_heads(at)
    start, head = first_token(at), first_head(at)
    stop, stop_head = start + at.n_tokens, head + at.n_heads
    shape = (absorbed.shape[0], absorbed.shape[1], tokens, heads)
    q_absorbed = nl.ndarray(shape, dtype=absorbed.dtype, buffer=nl.shared_hbm, name="q_absorbed_out")
    nisa.dma_copy(dst=q_absorbed[:, :, start:stop, head:stop_head], src=absorbed)
    q_pe = nl.ndarray((at.rope, tokens, heads), dtype=rotary.dtype, buffer=nl.shared_hbm, name="q_pe_out")
    nisa.dma_copy(dst=q_pe[:, start:stop, head:stop_head], src=rotary[0 : at.rope, :, :])
    return q_absorbed, q_pe, kv_row_cur
