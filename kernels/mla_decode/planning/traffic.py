"""Bytes between HBM and the core, by purpose: what a plan moves, and what no plan avoids."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kernels.mla_decode.device.config import P_MAX
from kernels.mla_decode.planning.dims import Dims, FrontDims

FP32_BYTES = INT32_BYTES = 4


@dataclass(frozen=True)
class HbmBytes:
    """Bytes by purpose.

    Attributes:
        keys: rows of the cache and this step's rows, read.
        tables: the prior index and the positions.
        queries: where they come from HBM, which they do not behind the front-fold.
        weights: of projections and norms.
        output: the result.
        inputs: hidden states, cos, sin and slots of the front-fold.
        rows_written: this step's rows, to where they are returned and to the cache.
    """

    keys: int
    tables: int
    queries: int
    weights: int
    output: int
    inputs: int = 0
    rows_written: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, purpose) for purpose in PURPOSES)


PURPOSES = tuple(field.name for field in dataclasses.fields(HbmBytes))


def moved(dims: Dims, front: FrontDims | None, dma_transposed_chunks: int, tail_batches: int = 1) -> HbmBytes:
    """What a plan moves where no slot is skipped: rows of all slots of the key tiles, this step's rows twice.

    Each core reads all weights, those of the tails once for each of its `tail_batches`.
    """
    item, slots, tokens = dims.itemsize, dims.n_tokens * dims.key_tiles * P_MAX, dims.n_tokens
    table_bytes = INT32_BYTES + FP32_BYTES + (INT32_BYTES if dma_transposed_chunks else 0)
    least = minimum(dims, front)
    return dataclasses.replace(
        least,
        weights=dims.cores * (least.weights + (tail_batches - 1) * _tail_weights(dims) * item),
        keys=slots * (dims.cache_row_bytes + dma_transposed_chunks * P_MAX * item) + 2 * tokens * dims.row_width * item,
        tables=table_bytes * slots + tokens * P_MAX * INT32_BYTES,
    )


def minimum(dims: Dims, front: FrontDims | None) -> HbmBytes:
    """What no plan avoids: n_prior rows of each token, and everything else once."""
    item, tokens = dims.itemsize, dims.n_tokens
    attention = HbmBytes(
        keys=tokens * (dims.n_prior * dims.cache_row_bytes + dims.row_width * item),
        tables=tokens * (dims.n_prior * (INT32_BYTES + FP32_BYTES) + INT32_BYTES),
        queries=tokens * dims.n_heads * (dims.kv_lora_rank + dims.rope) * item,
        weights=_tail_weights(dims) * item,
        output=tokens * dims.hidden * item,
    )
    if front is None:
        return attention
    gammas = front.q_lora + dims.kv_lora_rank + (dims.hidden if front.input_norm else 0)
    return dataclasses.replace(
        attention,
        queries=0,
        weights=attention.weights + _front_elements(dims, front) * item + gammas * FP32_BYTES,
        inputs=tokens * (dims.hidden * item + dims.rope * FP32_BYTES + INT32_BYTES),
        rows_written=tokens * (dims.row_width * item + dims.cache_row_bytes),
    )


def _front_elements(dims: Dims, front: FrontDims) -> int:
    query = front.nope + dims.rope
    projections = dims.hidden * (front.q_lora + dims.row_width) + front.q_lora * dims.n_heads * query
    return projections + dims.n_heads * front.nope * dims.kv_lora_rank


def _tail_weights(dims: Dims) -> int:
    """Elements of the out-absorb and the o-projection."""
    return dims.n_heads * dims.v_head_dim * (dims.kv_lora_rank + dims.hidden)
