"""What the front-fold should give, in fp64. Shares no code and no layout with the kernel."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch


class Front(NamedTuple):
    """Results of a front-fold.

    Attributes:
        q_absorbed: [n_tokens, n_heads, kv_lora_rank]; q_pe: [n_tokens, n_heads, rope].
        kv_row_cur: [n_tokens, rope + kv_lora_rank], `[k_pe | kv_latent]`.
    """

    q_absorbed: torch.Tensor
    q_pe: torch.Tensor
    kv_row_cur: torch.Tensor


def front_fold(
    hidden_states: torch.Tensor,
    wq_a: torch.Tensor,
    q_norm_w: torch.Tensor,
    wq_b: torch.Tensor,
    wkv_a: torch.Tensor,
    kv_norm_w: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_absorb_w: torch.Tensor,
    input_norm_w: torch.Tensor | None,
    norm_eps: float,
    dtype: torch.dtype = torch.float64,
    rounded_to: torch.dtype | None = None,
) -> Front:
    """The front-fold, in natural layouts; arguments as for the kernel.

    Args:
        dtype: what to compute in.
        rounded_to: None, or the type to round to where the kernel's documentation says that it rounds.
    """

    def rounded(values: torch.Tensor) -> torch.Tensor:
        return values if rounded_to is None else values.to(rounded_to).to(dtype)

    def norm(values: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(values, values.shape[-1:], gamma.to(dtype), norm_eps)

    heads, nope, rank = q_absorb_w.shape
    x = hidden_states.to(dtype)
    if input_norm_w is not None:
        x = rounded(norm(x, input_norm_w))
    low = rounded(norm(x @ wq_a.to(dtype), q_norm_w))
    queries = (low @ wq_b.to(dtype)).unflatten(-1, (heads, -1))
    absorbed = torch.einsum("thn,hnc->thc", rounded(queries[..., :nope]), q_absorb_w.to(dtype))
    q_pe = rotate(queries[..., nope:], cos[:, None].to(dtype), sin[:, None].to(dtype), layout="interleaved")
    latent, k_pe = (x @ wkv_a.to(dtype)).split([rank, cos.shape[-1] * 2], dim=-1)
    turned = rotate(k_pe, cos.to(dtype), sin.to(dtype), layout="interleaved")
    row = torch.cat([turned, norm(latent, kv_norm_w)], dim=-1)
    return Front(rounded(absorbed), rounded(q_pe), rounded(row))


def rotate(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, layout: Literal["interleaved", "half_split"]
) -> torch.Tensor:
    """RoPE: each pair of features as a complex number, times cos + i sin.

    Args:
        x: [..., rope].
        cos, sin: broadcastable to [..., rope / 2].
        layout: which features make a pair, (2i, 2i + 1) as in MLA, or (i, i + rope / 2) as in the indexer. Both are
            common and neither is a default: the wrong one gives plausible numbers.

    Raises:
        ValueError: there is no such layout.
    """
    turn = torch.complex(cos, sin)
    if layout == "interleaved":
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turn).flatten(-2)
    if layout == "half_split":
        turned = torch.complex(*x.chunk(2, dim=-1)) * turn
        return torch.cat([turned.real, turned.imag], dim=-1)
    raise ValueError(f"layout is {layout!r}; accepted: 'interleaved' or 'half_split'")
