"""What the kernel is told: sizes, schedule and addresses, in classes that the NKI language knows."""

from dataclasses import dataclass

from nki.language import NKIObject

S_TILE = 128
"""Tokens of an S-tile: the columns of the stationary operand and the partitions of a PSUM bank."""

H_TILE_WORDS = 128
"""Partitions of an H-tile; each holds a word of four contraction rows, so an H-tile has 512 rows."""

H_PACK = 4
"""Contraction rows in a word."""

BANK_COLUMNS = 512
"""Output columns of an I-tile: the fp32 elements of a PSUM bank."""

CHUNK_BUFFERS = 2
"""Rotating buffers for streamed weights: one is loaded while the other is multiplied."""

ROW_BUFFERS = 2
"""Rotating buffers for token-major activation rows."""

DEQUANT_BUFFERS = 2
"""Rotating fp32 buffers between the dequantisation and the bias."""

PASS_BUFFERS = 2
"""Rotating buffers of the norm and RoPE pass: a segment is loaded while the one before it is computed."""


@dataclass(frozen=True)
class IGroup(NKIObject):
    """Banks of output width that are accumulated together."""

    first_bank: int
    num_banks: int


@dataclass(frozen=True)
class SBlock(NKIObject):
    """S-tiles that share one pass over the weights, and the I-groups of that pass."""

    first_tile: int
    num_tiles: int
    groups: tuple[IGroup, ...]


@dataclass(frozen=True)
class PassSegment(NKIObject):
    """A segment that the norm and RoPE pass reads again.

    Attributes:
        name: "q" or "k".
        first_column: of the output.
        width: its columns, whole heads.
        gamma_bytes: bytes of an element of its gamma; 0 for a segment that is not normalised.
        sum_column: first of its sum-of-squares columns, one for each S-tile.
    """

    name: str
    first_column: int
    width: int
    gamma_bytes: int
    sum_column: int


@dataclass(frozen=True)
class NormRopePass(NKIObject):
    """What is done to Q and K after the projection.

    Attributes:
        segments: those that are normalised or rotated, in the order of their columns.
        head_dim: columns of a head.
        cache_bytes: bytes of an element of the cos and sin caches; 0 without RoPE.
        eps: added to the mean square.
        replica_groups: ranks that together hold all heads; None where this rank does.
        sum_columns: sum-of-squares columns of all normalised segments.
    """

    segments: tuple[PassSegment, ...]
    head_dim: int
    cache_bytes: int
    eps: float
    replica_groups: tuple[tuple[int, ...], ...] | None
    sum_columns: int


@dataclass(frozen=True)
class ProjectionConfig(NKIObject):
    """Everything `row_mx_projection` needs beside its tensors.

    Attributes:
        tokens_per_core: rows of the output that each core makes.
        hidden: contraction width H.
        width: output width I.
        blocks: S-blocks of one core, in order.
        resident_h_tiles: H-tiles whose weights stay in SBUF.
        chunk_banks: banks of output width in a chunk buffer; 0 when all weights are resident.
        chunk_buffers: rotating buffers for streamed weights.
        psum_banks: banks in use.
        addresses: first byte of each SBUF buffer in its partitions, by name.
        norm_rope: the pass over Q and K that follows, if any.
        nbsd_head_dim: columns of a head where the output's layout is NBSd; 0 for BSD.
    """

    tokens_per_core: int
    hidden: int
    width: int
    blocks: tuple[SBlock, ...]
    resident_h_tiles: int
    chunk_banks: int
    chunk_buffers: int
    psum_banks: int
    addresses: dict[str, int]
    norm_rope: NormRopePass | None = None
    nbsd_head_dim: int = 0
