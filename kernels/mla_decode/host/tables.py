"""The prior index: which cache rows a token's selected keys lie in, and which of them it may see."""

from __future__ import annotations

from typing import NamedTuple

import torch

PARTITIONS = 128

LAST_POSITION = 2**24
"""The kernel compares positions in fp32."""

LARGEST_ROW = 2**31 - 1
"""Rows are int32, and so is the number one beyond the last, which skipped slots get."""


class PriorIndex(NamedTuple):
    """Tables of one decode step, each [128, n_tokens, ceil(n_prior / 128)].

    Attributes:
        prior_rows: int32, flat cache rows in the order in which one batched gather over the tile consumes them.
        prior_key_pos: float32, `[p, t, tile]` is the position of key `128 * tile + p` of token t.
        prior_rows_natural: uint32, the rows in the order of `prior_key_pos`.
    """

    prior_rows: torch.Tensor
    prior_key_pos: torch.Tensor
    prior_rows_natural: torch.Tensor


def build_prior_index(
    selected: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    n_rows: int,
    n_prior: int,
) -> PriorIndex:
    """Turns an indexer's selection into the attention kernel's three tables.

    A selected position is kept where it is a position before the token's own whose block the table names. Everything
    else - negative marks, positions at or beyond the token's own, blocks outside the table or the cache - becomes a
    slot that changes nothing: its row lies outside the cache, so that the gather skips it, and its position is the
    token's own, so that the mask drops it. Slots beyond the selection's width are such slots too.

    Args:
        selected: [n_tokens, up to n_prior] int32 or int64, absolute key positions; what is no key may hold anything.
        positions: [n_tokens] int32 or int64, each token's own position.
        block_table: [n_tokens, max_blocks] int32 or int64, cache block of each `block_size` positions.
        block_size: rows of a cache block.
        n_rows: rows of the cache, blocks times `block_size`.
        n_prior: keys per token that the kernel reads.

    Raises:
        TypeError, ValueError: naming the argument, what it is and what is accepted.
    """
    require_selection(selected, positions, block_table, block_size, n_rows, n_prior)
    tokens = positions.shape[0]
    tiles = -(-n_prior // PARTITIONS)
    keys = torch.full((tokens, tiles * PARTITIONS), -1, dtype=torch.int64)
    keys[:, : selected.shape[1]] = selected.to(torch.int64)
    own = positions.to(torch.int64)[:, None]
    block_index = keys.clamp(min=0) // block_size
    in_table = (keys >= 0) & (keys < own) & (block_index < block_table.shape[1])
    table = block_table.to(torch.int64)
    blocks = table.gather(1, torch.where(in_table, block_index, torch.zeros_like(block_index)))
    kept = in_table & (blocks >= 0) & (blocks < n_rows // block_size)
    rows = torch.where(kept, blocks * block_size + keys % block_size, torch.full_like(keys, n_rows))
    key_pos = torch.where(kept, keys, own.expand_as(keys))
    return PriorIndex(
        _consumption_order(rows, tiles).to(torch.int32),
        _key_major(key_pos, tiles).to(torch.float32),
        _key_major(rows, tiles).to(torch.int32).view(torch.uint32),
    )


def _key_major(values: torch.Tensor, tiles: int) -> torch.Tensor:
    """[n_tokens, 128 * tiles] to [128, n_tokens, tiles]: key `128 * tile + p` to `[p, t, tile]`."""
    return values.reshape(-1, tiles, PARTITIONS).permute(2, 0, 1).contiguous()


def _consumption_order(rows: torch.Tensor, tiles: int) -> torch.Tensor:
    """Rows where the batched gather looks for them.

    The gather fills its destination `[128, tiles, row]` partition by partition, and takes the index tile column by
    column: destination `(p, tile)` is number `i = p * tiles + tile` and takes index element `[i % 128, i // 128]`.
    See `nkisim.addressing` for where this reading is stated.
    """
    by_destination = _key_major(rows, tiles).permute(1, 0, 2).reshape(rows.shape[0], -1)
    return by_destination.reshape(-1, tiles, PARTITIONS).permute(2, 0, 1).contiguous()


def require_selection(
    selected: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    n_rows: int,
    n_prior: int,
) -> None:
    """Sizes and types that agree; values that are no key are no error.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    for name, size, most in (
        ("block_size", block_size, LARGEST_ROW),
        ("n_rows", n_rows, LARGEST_ROW),
        ("n_prior", n_prior, LAST_POSITION),
    ):
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= most:
            raise ValueError(f"{name} is {size!r}; accepted: an integer from 1 to {most}")
    _check_integers("positions", positions, 1)
    tokens = positions.shape[0]
    for name, value in (("selected", selected), ("block_table", block_table)):
        _check_integers(name, value, 2)
        if value.shape[0] != tokens:
            raise ValueError(f"{name} has {value.shape[0]} rows; accepted: {tokens}, one for each of positions")
        if value.device != positions.device:
            raise ValueError(f"{name} is on {value.device}; accepted: {positions.device}, where positions is")
    if n_rows % block_size:
        raise ValueError(f"n_rows is {n_rows}; accepted: a multiple of block_size {block_size}")
    if selected.shape[1] > n_prior:
        raise ValueError(f"selected names {selected.shape[1]} keys per token; accepted: up to n_prior {n_prior}")
    for position in (int(positions.min()), int(positions.max())):
        if not 0 <= position <= LAST_POSITION:
            raise ValueError(f"positions has {position}; accepted: 0 to {LAST_POSITION}, exact in fp32")


def _check_integers(name: str, value: torch.Tensor, dims: int) -> None:
    if not isinstance(value, torch.Tensor) or value.dtype not in (torch.int32, torch.int64):
        kind = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
        raise TypeError(f"{name} is {kind}; accepted: an int32 or int64 tensor")
    if not is_dense(value):
        raise TypeError(f"{name} is sparse, nested or a lazy negation; accepted: a dense tensor")
    if value.device.type == "meta":
        raise ValueError(f"{name} is on device meta and has no values; accepted: a device that has them")
    if value.dim() != dims or value.numel() == 0:
        raise ValueError(f"{name} has shape {list(value.shape)}; accepted: {dims} dimensions, not empty")


def is_dense(value: torch.Tensor) -> bool:
    """Whether memory holds the tensor's elements as they are, each where its strides say."""
    return value.layout is torch.strided and not value.is_nested and not value.is_neg()
