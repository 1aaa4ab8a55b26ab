"""Writes of finished K and V rows to their caches, as they are stored or rounded to fp8."""

from dataclasses import dataclass

import nki.isa as nisa
import nki.language as nl
from kernels.qkv_cte.device.buffers import Buffers
from kernels.qkv_cte.device.config import CACHE_BUFFERS, S_TILE, CacheStage, ProjectionConfig, SBlock
from kernels.qkv_cte.device.operands import Operands
from kernels.qkv_cte.device.placing import place
from kernels.qkv_cte.device.tiling import core_columns, count_tiles, first_token, tile_tokens
from kernels.qkv_cte.device.transfer import copy
from nki.language import NKIObject, NkiTensor


@dataclass
class CacheBuffers(NKIObject):
    """Tensors of the stage; lists run over rotating buffers. Empty, or None, where they are not needed.

    Attributes:
        inverse_scales: of K and of V, [128, 1] fp32, the same in every partition.
        quotients: [128 tokens, columns of K] fp32.
        codes: [128 tokens, columns of K] fp8.
        slots: [128 tokens, 1] int32.
    """

    inverse_scales: list[NkiTensor]
    quotients: list[NkiTensor]
    codes: list[NkiTensor]
    slots: list[NkiTensor]


def allocate_caches(config: ProjectionConfig, operands: Operands) -> CacheBuffers:
    """Creates the buffers at their addresses."""
    stage = config.stages.cache
    scales, quotients, codes, slots = [], [], [], []
    if stage != None and operands.k_cache != None:
        shape = (S_TILE, min(stage.width, config.width))
        if stage.scaled:
            scales.append(place(config, "k_scale", (S_TILE, 1), nl.float32))
            scales.append(place(config, "v_scale", (S_TILE, 1), nl.float32))
        for i in range(CACHE_BUFFERS):
            if stage.scaled:
                quotients.append(place(config, f"quotient_{i}", shape, nl.float32))
                codes.append(place(config, f"codes_{i}", shape, operands.k_cache.dtype))
            if stage.slots and i < count_tiles(config.tokens_per_core, S_TILE):
                slots.append(place(config, f"slots_{i}", (S_TILE, 1), nl.int32))
    return CacheBuffers(inverse_scales=scales, quotients=quotients, codes=codes, slots=slots)


def cache_vectors(operands: Operands, caches: CacheBuffers) -> list[tuple[NkiTensor, NkiTensor]]:
    """Scales that are loaded to every partition, with where they go."""
    vectors = []
    if operands.k_scale != None and operands.v_scale != None and len(caches.inverse_scales) > 0:
        vectors = [
            (operands.k_scale, caches.inverse_scales[0]),
            (operands.v_scale, caches.inverse_scales[1]),
        ]
    return vectors


def invert_scales(caches: CacheBuffers) -> None:
    """Replaces the scales, once they are loaded, by their reciprocals: no engine divides."""
    for scale in caches.inverse_scales:
        nisa.reciprocal(dst=scale, data=scale)


def write_caches(
    config: ProjectionConfig, buffers: Buffers, caches: CacheBuffers, operands: Operands, block: SBlock
) -> None:
    """Writes a block's K and V columns that this core has.

    cache[row of token s] = outputs[t][s, columns]   rounded to fp8 where there are scales
    """
    stage = config.stages.cache
    if stage == None or operands.k_cache == None or operands.v_cache == None:
        return
    written = 0
    for t in range(block.num_tiles):
        tile = block.first_tile + t
        first, tokens = tile_tokens(config, tile)
        first += first_token(config)
        slots = None
        if operands.slots != None and stage.slots:
            slots = caches.slots[tile % CACHE_BUFFERS][0:tokens, :]
            mapping = operands.slots.reshape((operands.slots.shape[0] * operands.slots.shape[1], 1))
            copy(dst=slots, src=mapping[first : first + tokens, :])
        pairs = [(operands.k_cache, stage.first_column), (operands.v_cache, stage.first_column + stage.width)]
        for i in range(len(pairs)):
            cache, segment_first = pairs[i]
            start, stop = own_columns(config, segment_first, stage.width)
            if start < stop:
                core_first = core_columns(config)[0]
                values = buffers.outputs[t][0:tokens, start - core_first : stop - core_first]
                if stage.scaled:
                    values = to_codes(
                        stage, caches, values, caches.inverse_scales[i][0:tokens, :], written % CACHE_BUFFERS
                    )
                columns = (start - segment_first, stop - segment_first)
                if slots == None:
                    write_flat(operands, cache, values, columns, first)
                else:
                    write_slots(cache, values, columns, slots)
                written += 1


def own_columns(config: ProjectionConfig, first: int, width: int) -> tuple[int, int]:
    """The part of a segment's columns that this core makes; empty where the first is not below the second."""
    core_first, core_width = core_columns(config)
    return max(first, core_first), min(first + width, core_first + core_width)


def to_codes(stage: CacheStage, caches: CacheBuffers, values: NkiTensor, scale: NkiTensor, slot: int) -> NkiTensor:
    """fp8(clamp(values * (1 / scale))), in fp32 until it is rounded; the clamp keeps the cast within its range."""
    tokens, width = values.shape
    quotient = caches.quotients[slot][0:tokens, 0:width]
    codes = caches.codes[slot][0:tokens, 0:width]
    nisa.tensor_scalar(
        dst=quotient,
        data=values,
        op0=nl.multiply,
        operand0=scale,
        op1=nl.minimum,
        operand1=stage.highest,
        engine=nisa.engine.vector,
    )
    nisa.tensor_scalar(dst=codes, data=quotient, op0=nl.maximum, operand0=stage.lowest, engine=nisa.engine.vector)
    return codes


def write_flat(operands: Operands, cache: NkiTensor, values: NkiTensor, columns: tuple[int, int], first: int) -> None:
    """cache[b, s, columns] = values of token (b, s); an S-tile may hold the end of one sequence and the next."""
    seqlen = operands.hidden.shape[1]
    done, tokens = 0, values.shape[0]
    while done < tokens:
        batch, position = (first + done) // seqlen, (first + done) % seqlen
        count = min(tokens - done, seqlen - position)
        target = cache[batch, position : position + count, columns[0] : columns[1]]
        copy(dst=target, src=values[done : done + count, :])
        done += count


def write_slots(cache: NkiTensor, values: NkiTensor, columns: tuple[int, int], slots: NkiTensor) -> None:
    """cache[slots[s] // block_size, slots[s] % block_size, columns] = values[s]; a negative slot is left out."""
    tokens, width = values.shape
    blocks, block_size, row = cache.shape
    rows = cache.reshape((blocks * block_size, row))
    nisa.dma_copy(
        dst=rows.ap(pattern=[[row, tokens], [1, width]], offset=columns[0], vector_offset=slots, indirect_dim=0),
        src=values,
        oob_mode=nisa.oob_mode.skip,
        dge_mode=nisa.dge_mode.swdge,
    )
