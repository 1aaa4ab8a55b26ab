"""The steps as torch custom ops, so that they can be traced, compiled and exported.

`torch.ops.mla_decode.attention`, `.qkv` and `.step` take the arguments of `mla_decode_attention`, `mla_decode_qkv` and
`mla_decode`, target and cores by name. `qkv` and `step` write to `kv_cache`, and say so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from kernels.mla_decode import front_shim, shim


@torch.library.custom_op("mla_decode::attention", mutates_args=())
def attention(
    q_absorbed: torch.Tensor,
    q_pe: torch.Tensor,
    kv_cache: torch.Tensor,
    kv_row_cur: torch.Tensor,
    prior_rows: torch.Tensor,
    prior_key_pos: torch.Tensor,
    prior_rows_natural: torch.Tensor,
    positions: torch.Tensor,
    out_absorb_w: torch.Tensor,
    o_proj_w: torch.Tensor,
    n_prior: int,
    softmax_scale: float,
    *,
    target: str = "trn2",
    lnc: int = 1,
    dma_transposed_chunks: int = 0,
) -> torch.Tensor:
    """See `shim.mla_decode_attention`."""
    return shim.mla_decode_attention(
        q_absorbed,
        q_pe,
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
        target=target,
        lnc=lnc,
        dma_transposed_chunks=dma_transposed_chunks,
    )


@torch.library.custom_op("mla_decode::qkv", mutates_args=("kv_cache",))
def qkv(
    hidden_states: torch.Tensor,
    wq_a: torch.Tensor,
    q_norm_w: torch.Tensor,
    wq_b: torch.Tensor,
    wkv_a: torch.Tensor,
    kv_norm_w: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_absorb_w: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    input_norm_w: torch.Tensor | None = None,
    norm_eps: float = 1e-6,
    *,
    target: str = "trn2",
    lnc: int = 1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `front_shim.mla_decode_qkv`."""
    return front_shim.mla_decode_qkv(
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
        target=target,
        lnc=lnc,
    )


@torch.library.custom_op("mla_decode::step", mutates_args=("kv_cache",))
def step(
    hidden_states: torch.Tensor,
    wq_a: torch.Tensor,
    q_norm_w: torch.Tensor,
    wq_b: torch.Tensor,
    wkv_a: torch.Tensor,
    kv_norm_w: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_absorb_w: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    prior_rows: torch.Tensor,
    prior_key_pos: torch.Tensor,
    prior_rows_natural: torch.Tensor,
    positions: torch.Tensor,
    out_absorb_w: torch.Tensor,
    o_proj_w: torch.Tensor,
    n_prior: int,
    softmax_scale: float,
    input_norm_w: torch.Tensor | None = None,
    norm_eps: float = 1e-6,
    *,
    target: str = "trn2",
    lnc: int = 1,
    dma_transposed_chunks: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `front_shim.mla_decode`."""
    return front_shim.mla_decode(
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
        prior_rows,
        prior_key_pos,
        prior_rows_natural,
        positions,
        out_absorb_w,
        o_proj_w,
        n_prior,
        softmax_scale,
        input_norm_w,
        norm_eps,
        target=target,
        lnc=lnc,
        dma_transposed_chunks=dma_transposed_chunks,
    )


def _bound(function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments by name."""
    return dict(inspect.signature(function).bind(*arguments, **named).arguments)


@attention.register_fake
def _(*arguments: Any, **named: Any) -> torch.Tensor:
    given = _bound(shim.mla_decode_attention, arguments, named)
    return given["q_absorbed"].new_empty(given["q_absorbed"].shape[0], given["o_proj_w"].shape[1])


@qkv.register_fake
def _(*arguments: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    given = _bound(front_shim.mla_decode_qkv, arguments, named)
    cache, tokens = given["kv_cache"], given["hidden_states"].shape[0]
    heads, _, rank = given["q_absorb_w"].shape
    rope = cache.shape[3] - rank
    return (
        cache.new_empty(tokens, heads, rank),
        cache.new_empty(tokens, heads, rope),
        cache.new_empty(tokens, rope + rank),
    )


@step.register_fake
def _(*arguments: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
    given = _bound(front_shim.mla_decode, arguments, named)
    cache, tokens = given["kv_cache"], given["hidden_states"].shape[0]
    return cache.new_empty(tokens, given["o_proj_w"].shape[1]), cache.new_empty(tokens, cache.shape[3])
