"""The front-fold of an MLA decode layer: hidden states to absorbed queries and this step's cache row."""

import nki.isa as nisa
import nki.language as nl
from kernels.mla_decode.device.config import P_MAX
from kernels.mla_decode.device.front_buffers import FrontBuffers, allocate_front
from kernels.mla_decode.device.front_cache_row import pack_rows
from kernels.mla_decode.device.front_config import FrontConfig
from kernels.mla_decode.device.front_steps import normalise, project, project_for_all_heads, rotate_pairs, transpose
from kernels.mla_decode.device.placing import bank, place
from kernels.mla_decode.device.tiling import all_tokens, first_head, first_token, latent_tiles
from nki.language import NkiTensor


def mla_decode_qkv(
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
    """Makes what `mla_decode_attention` takes, and writes this step's rows to the cache.

    Dimensions:
        n_tokens, n_heads: up to 128; hidden, q_lora: any width.
        nope, rope: widths of a head's query without and with position, up to 128; rope even.
        kv_lora_rank: C, a multiple of 128 up to 512; L = C / 128.

    Args:
        hidden_states: [n_tokens, hidden].
        wq_a: [hidden, q_lora]; wq_b: [q_lora, n_heads * (nope + rope)].
        wkv_a: [hidden, C + rope], columns `[kv_latent | k_pe]`, the inverse order of a cache row.
        q_norm_w: [q_lora]; kv_norm_w: [C]; input_norm_w: [hidden] or None; float32.
        cos, sin: [n_tokens, rope / 2] float32, of each token's position.
        q_absorb_w: [n_heads, nope, C].
        kv_cache: [n_blocks, 1, block_size, rope + C], or bytes of a row in the format of `host.cache_format`; rows
            slot_mapping are written, no other.
        slot_mapping: [n_tokens] int32.
        norm_eps: of every norm.
        config: from `plan.Plan.front_config`.

    Returns:
        q_absorbed [128, L, n_tokens, n_heads] and q_pe [128, n_tokens, n_heads] in SBUF, and kv_row_cur
        [n_tokens, rope + C], `[k_pe | kv_latent]`, in HBM.

    Notes:
        Cores that share heads make half of the columns each of the first projections, and swap them.
        RoPE is interleaved: it turns pairs (2i, 2i + 1), and leaves them where they are.
        Rounding, with bf16 weights: projections, norms and rotation are fp32. Rounded to bf16 are a norm's result
        where a product reads it, a head's query before the absorb, and what is returned.

    Pseudocode:
        x = rms_norm(hidden_states)
        q = rms_norm(x @ wq_a) @ wq_b;  latent, k_pe = split(x @ wkv_a)
        kv_row_cur = [rope(k_pe) | rms_norm(latent)];  kv_cache[slot_mapping] = kv_row_cur
        for head: q_absorbed = q_nope @ q_absorb_w;  q_pe = rope(q_pe)
    """
    at = config.attention
    dtype = hidden_states.dtype
    buffers = allocate_front(config, dtype, input_norm_w != None)
    absorbed = place(at, "q_absorbed", (P_MAX, latent_tiles(at), at.n_tokens, at.n_heads), dtype)
    rotary = place(at, "q_pe", (P_MAX, at.n_tokens, at.n_heads), dtype)
    kv_row_cur = nl.ndarray(
        (all_tokens(at), at.rope + at.kv_lora_rank), dtype=dtype, buffer=nl.shared_hbm, name="kv_row_cur"
    )
    start = first_token(at)
    stop = start + at.n_tokens
    itemsize = 2 if dtype == nl.bfloat16 else 4
    nisa.memset(dst=buffers.row_of_ones, value=1.0, engine=nisa.engine.gpsimd)
    nisa.dma_copy(dst=buffers.x, src=hidden_states[start:stop, :])
    nisa.dma_copy(dst=buffers.cos, src=cos[start:stop, :])
    nisa.dma_copy(dst=buffers.sin, src=sin[start:stop, :])
    x = buffers.x
    if input_norm_w != None and buffers.x_normed != None:
        normalise(at, buffers, buffers.x_normed, x, input_norm_w, norm_eps)
        x = buffers.x_normed
    transpose(at, x, buffers.x_features, itemsize)
    slots, rows = slot_mapping[start:stop], kv_row_cur[start:stop, :]
    write_row(config, buffers, wkv_a, kv_norm_w, norm_eps, kv_cache, slots, rows)
    project_for_all_heads(config, buffers, buffers.x_features, wq_a, buffers.q_low)
    normalise(at, buffers, buffers.q_low_normed, buffers.q_low, q_norm_w, norm_eps)
    transpose(at, buffers.q_low_normed, buffers.q_low_features, itemsize)
    for first in range(0, at.n_heads, config.heads_per_pass):
        heads = min(config.heads_per_pass, at.n_heads - first)
        make_queries(config, buffers, wq_b, first, heads)
        for head in range(heads):
            absorb_query(config, buffers, q_absorb_w, first, head, absorbed, rotary)
    return absorbed, rotary, kv_row_cur


def write_row(
    config: FrontConfig,
    buffers: FrontBuffers,
    wkv_a: NkiTensor,
    kv_norm_w: NkiTensor,
    norm_eps: float,
    kv_cache: NkiTensor,
    slot_mapping: NkiTensor,
    kv_row_cur: NkiTensor,
) -> None:
    """Makes this step's rows, `[rope(k_pe) | rms_norm(kv_latent)]`, and puts them out and into the cache."""
    at = config.attention
    rank, rope, width = at.kv_lora_rank, at.rope, at.rope + at.kv_lora_rank
    project_for_all_heads(config, buffers, buffers.x_features, wkv_a, buffers.kv[:, 0, :])
    normalise(at, buffers, buffers.kv_row[:, 0, rope:width], buffers.kv[:, 0, 0:rank], kv_norm_w, norm_eps)
    rotate_pairs(buffers, buffers.kv_row[:, :, 0:rope], buffers.kv[:, :, rank : rank + rope])
    nisa.dma_copy(dst=buffers.slots, src=slot_mapping.reshape((at.n_tokens, 1)))
    made = buffers.kv_row[:, 0, :]
    if buffers.packed != None:
        made = pack_rows(at, buffers.packed, made)
    if first_head(at) > 0:
        return  # the core of the first heads has made the same rows
    nisa.dma_copy(dst=kv_row_cur, src=buffers.kv_row[:, 0, :])
    width = kv_cache.shape[3]
    cache_rows = kv_cache.reshape((kv_cache.shape[0] * kv_cache.shape[2], width))
    nisa.dma_copy(
        dst=cache_rows.ap(pattern=[[width, at.n_tokens], [1, width]], vector_offset=buffers.slots, indirect_dim=0),
        src=made,
        dge_mode=nisa.dge_mode.swdge,
    )


def make_queries(config: FrontConfig, buffers: FrontBuffers, wq_b: NkiTensor, first: int, heads: int) -> None:
    """Queries of some heads, token-major: projects, rounds the part without positions, rotates the other."""
    nope, rope = config.nope, config.attention.rope
    width = nope + rope
    made = buffers.q_heads[:, 0:heads, :]
    target = made.reshape((config.attention.n_tokens, heads * width))
    project(config, buffers, buffers.q_low_features, wq_b, (first_head(config.attention) + first) * width, target)
    nisa.tensor_copy(dst=buffers.q_nope[:, 0:heads, :], src=made[:, :, 0:nope], engine=nisa.engine.scalar)
    rotate_pairs(buffers, buffers.q_rope[:, 0:heads, :], made[:, :, nope:width])


def absorb_query(
    config: FrontConfig,
    buffers: FrontBuffers,
    q_absorb_w: NkiTensor,
    first: int,
    head: int,
    absorbed: NkiTensor,
    rotary: NkiTensor,
) -> None:
    """One head's query, feature-major; what needs no position goes into the latent space.

    absorbed[f, part, t, h] = sum_n q_nope[t, n] * q_absorb_w[first head + h, n, 128 part + f]
    rotary[f, t, h] = q_rope[t, f]
    """
    at = config.attention
    h = first + head
    features = buffers.q_nope_features[h % len(buffers.q_nope_features)]
    weights = buffers.absorb[h % len(buffers.absorb)]
    nisa.dma_copy(dst=weights, src=q_absorb_w[first_head(at) + h, :, :])
    turned = bank(at, "transposed_0", (config.nope, at.n_tokens), features.dtype)
    nisa.nc_transpose(dst=turned, data=buffers.q_nope[:, head, :], engine=nisa.engine.tensor)
    nisa.tensor_copy(dst=features, src=turned, engine=nisa.engine.vector)
    turned_rope = bank(at, "transposed_1", (at.rope, at.n_tokens), features.dtype)
    nisa.nc_transpose(dst=turned_rope, data=buffers.q_rope[:, head, :], engine=nisa.engine.tensor)
    nisa.tensor_copy(dst=rotary[0 : at.rope, :, h], src=turned_rope, engine=nisa.engine.scalar)
    total = bank(at, "absorbed_query", (P_MAX, latent_tiles(at), at.n_tokens), nl.float32)
    for part in range(latent_tiles(at)):
        nisa.nc_matmul(
            dst=total[:, part, :],
            stationary=weights[:, part * P_MAX : (part + 1) * P_MAX],
            moving=features,
            accumulate=False,
        )
    nisa.tensor_copy(dst=absorbed[:, :, :, h], src=total, engine=nisa.engine.vector)
