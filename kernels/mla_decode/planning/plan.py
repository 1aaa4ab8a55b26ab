"""The plan of a decode step: softmax groups, key buffers, memory maps and HBM traffic, exact to the byte."""

from __future__ import annotations

from dataclasses import dataclass

from common.budget import SBUF_ALIGNMENT_BYTES, BudgetError, MemoryMap, SbufLedger
from common.checks import require_int, require_type
from common.hardware import TRN3, Hardware
from common.tiling import ceil_div
from kernels.mla_decode.device.config import (
    BANK_BYTES,
    CURRENT_BUFFERS,
    KEY_MAJOR_BUFFERS,
    P_MAX,
    PACKED_BUFFERS,
    WEIGHT_BUFFERS,
    AttentionConfig,
    Schedule,
)
from kernels.mla_decode.device.front_config import FrontConfig
from kernels.mla_decode.device.head_major import BAND, CHUNK_TILES
from kernels.mla_decode.planning import front_plan, psum_plan, traffic
from kernels.mla_decode.planning.dims import BANK_FP32, Dims, FrontDims
from kernels.mla_decode.planning.front_plan import rotating
from kernels.mla_decode.planning.traffic import FP32_BYTES, INT32_BYTES, HbmBytes

DMA_TRANSPOSE_ALIGNMENT_BYTES = 32
"""A DMA transpose writes each row from such a boundary on; a tile's 128 keys keep to it between latent tiles."""

LARGEST_GROUP = 2
"""Tokens of a softmax group. Its fixed costs are the transposes and products that cross partitions, four small
instructions, which its tokens share; a larger group makes the next one's scores wait longer for its softmax. Predicted,
at the production shape on trn2: 322 us in groups of 1, 294 of 2, 296 of 4 (the seed's), with 8 and 16 heads, too."""

LARGEST_GROUP_OF_FEW_KEYS, FEW_KEY_TILES = 4, 4
"""The same where tokens have few keys, so that its fixed costs weigh more. Predicted, on trn2, with 64 tokens of 512
keys: 365 us in groups of 2, 330 of 4, 326 of 8; with 16 of them 114, 106 and 108; with 64 of 1,024 keys 575 and 574."""

DMA_TRANSPOSE_FROM_TOKENS = 8
"""Tokens of a core from which a latent tile transposed by DMA pays. Predicted, at DeepSeek's widths and 2,048 keys,
with 8 to 128 tokens and 1 to 16 heads: 3 to 9 % less time on trn2, 1 to 7 % on trn3; with 4 tokens, less on trn2 and
more on trn3. A second tile costs on both. GpSimd makes the descriptors of the gathers and of these."""

SHARE_HEADS_FROM = 10
"""Heads for each token from which two cores share heads, where they can share either. With half of the tokens a core
gathers half of the keys, with half of the heads it reads half of the out-absorb. Predicted, at DeepSeek's widths and
2,048 keys on trn2, tokens against heads shared: 136 and 141 us with 2 tokens of 16 heads, 182 and 179 with 2 of 24, 296
and 285 with 4 of 40, 250 and 371 with 16 of 16."""

SHARE_HEADS_WITH_FRONT_FROM = 2
"""The same with the front-fold, of which cores that share heads read half of all weights each: 347 and 317 us with 2
tokens of 4 heads, 400 and 371 with 4 of 8, 502 and 489 with 8 of 16, 568 and 613 with 16 of 16."""

LARGEST_PASS_BANKS = 7
"""PSUM banks of an o-projection pass; 7 x 512 columns cover half of DeepSeek's 7168."""


@dataclass(frozen=True)
class Plan:
    """How a decode step's attention runs.

    Attributes:
        dims, hardware: what it was made for.
        cores_share: "tokens" or "heads", of which each of two cores has half; all of both on one core.
        group_tokens: tokens that share a softmax.
        key_buffers: tokens whose rows are in SBUF at once.
        dma_transposed_chunks: latent tiles that DMAs transpose, each reading its columns again.
        pass_columns: columns of an o-projection pass.
        schedule: ways to run it that are not the default.
        front: sizes of the front-fold, None for the attention alone.
        sbuf, psum: every allocation of a core; of two, those of the one that makes more columns.
        hbm: bytes moved where no slot is skipped: the rows of all slots of the key tiles, DMA-transposed columns
            again, this step's rows twice, each weight and result once.
        minimum: bytes that no schedule avoids: n_prior rows of each token and everything else once.
    """

    dims: Dims
    hardware: Hardware
    cores_share: str
    group_tokens: int
    key_buffers: int
    dma_transposed_chunks: int
    pass_columns: int
    schedule: Schedule
    front: FrontDims | None
    sbuf: MemoryMap
    psum: MemoryMap
    hbm: HbmBytes
    minimum: HbmBytes

    @property
    def config(self) -> AttentionConfig:
        """The plan as the kernel takes it."""
        dims, part = self.dims, self.dims.of_core(self.cores_share)
        return AttentionConfig(
            cores=dims.cores,
            cores_share=self.cores_share,
            n_tokens=part.n_tokens,
            n_heads=part.n_heads,
            n_prior=dims.n_prior,
            kv_lora_rank=dims.kv_lora_rank,
            rope=dims.rope,
            v_head_dim=dims.v_head_dim,
            hidden=dims.hidden,
            group_tokens=self.group_tokens,
            key_buffers=self.key_buffers,
            dma_transposed_chunks=self.dma_transposed_chunks,
            fp8_cache=dims.fp8_cache,
            pass_columns=self.pass_columns,
            schedule=self.schedule,
            addresses={a.name: a.address_bytes for a in self.sbuf.allocations},
            banks={a.name: a.address_bytes // BANK_BYTES for a in self.psum.allocations},
        )

    @property
    def front_config(self) -> FrontConfig:
        """The plan as a kernel with the front-fold takes it.

        Raises:
            ValueError: the plan has none.
        """
        if self.front is None:
            raise ValueError("this plan is for the attention alone; accepted: one made with front")
        part = self.dims.of_core(self.cores_share)
        return FrontConfig(
            attention=self.config,
            q_lora=self.front.q_lora,
            nope=self.front.nope,
            heads_per_pass=front_plan.heads_per_pass(part, self.front),
            pass_columns=front_plan.pass_columns(part, self.front),
        )

    def __str__(self) -> str:
        lines = [
            f"{self.dims.n_tokens} tokens, {self.dims.n_heads} heads, {self.dims.n_prior} keys on "
            f"{self.dims.cores} of {self.hardware.name}'s cores" + self._sharing(),
            f"softmax groups of {self.group_tokens}, {self.key_buffers} key buffers, "
            f"{self.dma_transposed_chunks} latent tiles transposed by DMA, "
            f"o-projection in passes of {self.pass_columns} columns",
            "",
            *self._traffic_lines(),
            "",
            str(self.sbuf),
            "",
            str(self.psum),
        ]
        return "\n".join(lines)

    def _sharing(self) -> str:
        return f", which share the {self.cores_share}" if self.dims.cores > 1 else ""

    def _traffic_lines(self) -> list[str]:
        """What goes through HBM, and how often more than once."""
        lines = ["HBM, bytes of all cores, and times the least that any plan moves"]
        for purpose in traffic.PURPOSES:
            moved, least = getattr(self.hbm, purpose), getattr(self.minimum, purpose)
            if moved:
                lines.append(f"{purpose:<12}  {moved:>13,}  {moved / least:.3f}")
        return [*lines, f"{'total':<12}  {self.hbm.total:>13,}  {self.hbm.total / self.minimum.total:.3f}"]


DEFAULT_SCHEDULE = Schedule()


def make(
    dims: Dims,
    hardware: Hardware,
    dma_transposed_chunks: int | None = None,
    front: FrontDims | None = None,
    group_tokens: int | None = None,
    schedule: Schedule = DEFAULT_SCHEDULE,
    cores_share: str | None = None,
) -> Plan:
    """Plans a step: the largest softmax group that fits, with twice as many key buffers where they fit too.

    Args:
        dims: its sizes.
        hardware: the target.
        dma_transposed_chunks: 0 to kv_lora_rank / 128 latent tiles whose keys DMAs transpose; None: one where it pays
            (`DMA_TRANSPOSE_FROM_TOKENS`) and fits. They save the Tensor Engine's transposes and their evictions and
            read those columns of the cache a second time; bf16 only.
        front: sizes of the front-fold where it is part of the kernel.
        group_tokens: tokens of a softmax group; None leaves the choice to the plan.
        schedule: other ways to run it, to be measured.
        cores_share: what two cores have half of each, "tokens" or "heads"; None leaves the choice to the plan.

    Raises:
        TypeError: dims, front or schedule is none.
        ValueError: an fp8 cache on trn2; what the cores are to share is odd; there are fewer latent tiles, or they are
            fp32 or fp8; a softmax group is larger than the batch, or has more than 128 maxima; the schedule does not go
            with the sizes.
        BudgetError: not even groups of one token fit; the last attempt's message names what did not.
    """
    require_type("dims", dims, Dims)
    require_type("hardware", hardware, Hardware)
    if front is not None:
        require_type("front", front, FrontDims)
    require_type("schedule", schedule, Schedule)
    if dims.fp8_cache and hardware.name != TRN3.name:
        raise ValueError(f"target is {hardware.name!r}; accepted with an fp8 cache: 'trn3' (trn2 has no float8_e4m3fn)")
    _check_schedule(dims, schedule)
    shared = _shared(dims, front, cores_share)
    part = dims.of_core(shared)
    refusal: BudgetError | None = None
    for chunks in _chunks(part, dma_transposed_chunks):
        for group, key_buffers in _groups(part, group_tokens, schedule):
            try:
                return _plan(dims, hardware, shared, group, key_buffers, chunks, front, schedule)
            except BudgetError as error:
                refusal = error
    assert refusal is not None
    raise refusal


def _shared(dims: Dims, front: FrontDims | None, given: str | None) -> str:
    """What the cores share."""
    if given is None:
        heads_per_token = SHARE_HEADS_FROM if front is None else SHARE_HEADS_WITH_FRONT_FROM
        few_tokens = "tokens" not in dims.shareable or dims.n_heads >= heads_per_token * dims.n_tokens
        return "heads" if "heads" in dims.shareable and few_tokens else "tokens"
    if given not in dims.shareable:
        accepted = " or ".join(map(repr, dims.shareable))
        raise ValueError(
            f"cores_share is {given!r}; accepted with {dims.n_tokens} tokens of {dims.n_heads} heads: {accepted}"
        )
    return given


def _chunks(dims: Dims, given: int | None) -> list[int]:
    """Latent tiles of a core's part to transpose by DMA, in the order to try."""
    if given is None:
        can = dims.itemsize == 2 and not dims.fp8_cache
        return [1, 0] if can and dims.n_tokens >= DMA_TRANSPOSE_FROM_TOKENS else [0]
    chunks = require_int("dma_transposed_chunks", given, at_least=0)
    if chunks > dims.latent_tiles:
        raise ValueError(f"dma_transposed_chunks is {chunks}; accepted: 0 to {dims.latent_tiles}, the latent tiles")
    if chunks and dims.fp8_cache:
        raise ValueError(f"dma_transposed_chunks is {chunks}; accepted with an fp8 cache: 0, its rows are dequantised")
    if chunks and dims.itemsize != 2:
        raise ValueError(f"dma_transposed_chunks is {chunks}; accepted in float32: 0, a DMA transposes 2-byte elements")
    return [chunks]


def _check_schedule(dims: Dims, schedule: Schedule) -> None:
    if not schedule.latent_bands:
        return
    if not schedule.head_major:
        raise ValueError("latent_bands without head_major; accepted: both, bands hold rows of heads")
    if dims.n_heads > BAND:
        raise ValueError(f"n_heads is {dims.n_heads}; accepted with latent_bands: up to {BAND}, a band's partitions")
    if dims.latent_tiles < 2:
        raise ValueError(f"kv_lora_rank is {dims.kv_lora_rank}; accepted with latent_bands: {2 * P_MAX} and up")


def _groups(dims: Dims, given: int | None, schedule: Schedule) -> list[tuple[int, int]]:
    """Group sizes of a core's part to try, in order, each with its key buffers: for two groups, then for one."""
    largest = min(dims.n_tokens, P_MAX // dims.n_heads)
    most = LARGEST_GROUP_OF_FEW_KEYS if dims.key_tiles <= FEW_KEY_TILES else LARGEST_GROUP
    sizes = range(min(most, largest), 0, -1)
    if given is not None:
        group = require_int("group_tokens", given, at_least=1)
        if group > largest:
            raise ValueError(
                f"group_tokens is {group}; accepted: 1 to {largest} with {dims.n_tokens} tokens of {dims.n_heads} heads"
            )
        sizes = range(group, group - 1, -1)
    pairs = []
    for group in sizes:
        # With late sums the next group's first rows come while the last group's are read.
        least = group + 1 if schedule.late_weighted_sum else group
        counts = {min(count, dims.n_tokens) for count in (2 * group, least)}
        pairs += [(group, count) for count in sorted(counts, reverse=True)]
    return pairs


def _plan(
    dims: Dims,
    hardware: Hardware,
    shared: str,
    group: int,
    key_buffers: int,
    chunks: int,
    front: FrontDims | None,
    schedule: Schedule,
) -> Plan:
    columns = ceil_div(dims.hidden, dims.cores)
    pass_columns = ceil_div(columns, ceil_div(columns, LARGEST_PASS_BANKS * BANK_FP32))
    part = dims.of_core(shared)
    return Plan(
        dims=dims,
        hardware=hardware,
        cores_share=shared,
        group_tokens=group,
        key_buffers=key_buffers,
        dma_transposed_chunks=chunks,
        pass_columns=pass_columns,
        schedule=schedule,
        front=front,
        sbuf=_sbuf_map(dims, part, hardware, group, key_buffers, chunks, pass_columns, front, schedule),
        psum=psum_plan.make_map(part, hardware, chunks, pass_columns, front, schedule, shared),
        hbm=traffic.moved(dims, front, chunks, shared, part.n_tokens if schedule.per_token_tails else 1),
        minimum=traffic.minimum(dims, front),
    )


def _sbuf_map(
    dims: Dims,
    part: Dims,
    hardware: Hardware,
    group: int,
    key_buffers: int,
    chunks: int,
    pass_columns: int,
    front: FrontDims | None,
    schedule: Schedule,
) -> MemoryMap:
    """Of a core, whose part of `dims` is `part`.

    Queries first, then the front-fold; over that lasting buffers; setup, attention and tails take turns above.
    """
    item, latents = dims.itemsize, dims.latent_tiles
    tokens, heads = part.n_tokens, part.n_heads
    index_bytes = INT32_BYTES * tokens * dims.key_tiles
    ledger = SbufLedger(hardware)
    ledger.allocate("q_absorbed", item * latents * tokens * heads)
    ledger.allocate("q_pe", item * tokens * heads)
    if front is not None:
        with ledger.scope("front-fold"):
            front_plan.allocate(part, front, ledger)
    ledger.allocate("index", index_bytes)
    if chunks:
        ledger.allocate("natural_index", index_bytes)
    ledger.allocate("keep", index_bytes)
    ledger.allocate("current_features", item * (latents + 1) * tokens)
    ledger.allocate("latent_features", item * latents * heads * tokens)
    with ledger.scope("setup"):
        ledger.allocate("key_pos", FP32_BYTES * tokens * dims.key_tiles)
        ledger.allocate("own_positions", FP32_BYTES * tokens)
        ledger.allocate("current_rows", item * dims.row_width)
    with ledger.scope("attention"):
        _attention_buffers(part, ledger, group, key_buffers, chunks, schedule)
        _score_buffers(part, ledger, group, schedule)
    with ledger.scope("tails"):
        ledger.allocate("values", item * dims.n_heads * dims.n_tokens)
        rotating(ledger, "absorb", min(WEIGHT_BUFFERS, heads), item * dims.kv_lora_rank)
        rotating(ledger, "absorb_features", min(WEIGHT_BUFFERS, heads), item * latents * dims.v_head_dim)
        loads = dims.n_heads * ceil_div(ceil_div(dims.hidden, dims.cores), pass_columns)
        rotating(ledger, "o_proj", min(WEIGHT_BUFFERS, loads), item * pass_columns)
        ledger.allocate("output", item * pass_columns)
    return ledger.freeze()


def _attention_buffers(
    dims: Dims, ledger: SbufLedger, group: int, key_buffers: int, chunks: int, schedule: Schedule
) -> None:
    item, tiles = dims.itemsize, dims.key_tiles
    rotating(ledger, "rows", key_buffers, item * tiles * dims.row_width)
    if dims.fp8_cache:
        rotating(ledger, "packed", min(PACKED_BUFFERS, dims.n_tokens), tiles * dims.cache_row_bytes)
    rotating(ledger, "current", min(CURRENT_BUFFERS, dims.n_tokens), item * dims.row_width)
    feature_bytes = item * (dims.latent_tiles + 1) * tiles * P_MAX
    alignment = DMA_TRANSPOSE_ALIGNMENT_BYTES if chunks else SBUF_ALIGNMENT_BYTES
    rotating(ledger, "features", min(KEY_MAJOR_BUFFERS, dims.n_tokens), feature_bytes, alignment)
    ledger.allocate("weights", item * (tiles + 1) * group * dims.n_heads)
    if schedule.stationary_weights:
        ledger.allocate("latent", item * dims.kv_lora_rank)
    ledger.allocate("inverse_sum", FP32_BYTES * dims.n_heads)


def _score_buffers(dims: Dims, ledger: SbufLedger, group: int, schedule: Schedule) -> None:
    tiles = dims.key_tiles
    if schedule.head_major:
        keys = tiles * P_MAX + 1
        if schedule.latent_bands:
            ledger.allocate("band_sum", FP32_BYTES * CHUNK_TILES * P_MAX)
        ledger.allocate("scores", FP32_BYTES * group * keys)
        ledger.allocate("mask", FP32_BYTES * CHUNK_TILES * P_MAX)
        ledger.allocate("head_weights", dims.itemsize * group * keys)
        ledger.allocate("offsets", FP32_BYTES * group)
        ledger.allocate("sums", FP32_BYTES * group)
        return
    columns = group * dims.n_heads
    ledger.allocate("scores", FP32_BYTES * (tiles + 1) * columns)
    ledger.allocate("partial", FP32_BYTES * columns)
    ledger.allocate("group_column", FP32_BYTES)
    ledger.allocate("ones", FP32_BYTES)
