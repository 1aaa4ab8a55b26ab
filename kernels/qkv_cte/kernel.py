"""The ROW_MX projection: `out = dequant(x_fp8 @ w_fp8) + bias`."""

from dataclasses import dataclass

import nki
import nki.isa as nisa
import nki.language as nl
from kernels.qkv_cte.config import (
    BANK_COLUMNS,
    CHUNK_BUFFERS,
    DEQUANT_BUFFERS,
    H_PACK,
    H_TILE_WORDS,
    ROW_BUFFERS,
    S_TILE,
    IGroup,
    ProjectionConfig,
    SBlock,
)
from nki.language import NKIObject, NkiTensor

NEUTRAL_SCALE = 127
"""The e8m0 code of 2**0: the instruction's block scales are not used, all scaling is fp32 and comes after it."""

TRANSPOSES_PER_BANK = BANK_COLUMNS // S_TILE
"""Transposed H-tiles that fit side by side in a PSUM bank, so that one copy evicts four of them."""


@dataclass
class Buffers(NKIObject):
    """On-chip tensors of one core. Lists run over S-tiles of a block, rotating buffers or PSUM banks."""

    resident: NkiTensor | None
    chunks: list[NkiTensor]
    channel_scale: NkiTensor
    bias: NkiTensor | None
    mx_scale: NkiTensor
    rows: list[NkiTensor]
    activations: list[NkiTensor]
    row_scales: list[NkiTensor]
    dequantised: list[NkiTensor]
    outputs: list[NkiTensor]
    banks: list[NkiTensor]


@nki.jit
def row_mx_projection(
    packed_hidden: NkiTensor,
    weight: NkiTensor,
    weight_scales: NkiTensor,
    bias: NkiTensor | None,
    config: ProjectionConfig,
) -> NkiTensor:
    """Projects row-quantised fp8 activations with column-quantised fp8 weights (trn3).

    Dimensions:
        B, S: batch and sequence; the B*S tokens are one axis here, split evenly over the cores.
        H: contraction width, a multiple of 128. H-tiles have 512 rows, the last one 128, 256, 384 or 512.
        I: output width; I-tiles have 512 columns, one PSUM bank, the last one what is left.

    Args:
        packed_hidden: [B, S, H + 4] float8_e4m3fn; H codes, then the row's fp32 dequantisation scale.
        weight: [H / 4, I, 4] float8_e4m3fn; `weight[r, i, c]` is contraction row 4r + c of column i.
        weight_scales: [1, I] float32, one dequantisation scale per output column.
        bias: [1, I] float32 or bfloat16, or None.
        config: ProjectionConfig, from `plan.Plan.config`.

    Returns:
        [B, S, I] bfloat16 in shared HBM.

    Notes:
        Rounding: products accumulate in fp32; times row scale, times column scale, plus bias are fp32 steps; one
        rounding to bf16 at the end. The public kernel rounds after the scales and again after the bias.
        Activations arrive token-major, and the product wants four contraction rows in each word of a partition. As
        words of four codes that is a plain transpose, which the Tensor Engine does bit by bit in fp32: 10 of its
        instructions per S-tile at H = 5120, against 80 to 100 products. A 4-byte-granular DMA would move the same
        bytes in 163,840 elements.
        Column scales and bias are needed on every partition. They are read once from HBM and broadcast by a product
        with a row of ones, exact in fp32, instead of being read 128 times.
        Every buffer sits at an address of the plan, so that the plan is what the chip allocates. The staging of the
        broadcast lies where the outputs will, which are written last, so that nothing waits for it.

    Pseudocode:
        resident = first N H-tiles of weight
        for block in S-blocks:
            x[t] = transpose(words of packed_hidden) for each S-tile t
            for group in I-groups:
                for h in H-tiles:
                    w = resident[h] or load(weight[h, group])
                    psum[t, bank] += x[t][h].T @ w[bank]   for every t, bank of group
                out[t, bank] = bf16(psum * row_scale[t] * column_scale + bias)
            store out[t]
    """
    output_shape = (packed_hidden.shape[0], packed_hidden.shape[1], config.width)
    output = nl.ndarray(output_shape, dtype=nl.bfloat16, buffer=nl.shared_hbm, name="output")
    rows_total = output_shape[0] * output_shape[1]
    hidden_words = packed_hidden.reshape((rows_total, config.hidden + H_PACK)).view(nl.float32)
    weight_rows = weight.reshape((config.hidden // H_PACK, config.width * H_PACK))
    weight_words = weight_rows.view(nl.float8_e4m3fn_x4)
    output_rows = output.reshape((rows_total, config.width))

    buffers = allocate(config, bias)
    load_channels(config, buffers, weight_scales, bias)
    resident = load_resident_weights(config, buffers, weight_words)
    chunks_loaded = 0
    for block in config.blocks:
        stationary = load_activations(config, buffers, hidden_words, block)
        for group in block.groups:
            targets = group_targets(config, buffers, block, group)
            for h in range(count_tiles(config.hidden // H_PACK, H_TILE_WORDS)):
                if h < config.resident_h_tiles:
                    moving = resident[h][group.first_bank : group.first_bank + group.num_banks]
                else:
                    moving = load_chunk(config, buffers, weight_words, group, h, chunks_loaded)
                    chunks_loaded += 1
                multiply(buffers, stationary, moving, targets, h)
            evict(config, buffers, block, group)
        store(config, buffers, output_rows, block)
    return output


def allocate(config: ProjectionConfig, bias: NkiTensor | None) -> Buffers:
    """Creates every lasting buffer at its address of the plan. Layouts, partition dimension first:

    resident [128, N, I] and chunks [128, group columns] of words; channel_scale, bias [128, I]; rows [128 tokens,
    H/4 + 1 words]; activations [128, H-tile, token] words; row_scales [128 tokens, 1]; outputs [128 tokens, I].
    """
    words = nl.float8_e4m3fn_x4
    h_tiles = count_tiles(config.hidden // H_PACK, H_TILE_WORDS)
    width = config.width
    s_tiles = count_tiles(config.tokens_per_core, S_TILE)
    dequantised_shape = (S_TILE, min(BANK_COLUMNS, width))
    resident = None
    if config.resident_h_tiles > 0:
        resident = place(config, "resident_weights", (H_TILE_WORDS, config.resident_h_tiles, width), words)
    chunks = []
    if config.chunk_banks > 0:
        chunk_shape = (H_TILE_WORDS, min(config.chunk_banks * BANK_COLUMNS, width))
        for i in range(CHUNK_BUFFERS):
            chunks.append(place(config, f"weight_chunk_{i}", chunk_shape, words))
    channel_scale = place(config, "channel_scale", (S_TILE, width), nl.float32)
    bias_tile = None
    dequantised = []
    if bias is not None:
        bias_tile = place(config, "bias", (S_TILE, width), bias.dtype)
        for i in range(min(DEQUANT_BUFFERS, s_tiles * count_tiles(width, BANK_COLUMNS))):
            dequantised.append(place(config, f"dequantised_{i}", dequantised_shape, nl.float32))
    mx_scale = place(config, "mx_scale", (H_TILE_WORDS, BANK_COLUMNS), nl.float8_e8m0fnu)
    rows = []
    for i in range(min(ROW_BUFFERS, s_tiles)):
        rows.append(place(config, f"rows_{i}", (S_TILE, config.hidden // H_PACK + 1), nl.float32))
    activations, row_scales, outputs = [], [], []
    for i in range(config.blocks[0].num_tiles):
        activations.append(place(config, f"activations_{i}", (H_TILE_WORDS, h_tiles, S_TILE), nl.float32))
        row_scales.append(place(config, f"row_scale_{i}", (S_TILE, 1), nl.float32))
        outputs.append(place(config, f"output_{i}", (S_TILE, width), nl.bfloat16))
    banks = []
    for i in range(config.psum_banks):
        address = (0, i * nl.tile_size.psum_bank_fmax_bytes)
        banks.append(nl.ndarray((S_TILE, BANK_COLUMNS), nl.float32, nl.psum, name=f"bank_{i}", address=address))
    return Buffers(
        resident=resident,
        chunks=chunks,
        channel_scale=channel_scale,
        bias=bias_tile,
        mx_scale=mx_scale,
        rows=rows,
        activations=activations,
        row_scales=row_scales,
        dequantised=dequantised,
        outputs=outputs,
        banks=banks,
    )


def place(config: ProjectionConfig, name: str, shape: tuple[int, ...], dtype: str) -> NkiTensor:
    """An SBUF tensor at its address of the plan."""
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf, name=name, address=(0, config.addresses[name]))


def count_tiles(extent: int, size: int) -> int:
    """Tiles of `size` that cover `extent`."""
    return (extent + size - 1) // size


def load_channels(config: ProjectionConfig, buffers: Buffers, weight_scales: NkiTensor, bias: NkiTensor | None) -> None:
    """Fills the block scales with 2**0 and broadcasts column scales and bias over the partitions.

    channel_scale[p, i] = weight_scales[0, i];  bias[p, i] = bias[0, i]
    """
    nisa.memset(dst=buffers.mx_scale.view(nl.uint8), value=NEUTRAL_SCALE, engine=nisa.engine.gpsimd)
    ones = place(config, "ones", (1, S_TILE), nl.float32)
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.gpsimd)
    row = place(config, "channel_row", (1, config.width), nl.float32)
    broadcast_row(config, buffers, ones, row, weight_scales, buffers.channel_scale)
    if bias is not None and buffers.bias is not None:
        broadcast_row(config, buffers, ones, row, bias, buffers.bias)


def broadcast_row(
    config: ProjectionConfig,
    buffers: Buffers,
    ones: NkiTensor,
    row: NkiTensor,
    source: NkiTensor,
    target: NkiTensor,
) -> None:
    """Copies the one row of `source` to every partition of `target`: target[p, i] = sum_k ones[k, p] * row[k, i]."""
    nisa.dma_copy(dst=row, src=source[0:1, :])
    for bank in range(count_tiles(config.width, BANK_COLUMNS)):
        start = bank * BANK_COLUMNS
        stop = min(start + BANK_COLUMNS, config.width)
        spread = buffers.banks[bank % config.psum_banks][:, 0 : stop - start]
        nisa.nc_matmul(
            dst=spread,
            stationary=ones,
            moving=row[:, start:stop],
            is_stationary_onezero=True,
            accumulate=False,
        )
        nisa.tensor_copy(dst=target[:, start:stop], src=spread, engine=nisa.engine.vector)


def load_resident_weights(config: ProjectionConfig, buffers: Buffers, weight_words: NkiTensor) -> list[list[NkiTensor]]:
    """Loads the first N H-tiles over all columns, once, and returns each one's banks as moving operands.

    resident[p, h, i] = weight_words[128 h + p, i]
    """
    banks: list[list[NkiTensor]] = []
    if buffers.resident is None:
        return banks
    for h in range(config.resident_h_tiles):
        first, height = h_tile_rows(config, h)
        h_tile = buffers.resident[0:height, h, :]
        nisa.dma_copy(dst=h_tile, src=weight_words[first : first + height, :])
        banks.append(split_banks(h_tile))
    return banks


def split_banks(weights: NkiTensor) -> list[NkiTensor]:
    """Columns of an H-tile's weights, a PSUM bank's worth at a time."""
    banks = []
    width = weights.shape[1]
    for start in range(0, width, BANK_COLUMNS):
        banks.append(weights[:, start : min(start + BANK_COLUMNS, width)])
    return banks


def load_chunk(
    config: ProjectionConfig, buffers: Buffers, weight_words: NkiTensor, group: IGroup, h: int, chunks_loaded: int
) -> list[NkiTensor]:
    """Streams a group's columns of one H-tile into the next rotating buffer and returns their banks."""
    first, height = h_tile_rows(config, h)
    column = group.first_bank * BANK_COLUMNS
    width = min(group.num_banks * BANK_COLUMNS, config.width - column)
    chunk = buffers.chunks[chunks_loaded % CHUNK_BUFFERS][0:height, 0:width]
    nisa.dma_copy(dst=chunk, src=weight_words[first : first + height, column : column + width])
    return split_banks(chunk)


def h_tile_rows(config: ProjectionConfig, h: int) -> tuple[int, int]:
    """First word row of H-tile `h` and how many it has."""
    first = h * H_TILE_WORDS
    return first, min(H_TILE_WORDS, config.hidden // H_PACK - first)


def tile_tokens(config: ProjectionConfig, tile: int) -> tuple[int, int]:
    """First token of S-tile `tile` within its core and how many it has."""
    first = tile * S_TILE
    return first, min(S_TILE, config.tokens_per_core - first)


def even(count: int) -> int:
    """`count`, or one more: the stationary operand has an even number of columns."""
    return count + count % 2


def load_activations(
    config: ProjectionConfig, buffers: Buffers, hidden_words: NkiTensor, block: SBlock
) -> list[list[NkiTensor]]:
    """Loads a block's rows, keeps their scales, transposes their words and returns them as stationary operands.

    activations[t][p, h, s] = word 128 h + p of token s;  row_scales[t][s] = last word of token s
    """
    stationary = []
    core_first = nl.program_id(0) * config.tokens_per_core
    scale_word = config.hidden // H_PACK
    for t in range(block.num_tiles):
        first, tokens = tile_tokens(config, block.first_tile + t)
        rows = buffers.rows[(block.first_tile + t) % ROW_BUFFERS]
        nisa.dma_copy(dst=rows[0:tokens, :], src=hidden_words[core_first + first : core_first + first + tokens, :])
        nisa.tensor_copy(
            dst=buffers.row_scales[t][0:tokens, :],
            src=rows[0:tokens, scale_word : scale_word + 1],
            engine=nisa.engine.gpsimd,
        )
        transpose_words(config, buffers, rows, buffers.activations[t], tokens)
        if tokens % 2 == 1:
            # The product computes this column too; its result is not stored, but it must hold something.
            pad = buffers.activations[t][:, :, tokens : tokens + 1]
            nisa.memset(dst=pad, value=0.0, engine=nisa.engine.gpsimd)
        stationary.append(split_h_tiles(config, buffers.activations[t], even(tokens)))
    return stationary


def split_h_tiles(config: ProjectionConfig, activations: NkiTensor, columns: int) -> list[NkiTensor]:
    """An S-tile's activations, one stationary operand for each H-tile."""
    h_tiles = []
    for h in range(activations.shape[1]):
        height = h_tile_rows(config, h)[1]
        h_tiles.append(activations[0:height, h, 0:columns].view(nl.float8_e4m3fn_x4))
    return h_tiles


def transpose_words(
    config: ProjectionConfig, buffers: Buffers, rows: NkiTensor, activations: NkiTensor, tokens: int
) -> None:
    """activations[p, h, s] = rows[s, 128 h + p], four H-tiles to a PSUM bank.

    The copy stays on the Vector Engine, which copies equal types bit by bit: the words are codes, and some of them
    are NaN patterns of fp32.
    """
    h_tiles = count_tiles(config.hidden // H_PACK, H_TILE_WORDS)
    for start in range(0, h_tiles, TRANSPOSES_PER_BANK):
        bank = buffers.banks[start // TRANSPOSES_PER_BANK % config.psum_banks]
        stop = min(start + TRANSPOSES_PER_BANK, h_tiles)
        for h in range(start, stop):
            first, height = h_tile_rows(config, h)
            column = (h - start) * S_TILE
            nisa.nc_transpose(
                dst=bank[0:height, column : column + tokens],
                data=rows[0:tokens, first : first + height],
                engine=nisa.engine.tensor,
            )
        last_height = h_tile_rows(config, stop - 1)[1]
        whole = stop if last_height == H_TILE_WORDS else stop - 1
        slots = bank.reshape((S_TILE, TRANSPOSES_PER_BANK, S_TILE))
        if whole > start:
            nisa.tensor_copy(
                dst=activations[:, start:whole, 0:tokens],
                src=slots[:, 0 : whole - start, 0:tokens],
                engine=nisa.engine.vector,
            )
        if whole < stop:
            nisa.tensor_copy(
                dst=activations[0:last_height, whole, 0:tokens],
                src=slots[0:last_height, whole - start, 0:tokens],
                engine=nisa.engine.vector,
            )


def bank_columns(config: ProjectionConfig, bank: int) -> tuple[int, int]:
    """First output column of I-tile `bank` and how many it has."""
    first = bank * BANK_COLUMNS
    return first, min(BANK_COLUMNS, config.width - first)


def group_targets(config: ProjectionConfig, buffers: Buffers, block: SBlock, group: IGroup) -> list[list[NkiTensor]]:
    """For each S-tile of a block, the part of each bank of a group that its product fills."""
    targets = []
    for t in range(block.num_tiles):
        columns = even(tile_tokens(config, block.first_tile + t)[1])
        row = []
        for b in range(group.num_banks):
            width = bank_columns(config, group.first_bank + b)[1]
            row.append(buffers.banks[t * group.num_banks + b][0:columns, 0:width])
        targets.append(row)
    return targets


def multiply(
    buffers: Buffers,
    stationary: list[list[NkiTensor]],
    moving: list[NkiTensor],
    targets: list[list[NkiTensor]],
    h: int,
) -> None:
    """One H-tile's share of every bank: the activations of an S-tile stay in place over the group's banks.

    targets[t][b] += stationary[t][h].T @ moving[b]
    """
    height = moving[0].shape[0]
    moving_scales = []
    for bank in moving:
        moving_scales.append(buffers.mx_scale[0:height, 0 : bank.shape[1]])
    for t in range(len(targets)):
        activations = stationary[t][h]
        scales = buffers.mx_scale[0:height, 0 : activations.shape[1]]
        for b in range(len(moving)):
            nisa.nc_matmul_mx(
                dst=targets[t][b],
                stationary=activations,
                moving=moving[b],
                stationary_scale=scales,
                moving_scale=moving_scales[b],
                accumulate=h > 0,
            )


def evict(config: ProjectionConfig, buffers: Buffers, block: SBlock, group: IGroup) -> None:
    """Dequantises a finished I-group and adds the bias.

    outputs[t][s, i] = bf16(banks[..][s, i] * row_scales[t][s] * channel_scale[i] + bias[i])
    """
    for t in range(block.num_tiles):
        tokens = tile_tokens(config, block.first_tile + t)[1]
        for b in range(group.num_banks):
            first, width = bank_columns(config, group.first_bank + b)
            index = t * group.num_banks + b
            target = buffers.outputs[t][0:tokens, first : first + width]
            dequantised = target
            if buffers.bias is not None:
                dequantised = buffers.dequantised[index % DEQUANT_BUFFERS][0:tokens, 0:width]
            nisa.scalar_tensor_tensor(
                dst=dequantised,
                data=buffers.banks[index][0:tokens, 0:width],
                op0=nl.multiply,
                operand0=buffers.row_scales[t][0:tokens, :],
                op1=nl.multiply,
                operand1=buffers.channel_scale[0:tokens, first : first + width],
            )
            if buffers.bias is not None:
                nisa.tensor_tensor(
                    dst=target,
                    data1=dequantised,
                    data2=buffers.bias[0:tokens, first : first + width],
                    op=nl.add,
                    engine=nisa.engine.gpsimd,
                )


def store(config: ProjectionConfig, buffers: Buffers, output_rows: NkiTensor, block: SBlock) -> None:
    """Writes a block's finished rows, each one contiguous in HBM."""
    core_first = nl.program_id(0) * config.tokens_per_core
    for t in range(block.num_tiles):
        first, tokens = tile_tokens(config, block.first_tile + t)
        row = core_first + first
        nisa.dma_copy(dst=output_rows[row : row + tokens, :], src=buffers.outputs[t][0:tokens, :])
