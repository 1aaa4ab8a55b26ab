"""The body of the kernels: S-blocks x I-groups x H-tiles, then the deferred pass."""

import nki.language as nl
from kernels.qkv_cte.device.activations import load_activations
from kernels.qkv_cte.device.apply_pass import apply_pass
from kernels.qkv_cte.device.buffers import allocate
from kernels.qkv_cte.device.cache_stage import allocate_caches, cache_vectors, invert_scales, write_caches
from kernels.qkv_cte.device.config import ProjectionConfig
from kernels.qkv_cte.device.early import load_block_caches
from kernels.qkv_cte.device.evict import Evicted, evict, store
from kernels.qkv_cte.device.head_stage import allocate_heads, head_vectors, load_rope
from kernels.qkv_cte.device.input_stage import allocate_input, input_vectors
from kernels.qkv_cte.device.loads import load_channels, load_chunk, load_resident_weights, load_rows, weight_matrix
from kernels.qkv_cte.device.matmul import group_operands, multiply
from kernels.qkv_cte.device.norm_pass import accumulate_squares, clear_sums
from kernels.qkv_cte.device.operands import Operands
from kernels.qkv_cte.device.scale_pass import scale_pass
from kernels.qkv_cte.device.sums import allocate_sums, store_sums
from kernels.qkv_cte.device.tiling import core_groups, count_h_tiles
from nki.language import NkiTensor


def create_output(config: ProjectionConfig, operands: Operands, dtype: str) -> NkiTensor:
    """The result in shared HBM, [B, S, I] or [heads, B, S, head_dim]."""
    batch, seqlen, _ = operands.hidden.shape
    width = config.shared_columns if config.shared_columns > 0 else config.width
    shape: tuple[int, ...] = (batch, seqlen, width)
    if config.nbsd_head_dim > 0:
        shape = (width // config.nbsd_head_dim, batch, seqlen, config.nbsd_head_dim)
    return nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm, name="output")


def project(config: ProjectionConfig, operands: Operands, output: NkiTensor) -> None:
    """Projects, finishes and stores all tokens of this core; see the kernels for what comes out."""
    buffers = allocate(config, operands, output)
    stage = allocate_input(config, operands)
    heads = allocate_heads(config, operands)
    sums, caches = allocate_sums(config), allocate_caches(config, operands)
    clear_sums(buffers)
    load_channels(config, buffers, operands)
    vectors = input_vectors(config, operands, stage) + head_vectors(operands, heads) + cache_vectors(operands, caches)
    load_rows(vectors)
    invert_scales(caches)
    weights = weight_matrix(config, operands.weight)
    resident = load_resident_weights(config, buffers, weights)
    chunks_loaded, evicted = 0, Evicted()
    early = buffers.early
    for block in config.blocks:
        stationary = load_activations(config, buffers, stage, operands, block)
        if early != None:
            load_block_caches(config, early, block.first_tile, block.num_tiles, operands.cos, operands.sin)
        load_rope(config, operands, heads, block)
        for group in core_groups(config, block):
            views = group_operands(config, buffers, stationary, block, group)
            for h in range(count_h_tiles(config)):
                if h < config.resident_h_tiles:
                    moving = resident[h][group.first_bank : group.first_bank + group.num_banks]
                else:
                    moving = load_chunk(config, buffers, weights, group, h, chunks_loaded)
                    chunks_loaded += 1
                multiply(config, stationary, moving, views, h)
            evicted = evict(config, buffers, heads, sums, block, group, evicted)
        accumulate_squares(config, buffers, block)
        store_sums(config, sums, operands, block)
        write_caches(config, buffers, caches, operands, block)
        store(config, buffers, output, block)
    if early != None:
        scale_pass(config, buffers, early, output)
    else:
        apply_pass(config, buffers, operands, output)
