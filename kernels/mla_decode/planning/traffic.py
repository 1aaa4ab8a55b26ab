"""Bytes between HBM and the core, by purpose: what a plan moves, and what no plan avoids."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from common.tiling import ceil_div
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


def moved(
    dims: Dims, front: FrontDims | None, dma_transposed_chunks: int, shared: str = "tokens", tail_batches: int = 1
) -> HbmBytes:
    """What a plan moves where no slot is skipped: rows of all slots of the key tiles, this step's rows twice.

    Args:
        dims, front: the step.
        dma_transposed_chunks: latent tiles whose columns are read again.
        shared: what the cores share, "tokens" or "heads". Each reads all that belongs to its tokens and to its heads.
            Both read the norms' weights. The o-projection's are shared by columns, and so are those of the first
            projections by cores that share heads.
        tail_batches: of a core's tokens, each of which reads the tails' weights.
    """
    item, slots, tokens = dims.itemsize, dims.n_tokens * dims.key_tiles * P_MAX, dims.n_tokens
    of_tokens, of_heads = (dims.cores, 1) if shared == "heads" else (1, dims.cores)
    table_bytes = INT32_BYTES + FP32_BYTES + (INT32_BYTES if dma_transposed_chunks else 0)
    row_bytes = dims.cache_row_bytes + dma_transposed_chunks * P_MAX * item
    least = minimum(dims, front)
    weights = tail_batches * item * (of_heads * _absorb_elements(dims) + _o_proj_elements(dims))
    if front is not None:
        weights += of_heads * item * _query_elements(dims, front)
        low_columns = dims.cores * (front.q_lora + dims.row_width)
        if shared == "heads":
            low_columns = 2 * (ceil_div(front.q_lora, 2) + dims.row_width // 2)
        weights += item * dims.hidden * low_columns + dims.cores * FP32_BYTES * _gammas(dims, front)
    return dataclasses.replace(
        least,
        weights=weights,
        keys=of_tokens * (slots * row_bytes + 2 * tokens * dims.row_width * item),
        tables=of_tokens * (table_bytes * slots + tokens * P_MAX * INT32_BYTES),
        inputs=of_tokens * least.inputs,
    )


def minimum(dims: Dims, front: FrontDims | None) -> HbmBytes:
    """What no plan avoids: n_prior rows of each token, and everything else once."""
    item, tokens = dims.itemsize, dims.n_tokens
    attention = HbmBytes(
        keys=tokens * (dims.n_prior * dims.cache_row_bytes + dims.row_width * item),
        tables=tokens * (dims.n_prior * (INT32_BYTES + FP32_BYTES) + INT32_BYTES),
        queries=tokens * dims.n_heads * (dims.kv_lora_rank + dims.rope) * item,
        weights=(_absorb_elements(dims) + _o_proj_elements(dims)) * item,
        output=tokens * dims.hidden * item,
    )
    if front is None:
        return attention
    projections = dims.hidden * (front.q_lora + dims.row_width) + _query_elements(dims, front)
    return dataclasses.replace(
        attention,
        queries=0,
        weights=attention.weights + projections * item + _gammas(dims, front) * FP32_BYTES,
        inputs=tokens * (dims.hidden * item + dims.rope * FP32_BYTES + INT32_BYTES),
        rows_written=tokens * (dims.row_width * item + dims.cache_row_bytes),
    )


def _query_elements(dims: Dims, front: FrontDims) -> int:
    """Weights of the heads' queries, and of their absorb."""
    return dims.n_heads * (front.q_lora * (front.nope + dims.rope) + front.nope * dims.kv_lora_rank)


def _gammas(dims: Dims, front: FrontDims) -> int:
    """Weights of norms."""
    return front.q_lora + dims.kv_lora_rank + (dims.hidden if front.input_norm else 0)


def _absorb_elements(dims: Dims) -> int:
    return dims.n_heads * dims.v_head_dim * dims.kv_lora_rank


def _o_proj_elements(dims: Dims) -> int:
    return dims.n_heads * dims.v_head_dim * dims.hidden
