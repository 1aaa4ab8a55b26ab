"""What one sparse MLA decode step should give, in fp64 or fp32. Shares no code and no layout with the kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def attention(
    q_absorbed: torch.Tensor,
    q_pe: torch.Tensor,
    keys: Sequence[torch.Tensor],
    out_absorb_w: torch.Tensor,
    o_proj_w: torch.Tensor,
    softmax_scale: float,
    dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    """Attention of each token over its own cache rows, then out-absorb and o-projection.

    Args:
        q_absorbed: [n_tokens, n_heads, kv_lora_rank], the query in the cache's latent space.
        q_pe: [n_tokens, n_heads, rope].
        keys: for each token the cache rows it sees, its own last: [n_keys, rope + kv_lora_rank], `[k_pe | latent]`.
        out_absorb_w: [n_heads, v_head_dim, kv_lora_rank].
        o_proj_w: [n_heads * v_head_dim, hidden].
        softmax_scale: applied to the scores.
        dtype: what to compute in.

    Returns:
        [n_tokens, hidden] of `dtype`.
    """
    rope = q_pe.shape[-1]
    heads = []
    for token, rows in enumerate(keys):
        k_pe, latent = rows[:, :rope].to(dtype), rows[:, rope:].to(dtype)
        scores = q_absorbed[token].to(dtype) @ latent.T + q_pe[token].to(dtype) @ k_pe.T
        weights = torch.softmax(scores * softmax_scale, dim=-1)
        value = torch.einsum("hl,hvl->hv", weights @ latent, out_absorb_w.to(dtype))
        heads.append(value.reshape(-1))
    return torch.stack(heads) @ o_proj_w.to(dtype)


def rounded_attention(
    q_absorbed: torch.Tensor,
    q_pe: torch.Tensor,
    keys: Sequence[torch.Tensor],
    out_absorb_w: torch.Tensor,
    o_proj_w: torch.Tensor,
    softmax_scale: float,
) -> torch.Tensor:
    """`attention` in fp32, rounded to the cache's type where the kernel's documentation says that it rounds.

    Those points are the softmax's numerators, the latent output, the values and the result. This is what the type
    costs: a kernel whose error is larger loses something else.
    """
    rope, dtype = q_pe.shape[-1], keys[0].dtype
    latents = []
    for token, rows in enumerate(keys):
        k_pe, latent = rows[:, :rope].float(), rows[:, rope:].float()
        scores = q_absorbed[token].float() @ latent.T + q_pe[token].float() @ k_pe.T
        numerators = torch.exp((scores - scores.amax(dim=-1, keepdim=True)) * softmax_scale).to(dtype).float()
        latents.append((numerators @ latent / numerators.sum(dim=-1, keepdim=True)).to(dtype).float())
    values = torch.einsum("thl,hvl->thv", torch.stack(latents), out_absorb_w.float()).to(dtype).float()
    return (values.reshape(len(keys), -1) @ o_proj_w.float()).to(dtype)


def visible_rows(
    kv_cache: torch.Tensor,
    selected: Sequence[Sequence[int]],
    positions: Sequence[int],
    block_table: torch.Tensor,
    kv_row_cur: torch.Tensor,
) -> list[torch.Tensor]:
    """For each token the rows of its selected keys before its own position, then its own row.

    Args:
        kv_cache: [n_blocks, 1, block_size, rope + kv_lora_rank].
        selected: key positions per token, valid ones only.
        positions: each token's position.
        block_table: [n_tokens, max_blocks].
        kv_row_cur: [n_tokens, rope + kv_lora_rank].
    """
    block_size = kv_cache.shape[2]
    found = []
    for token, keys in enumerate(selected):
        rows = [
            kv_cache[int(block_table[token, key // block_size]), 0, key % block_size]
            for key in keys
            if key < positions[token]
        ]
        found.append(torch.stack([*rows, kv_row_cur[token]]))
    return found
