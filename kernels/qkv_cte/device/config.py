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

QUADRANT = 32
"""Partitions within which the Vector Engine's shuffle moves rows."""

ROW_READS = S_TILE // QUADRANT
"""How often a row that every partition needs is read from HBM."""

ROW_BUFFERS = 2
"""Rotating buffers for token-major activation rows."""

DEQUANT_BUFFERS = 2
"""Rotating fp32 buffers between the dequantisation and the bias."""

EARLY_BUFFERS = 4
"""Rotating fp32 buffers where evictions go through norm and RoPE: seven steps on three engines, a bank every 2 us."""

CROSSED_BUFFERS = 2
"""Rotating fp32 buffers for the second product of RoPE in an eviction."""

PASS_BUFFERS = 2
"""Rotating buffers of the norm and RoPE pass: a segment is loaded while the one before it is computed."""

SCALE_SLOTS = 4
"""H-tiles whose block scales share a scale tile: each uses 4 of the 16 partitions of a quadrant that may hold some."""

HEAD_BUFFERS = 2
"""Rotating buffers of the head stage: a bank is evicted while the one before it is normalised and rotated."""

CACHE_BUFFERS = 2
"""Rotating buffers of the cache writes: K is stored while V is quantised."""

BN_STATS_COLUMNS = 512
"""Elements that one `bn_stats` takes."""

STATISTICS = 6
"""Numbers that it makes of them."""

PLAIN, ROW_MX, MXFP8 = "plain", "row_mx", "mxfp8"
"""Names of operand formats: unquantised; fp8 with row and column scales; fp8 with block scales."""

RMS, LAYER = "rms", "layer"
"""Names of norms."""


@dataclass(frozen=True)
class OperandFormat(NKIObject):
    """How the operands of the products are stored.

    Attributes:
        name: PLAIN, ROW_MX or MXFP8.
        lanes: contraction rows that a partition holds side by side.
        weight_bytes: bytes of a weight.
        input_bytes: bytes of an activation in HBM.
        transposed_bytes: bytes of what the Tensor Engine transposes: an activation, or a word of four codes.
        stationary_bytes: bytes of an activation as it is multiplied.
        output_bytes: bytes of an output.
    """

    name: str
    lanes: int
    weight_bytes: int
    input_bytes: int
    transposed_bytes: int
    stationary_bytes: int
    output_bytes: int


ROW_MX_FORMAT = OperandFormat(
    ROW_MX, lanes=H_PACK, weight_bytes=1, input_bytes=1, transposed_bytes=4, stationary_bytes=1, output_bytes=2
)


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
class Flow(NKIObject):
    """How the work beside the products is spread over time and engines.

    Attributes:
        early: gamma and RoPE are applied while a bank is evicted, and only `inv_rms` is left for the pass. Otherwise
            the pass does all of it.
        kept_tiles: last S-tiles whose normalised columns stay in SBUF for the pass; with `early` only.
        pass_buffers: rotating buffers for the rows that the pass reads again; with `early` only.
        chunk_buffers: rotating buffers for streamed weights.
        scalar_every: the Scalar Engine evicts one bank in this many, the Vector Engine the others; 0 for none.
        one_engine: the Vector Engine does what GpSimd could, too; what schedules are measured against.
    """

    early: bool = False
    kept_tiles: int = 0
    pass_buffers: int = 0
    chunk_buffers: int = CHUNK_BUFFERS
    scalar_every: int = 0
    one_engine: bool = False


SEED_FLOW = Flow()
"""The seed's: the pass reads every row again."""


@dataclass(frozen=True)
class Piece(NKIObject):
    """Columns of one bank that are evicted together.

    Attributes:
        first_column, width: of the core's columns.
        segment: which of the pass's segments they belong to, -1 for none.
        sum_column: of its sums of squares, one for each S-tile in steps of the segment's pieces; -1 for none.
        number: among those of a row that belong to a segment.
        head_segment: which of the head stage's segments they belong to, -1 for none.
        partial_sum: column of the partial sums of squares that are an output; -1 for none.
    """

    first_column: int
    width: int
    segment: int = -1
    sum_column: int = -1
    number: int = 0
    head_segment: int = -1
    partial_sum: int = -1


@dataclass(frozen=True)
class PassSegment(NKIObject):
    """A segment that the norm and RoPE pass reads again.

    Attributes:
        name: "q" or "k".
        first_column: of the output.
        width: its columns, whole heads.
        gamma_bytes: bytes of an element of its gamma; 0 for a segment that is not normalised.
        sum_column: first of its sum-of-squares columns, one for each S-tile.
        pieces: banks that its columns lie in, where they are evicted with their norm; 0 otherwise.
    """

    name: str
    first_column: int
    width: int
    gamma_bytes: int
    sum_column: int
    pieces: int = 0


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
class InputStage(NKIObject):
    """What is done to unquantised activations before they are multiplied.

    Attributes:
        residuals: tensors that are added to them.
        norm: RMS, LAYER or "" for none.
        eps: added to the mean square or the variance.
        gamma_bytes, beta_bytes: bytes of an element; 0 where there is none.
    """

    residuals: int = 0
    norm: str = ""
    eps: float = 1e-6
    gamma_bytes: int = 0
    beta_bytes: int = 0


@dataclass(frozen=True)
class HeadNorm(NKIObject):
    """A norm over each head by itself.

    Attributes:
        kind: RMS or LAYER.
        eps: added to the mean square or the variance.
        gamma_bytes, beta_bytes: bytes of an element; 0 where there is none.
    """

    kind: str
    eps: float
    gamma_bytes: int = 0
    beta_bytes: int = 0


@dataclass(frozen=True)
class HeadSegment(NKIObject):
    """Q or K, which the head stage normalises or rotates.

    Attributes:
        name: "q" or "k".
        first_column: of the output.
        width: its columns, whole heads.
        before, after: norms before and after RoPE.
    """

    name: str
    first_column: int
    width: int
    before: HeadNorm | None = None
    after: HeadNorm | None = None


@dataclass(frozen=True)
class HeadStage(NKIObject):
    """What is done to single heads of Q and K on their way from PSUM to SBUF.

    Attributes:
        head_dim: columns of a head.
        segments: those that are normalised or rotated, in the order of their columns.
        rope_bytes: bytes of an element of the cos and sin caches; 0 without RoPE.
        own_k_caches: whether K has cos and sin caches of its own.
    """

    head_dim: int
    segments: tuple[HeadSegment, ...]
    rope_bytes: int = 0
    own_k_caches: bool = False


@dataclass(frozen=True)
class CacheStage(NKIObject):
    """Writes of K and V to their caches.

    Attributes:
        first_column: of K in the output; V follows it.
        width: columns of K, and as many of V.
        row_bytes: bytes of an element of the caches.
        slots: whether a slot mapping says where each token goes; otherwise token s of batch b goes to row s of b.
        scaled: whether values are divided by a scale, clamped and rounded to fp8.
        lowest, highest: where they are clamped.
    """

    first_column: int
    width: int
    row_bytes: int
    slots: bool = False
    scaled: bool = False
    lowest: float = 0.0
    highest: float = 0.0


@dataclass(frozen=True)
class SumSegment(NKIObject):
    """A segment whose sum of squares per token is an output.

    Attributes:
        name: "q", "k" or "v".
        first_column, width: its columns.
        banks: that these lie in, each of which has a partial sum.
    """

    name: str
    first_column: int
    width: int
    banks: int


@dataclass(frozen=True)
class Stages(NKIObject):
    """What a call does beside the products. None, or an empty tuple, for what it does not."""

    input: InputStage | None = None
    heads: HeadStage | None = None
    cache: CacheStage | None = None
    sums: tuple[SumSegment, ...] = ()


NO_STAGES = Stages()


@dataclass(frozen=True)
class ProjectionConfig(NKIObject):
    """Everything the kernel needs beside its tensors.

    Attributes:
        tokens_per_core: rows of the output that each core makes.
        hidden: contraction width H.
        width: output columns that each core makes: I, or a share of it.
        blocks: S-blocks of one core, in order.
        resident_h_tiles: H-tiles whose weights stay in SBUF.
        chunk_banks: banks of output width in a chunk buffer; 0 when all weights are resident.
        chunk_buffers: rotating buffers for streamed weights.
        psum_banks: banks in use.
        pieces: for each bank what it is evicted as; one tuple of banks for each core that has columns of its own.
        segment_pieces: pieces of a row that belong to a segment.
        output_buffers: S-tiles of a block with an output row; others are kept whole for the pass.
        dequantised_buffers: rotating fp32 buffers between PSUM and the finished row.
        flow: how the work beside the products is spread.
        addresses: first byte of each SBUF buffer in its partitions, by name.
        norm_rope: the pass over Q and K that follows, if any.
        nbsd_head_dim: columns of a head where the output's layout is NBSd; 0 for BSD.
        format: of the operands.
        stages: what is done beside the products.
        bank_columns: output columns in a PSUM bank.
        row_buffers: rotating buffers for token-major activation rows.
        head_buffers: rotating buffers of the head stage.
        shared_columns: I where the cores share the columns and each takes all tokens; 0 where they share the tokens.
    """

    tokens_per_core: int
    hidden: int
    width: int
    blocks: tuple[SBlock, ...]
    resident_h_tiles: int
    chunk_banks: int
    chunk_buffers: int
    psum_banks: int
    pieces: tuple[tuple[tuple[Piece, ...], ...], ...]
    segment_pieces: int
    output_buffers: int
    dequantised_buffers: int
    flow: Flow
    addresses: dict[str, int]
    norm_rope: NormRopePass | None = None
    nbsd_head_dim: int = 0
    format: OperandFormat = ROW_MX_FORMAT
    stages: Stages = NO_STAGES
    bank_columns: int = BANK_COLUMNS
    row_buffers: int = ROW_BUFFERS
    head_buffers: int = HEAD_BUFFERS
    shared_columns: int = 0
