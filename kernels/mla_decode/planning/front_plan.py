"""The front-fold's part of a plan."""

from __future__ import annotations

from common.budget import SBUF_ALIGNMENT_BYTES, SbufLedger
from common.tiling import ceil_div
from kernels.mla_decode.device.config import P_MAX
from kernels.mla_decode.device.front_config import FRONT_BUFFERS, PROJECTION_BANKS
from kernels.mla_decode.planning.dims import BANK_FP32, Dims, FrontDims
from kernels.mla_decode.planning.traffic import FP32_BYTES, INT32_BYTES


def heads_per_pass(dims: Dims, front: FrontDims) -> int:
    """Heads whose queries fit in the PSUM banks of a projection's pass."""
    return min(dims.n_heads, PROJECTION_BANKS * BANK_FP32 // (front.nope + dims.rope))


def pass_columns(dims: Dims, front: FrontDims) -> int:
    """Columns of a weight buffer: the widest projection's, up to a pass."""
    queries = heads_per_pass(dims, front) * (front.nope + dims.rope)
    return max(queries, min(PROJECTION_BANKS * BANK_FP32, max(front.q_lora, dims.row_width)))


def projected_columns(dims: Dims, front: FrontDims, shared: str) -> int:
    """Columns that a core projects at once, at most: the widest projection's, up to a pass.

    Cores that share heads make half of the columns each of what all heads need.
    """
    sharing = 2 if shared == "heads" else 1
    queries = heads_per_pass(dims, front) * (front.nope + dims.rope)
    common = ceil_div(max(front.q_lora, dims.row_width), sharing)
    return max(queries, min(pass_columns(dims, front), common))


def allocate(dims: Dims, front: FrontDims, ledger: SbufLedger) -> None:
    """Takes what a core's front-fold needs, of its part of the step."""
    item, tokens, rope, rank = dims.itemsize, dims.n_tokens, dims.rope, dims.kv_lora_rank
    heads = heads_per_pass(dims, front)
    x_tiles, q_tiles = ceil_div(dims.hidden, P_MAX), ceil_div(front.q_lora, P_MAX)
    turns = min(FRONT_BUFFERS, dims.n_heads)
    widest = max(front.q_lora, rank, dims.hidden if front.input_norm else 0)
    ledger.allocate("x", item * dims.hidden)
    if front.input_norm:
        ledger.allocate("x_normed", item * dims.hidden)
    ledger.allocate("x_features", item * x_tiles * tokens)
    rotating(ledger, "front_weights", min(FRONT_BUFFERS, max(x_tiles, q_tiles)), item * pass_columns(dims, front))
    ledger.allocate("q_low", FP32_BYTES * front.q_lora)
    ledger.allocate("q_low_normed", item * front.q_lora)
    ledger.allocate("q_low_features", item * q_tiles * tokens)
    ledger.allocate("q_heads", FP32_BYTES * heads * (front.nope + rope))
    ledger.allocate("q_nope", item * heads * front.nope)
    ledger.allocate("q_rope", item * heads * rope)
    rotating(ledger, "q_nope_features", turns, item * tokens)
    rotating(ledger, "q_absorb", turns, item * rank)
    ledger.allocate("kv", FP32_BYTES * dims.row_width)
    ledger.allocate("kv_row", item * dims.row_width)
    if dims.fp8_cache:
        ledger.allocate("packed_rows", dims.cache_row_bytes)
        for name in ("group_largest", "group_inverse"):
            ledger.allocate(name, FP32_BYTES * dims.latent_tiles)
    for name in ("cos", "sin"):
        ledger.allocate(name, FP32_BYTES * rope // 2)
    for name in ("product_a", "product_b"):
        ledger.allocate(name, FP32_BYTES * heads * rope // 2)
    gammas = min(FRONT_BUFFERS, ceil_div(widest, BANK_FP32))
    rotating(ledger, "gamma_row", gammas, FP32_BYTES * min(widest, BANK_FP32))
    ledger.allocate("row_of_ones", FP32_BYTES * tokens)
    for name in ("square_sum", "inverse_rms"):
        ledger.allocate(name, FP32_BYTES)
    ledger.allocate("slots", INT32_BYTES)


def rotating(
    ledger: SbufLedger, name: str, count: int, size_bytes: int, alignment_bytes: int = SBUF_ALIGNMENT_BYTES
) -> None:
    """`count` buffers of one kind."""
    for i in range(count):
        ledger.allocate(f"{name}_{i}", size_bytes, alignment_bytes)
