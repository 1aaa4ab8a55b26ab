"""The ROW_MX projection: `out = dequant(x_fp8 @ w_fp8) + bias`."""

import nki
import nki.language as nl
from kernels.qkv_cte.buffers import allocate
from kernels.qkv_cte.config import H_PACK, H_TILE_WORDS, ProjectionConfig
from kernels.qkv_cte.evict import evict, store
from kernels.qkv_cte.loads import load_activations, load_channels, load_chunk, load_resident_weights
from kernels.qkv_cte.matmul import group_operands, multiply
from kernels.qkv_cte.tiling import count_tiles
from nki.language import NkiTensor


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
    chunks_loaded, evicted = 0, 0
    for block in config.blocks:
        stationary = load_activations(config, buffers, hidden_words, block)
        for group in block.groups:
            operands = group_operands(config, buffers, block, group)
            for h in range(count_tiles(config.hidden // H_PACK, H_TILE_WORDS)):
                if h < config.resident_h_tiles:
                    moving = resident[h][group.first_bank : group.first_bank + group.num_banks]
                else:
                    moving = load_chunk(config, buffers, weight_words, group, h, chunks_loaded)
                    chunks_loaded += 1
                multiply(stationary, moving, operands, h)
            evicted = evict(config, buffers, block, group, evicted)
        store(config, buffers, output_rows, block)
    return output
