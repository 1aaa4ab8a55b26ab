"""Lanes of a head in the order of rotate-half RoPE, from checkpoints whose RoPE turns neighbouring lanes.

Interleaved RoPE turns lanes (2j, 2j + 1) of a head, rotate-half lanes (j, j + d/2). Scores of attention, and norms over
whole heads, do not depend on the order of the lanes as long as Q and K share it. So a caller reorders once, offline:
the output channels of the Q and K weights, their biases and gammas, and the cos and sin caches. V keeps its order.
"""

from __future__ import annotations

import torch

from common.checks import require_int, require_type


def to_rotate_half(tensor: torch.Tensor, head_dim: int, dim: int = -1) -> torch.Tensor:
    """Reorders the lanes of every head from interleaved to rotate-half: 2j goes to j, 2j + 1 to j + d/2.

    Args:
        tensor: any dtype, whole heads along `dim`. A torch.nn.Linear's weight [heads * head_dim, H] has them in dim 0,
            packed weights [H / 4, I, 4] in dim 1, a bias, a gamma and a cache [B, S, head_dim] in the last.
        head_dim: lanes of a head, an even number.
        dim: the dimension of the lanes.

    Returns:
        A new tensor of the same shape and dtype; bits are moved, not computed with.

    Raises:
        TypeError, ValueError: an argument is not as described.
    """
    axis, pairs = _require_heads(tensor, head_dim, dim)
    return _exchange(tensor, axis, (-1, pairs, 2))


def to_interleaved(tensor: torch.Tensor, head_dim: int, dim: int = -1) -> torch.Tensor:
    """Inverse of `to_rotate_half`: lane j goes to 2j, lane j + d/2 to 2j + 1. Arguments and errors are the same."""
    axis, pairs = _require_heads(tensor, head_dim, dim)
    return _exchange(tensor, axis, (-1, 2, pairs))


def _exchange(tensor: torch.Tensor, axis: int, lanes: tuple[int, int, int]) -> torch.Tensor:
    """Exchanges the last two of the three dimensions into which `lanes` splits `axis`."""
    return tensor.unflatten(axis, lanes).transpose(axis + 1, axis + 2).contiguous().reshape(tensor.shape)


def _require_heads(tensor: torch.Tensor, head_dim: int, dim: int) -> tuple[int, int]:
    """The dimension, counted from the front, and the pairs of lanes in a head."""
    require_type("tensor", tensor, torch.Tensor)
    if require_int("head_dim", head_dim, at_least=2) % 2:
        raise ValueError(f"head_dim is {head_dim}; accepted: an even number, RoPE rotates pairs of lanes")
    dims = tensor.dim()
    if not -dims <= require_int("dim", dim, at_least=-8) < dims:
        raise ValueError(f"dim is {dim}; accepted with a tensor {list(tensor.shape)}: {-dims} to {dims - 1}")
    lanes = tensor.shape[dim]
    if lanes == 0 or lanes % head_dim:
        raise ValueError(
            f"tensor is {list(tensor.shape)}, {lanes} lanes in dim {dim}; accepted: a multiple of head_dim {head_dim}"
        )
    return dim % dims, head_dim // 2
