"""The norm and RoPE pass in a plan: what it is asked to do, its buffers and its HBM traffic."""

from __future__ import annotations

from kernels.qkv_cte.device.config import PASS_BUFFERS, NormRopePass, PassSegment
from kernels.qkv_cte.planning.dims import Dims

FP32_BYTES, BF16_BYTES = 4, 2


def make_pass(
    dims: Dims,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    q_gamma_bytes: int = 0,
    k_gamma_bytes: int = 0,
    cache_bytes: int = 0,
    eps: float = 1e-6,
    replica_groups: tuple[tuple[int, ...], ...] | None = None,
) -> NormRopePass | None:
    """The pass that a call asks for; None where nothing is normalised or rotated.

    Args:
        dims: sizes of the call.
        num_heads, num_kv_heads, head_dim: its segments; without K/V heads all of it is the Q segment.
        q_gamma_bytes, k_gamma_bytes: bytes of an element of gamma; 0 leaves the segment without a norm.
        cache_bytes: bytes of an element of the cos and sin caches; 0 without RoPE.
        eps: added to the mean square.
        replica_groups: equally long groups of ranks that share the heads; None where this rank holds all.
    """
    segments: list[PassSegment] = []
    first_column = sum_column = 0
    for name, heads, gamma_bytes in (("q", num_heads, q_gamma_bytes), ("k", num_kv_heads, k_gamma_bytes)):
        width = heads * head_dim
        if width and (gamma_bytes or cache_bytes):
            segments.append(PassSegment(name, first_column, width, gamma_bytes, sum_column))
            sum_column += dims.s_tiles if gamma_bytes else 0
        first_column += width
    if not segments:
        return None
    groups = replica_groups if sum_column else None
    return NormRopePass(tuple(segments), head_dim, cache_bytes, eps, groups, sum_column)


def lasting_buffers(norm_rope: NormRopePass | None) -> list[tuple[str, int]]:
    """Names and bytes per partition of what lives from the first S-block to the end of the pass."""
    if norm_rope is None or not norm_rope.sum_columns:
        return []
    return [("sum_squares", FP32_BYTES * norm_rope.sum_columns)]


def projection_buffers(norm_rope: NormRopePass | None) -> list[tuple[str, int]]:
    """What the sums of squares need while the projection runs."""
    normalised = _normalised(norm_rope)
    return [("squares", BF16_BYTES * max(segment.width for segment in normalised))] if normalised else []


def kept_buffers(norm_rope: NormRopePass) -> list[tuple[str, int]]:
    """What the pass keeps for all S-tiles."""
    normalised = _normalised(norm_rope)
    gammas = [(f"gamma_{segment.name}", segment.gamma_bytes * segment.width) for segment in normalised]
    return inv_rms_buffers(norm_rope) + gammas


def inv_rms_buffers(norm_rope: NormRopePass) -> list[tuple[str, int]]:
    """What the all-reduce gives and `rsqrt` makes of it."""
    return [("inv_rms", FP32_BYTES * norm_rope.sum_columns)] if norm_rope.sum_columns else []


def rotating_buffers(dims: Dims, norm_rope: NormRopePass) -> list[tuple[str, int]]:
    """What one segment of one S-tile needs, as often as it rotates."""
    widest = max(segment.width for segment in norm_rope.segments)
    buffers = [("pass_rows", dims.format.output_bytes * widest)]
    if norm_rope.cache_bytes:
        angle = FP32_BYTES * norm_rope.head_dim
        buffers += [("scaled_cos", angle), ("scaled_sin", angle)]
        buffers += [("straight", FP32_BYTES * widest), ("crossed", FP32_BYTES * widest)]
    rotating = _numbered(buffers, min(PASS_BUFFERS, dims.s_tiles * len(norm_rope.segments)))
    if norm_rope.cache_bytes:
        cache = norm_rope.cache_bytes * norm_rope.head_dim
        rotating += _numbered([("cos", cache), ("sin", cache)], min(PASS_BUFFERS, dims.s_tiles))
    return rotating


def gamma_bytes(dims: Dims, norm_rope: NormRopePass | None) -> int:
    """HBM bytes of the gammas, which each core reads once."""
    return dims.cores * sum(segment.gamma_bytes * segment.width for segment in _normalised(norm_rope))


def cache_bytes(dims: Dims, norm_rope: NormRopePass | None) -> int:
    """HBM bytes of both RoPE caches, of which each core reads the rows of its tokens."""
    return 0 if norm_rope is None else 2 * dims.tokens * norm_rope.head_dim * norm_rope.cache_bytes


def reread_bytes(dims: Dims, norm_rope: NormRopePass | None) -> int:
    """HBM bytes of Q and K that the pass reads; it writes as many."""
    segments = () if norm_rope is None else norm_rope.segments
    return dims.tokens * dims.format.output_bytes * sum(segment.width for segment in segments)


def _normalised(norm_rope: NormRopePass | None) -> list[PassSegment]:
    return [] if norm_rope is None else [segment for segment in norm_rope.segments if segment.gamma_bytes]


def _numbered(buffers: list[tuple[str, int]], count: int) -> list[tuple[str, int]]:
    return [(f"{name}_{number}", size) for name, size in buffers for number in range(count)]
