"""The ROW_MX projection: `out = dequant(x_fp8 @ w_fp8) + bias`."""

import nki
import nki.language as nl
from kernels.qkv_cte.device.config import ProjectionConfig
from kernels.qkv_cte.device.operands import Operands
from kernels.qkv_cte.device.projection import create_output, project
from nki.language import NkiTensor


@nki.jit
def row_mx_projection(
    packed_hidden: NkiTensor,
    weight: NkiTensor,
    weight_scales: NkiTensor,
    bias: NkiTensor | None,
    config: ProjectionConfig,
    q_gamma: NkiTensor | None = None,
    k_gamma: NkiTensor | None = None,
    cos_cache: NkiTensor | None = None,
    sin_cache: NkiTensor | None = None,
) -> NkiTensor:
    """Projects row-quantised fp8 activations with column-quantised fp8 weights, then normalises and rotates (trn3).

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
        q_gamma, k_gamma: [1, heads * head_dim] float32 or bfloat16 for each segment that `config.norm_rope` normalises.
        cos_cache, sin_cache: [B, S, head_dim], both float32 or both bfloat16, rotate-half convention, with RoPE.

    Returns:
        [B, S, I] bfloat16 in shared HBM; [heads, B, S, head_dim] where `config.nbsd_head_dim` is set.

    Notes:
        Rounding: products accumulate in fp32; times row scale, times column scale, plus bias are fp32 steps; one
        rounding to bf16 at the end. The public kernel rounds after the scales and again after the bias.
        Q and K that are normalised or rotated are rounded to bf16 twice in all. Between the two everything is fp32,
        with a step of rounding at each operator. In the pass after the all-reduce (the seed's schedule):
            1. x = bf16(projection); 2. the squares of x and their sum, so that what is normalised has the mean square
            that was measured; 3. inv_rms = rsqrt(sum / count + eps); 4. bf16 of
            (x * inv_rms) * gamma without RoPE, with it of
            (x * gamma) * (cos * inv_rms) + (half-swapped x * gamma) * (+-sin * inv_rms).
        In the evictions (early flow):
            1. the squares of the fp32 projection x and their sum by bank, then over banks; 2. y = bf16 of
            x * gamma without RoPE, with it of (x * gamma) * cos + (half-swapped x * gamma) * +-sin;
            3. inv_rms as above; 4. bf16(y * inv_rms).
        RoPE without a norm is rounded once in the early flow. V is rounded once in either.
        Activations arrive token-major; the matmul needs four contraction rows in each 4-byte word of a partition. Taken
        as fp32 words of four codes, that is a plain transpose on the Tensor Engine, which keeps every bit: 10 of its
        instructions per S-tile at H = 5120, against 80 to 100 products. A DMA that transposes would move 163,840
        separate elements of 4 bytes per S-tile.
        Column scales, bias and gammas are needed on every partition. They are read 4 times from HBM, to the first
        partition of each quadrant, and shuffled to the others, instead of being read 128 times.
        Every buffer sits at an address of the plan, so that the plan is what the chip allocates.
        With `config.flow.early` gamma and RoPE are applied while banks are evicted, before the all-reduce: only
        `inv_rms`, which acts on a token as a whole, is left for the pass. See `device.early` and `planning.flow_plan`.

    Pseudocode:
        resident = first N H-tiles of weight
        for block in S-blocks:
            x[t] = transpose(words of packed_hidden) for each S-tile t
            for group in I-groups:
                for h in H-tiles:
                    w = resident[h] or load(weight[h, group])
                    psum[t, bank] += x[t][h].T @ w[bank]   for every t, bank of group
                out[t, bank] = bf16(psum * row_scale[t] * column_scale + bias)
            sums[t, segment] = sum(out[t, segment]**2)   where normalised
            store out[t]
        inv_rms = rsqrt(all_reduce(sums) / count + eps)
        for each S-tile and segment that is normalised or rotated:
            load, apply gamma, inv_rms and RoPE, store in place
    """
    operands = Operands(
        hidden=packed_hidden,
        weight=weight,
        weight_scales=weight_scales,
        bias=bias,
        q_gamma=q_gamma,
        k_gamma=k_gamma,
        cos=cos_cache,
        sin=sin_cache,
    )
    output = create_output(config, operands, nl.bfloat16)
    project(config, operands, output)
    return output
