"""The general projection: unquantised, ROW_MX or MXFP8 operands, with what a model does around it."""

import nki
import nki.language as nl
from kernels.qkv_cte.device.config import ROW_MX, ProjectionConfig
from kernels.qkv_cte.device.operands import Operands
from kernels.qkv_cte.device.projection import create_output, project
from nki.language import NkiTensor


@nki.jit
def qkv_projection(
    hidden: NkiTensor,
    weight: NkiTensor,
    config: ProjectionConfig,
    weight_scales: NkiTensor | None = None,
    bias: NkiTensor | None = None,
    residual_0: NkiTensor | None = None,
    residual_1: NkiTensor | None = None,
    input_gamma: NkiTensor | None = None,
    input_beta: NkiTensor | None = None,
    cos_cache: NkiTensor | None = None,
    sin_cache: NkiTensor | None = None,
    k_cos_cache: NkiTensor | None = None,
    k_sin_cache: NkiTensor | None = None,
    q_gamma: NkiTensor | None = None,
    k_gamma: NkiTensor | None = None,
    q_before_gamma: NkiTensor | None = None,
    q_before_beta: NkiTensor | None = None,
    q_after_gamma: NkiTensor | None = None,
    q_after_beta: NkiTensor | None = None,
    k_before_gamma: NkiTensor | None = None,
    k_before_beta: NkiTensor | None = None,
    k_after_gamma: NkiTensor | None = None,
    k_after_beta: NkiTensor | None = None,
    k_cache: NkiTensor | None = None,
    v_cache: NkiTensor | None = None,
    slot_mapping: NkiTensor | None = None,
    k_scale: NkiTensor | None = None,
    v_scale: NkiTensor | None = None,
    q_squared_sum: NkiTensor | None = None,
    k_squared_sum: NkiTensor | None = None,
    v_squared_sum: NkiTensor | None = None,
) -> NkiTensor:
    """Projects activations to Q, K and V with everything that `config.stages` names.

    Dimensions:
        B, S, H, I: as `kernel.row_mx_projection`; an H-tile has 128 rows without quantisation, 512 in MX formats.

    Args:
        hidden: [B, S, H'] bf16, fp16 or fp32, of which the first H columns count; with ROW_MX [B, S, H + 4] fp8.
        weight: [H', I] bf16, fp16 or fp32, or in the MX formats [H / 4, I, 4] float8_e4m3fn.
        config: ProjectionConfig, from `plan.Plan.config`.
        weight_scales: with ROW_MX [1, I] fp32, with MXFP8 [H / 32, I] float8_e8m0fnu.
        bias: [1, I].
        residual_0, residual_1: [B, S, H'], added to `hidden`.
        input_gamma, input_beta: [1, H'] of the input norm.
        cos_cache, sin_cache: [B, S, head_dim], of Q and K, or of Q alone where `k_cos_cache`, `k_sin_cache` are given.
        q_gamma, k_gamma: [1, heads * head_dim], of norms across heads.
        q_before_gamma ... k_after_beta: [1, head_dim], of norms of single heads before and after RoPE.
        k_cache, v_cache: [B, max_seqlen, kv columns], or blocks [num_blocks, block_size, kv columns]; written.
        slot_mapping: [B, S] int32, the block cache's row of each token; tokens with a negative one are left out.
        k_scale, v_scale: [1, 1] fp32.
        q_squared_sum, k_squared_sum, v_squared_sum: [B, S] fp32; written.

    Returns:
        [B, S, I] in shared HBM, of the type of `hidden` (bf16 with ROW_MX); NBSd as `kernel.row_mx_projection`.

    Notes:
        Rounding: the residual sum is fp32. An input norm is fp32 from there on, and what it gives is rounded once to
        the type of the weights, or to bf16 (fp16 where `hidden` is) for MXFP8, which then rounds to fp8. Without a
        norm the sum is rounded likewise. Products accumulate in fp32; scales, bias, norms of single heads and RoPE
        are fp32 steps; one rounding at the end. K and V go to their caches as they are stored; with scales
        fp8(clamp(stored * (1 / scale))), fp32 until it is rounded.
        Norms across heads, and RoPE with them, are rounded as `kernel.row_mx_projection` says, to the output's type.
        Sums of squares are fp32, of the fp32 projection where norms or RoPE follow in the eviction, else of the stored
        one.
        An activation row meets its norm token-major: mean squares are sums along a row, and gamma, broadcast over
        the partitions once, is applied by the same instruction as `inv_rms`. Transposing comes after it, in two
        bytes per element, an instruction of the Tensor Engine per 128 rows of H.

    Pseudocode:
        as `kernel.row_mx_projection`, but
            x[t] = transpose(norm(hidden + residuals))        MXFP8: quantised in blocks of 8 partitions x 4 lanes
            out[t, bank] = after(rope(before(psum + bias)))   for the heads of Q and K, psum + bias for those of V
            caches[slots] = out[t, K], out[t, V]
    """
    named = {
        "q_before_gamma": q_before_gamma,
        "q_before_beta": q_before_beta,
        "q_after_gamma": q_after_gamma,
        "q_after_beta": q_after_beta,
        "k_before_gamma": k_before_gamma,
        "k_before_beta": k_before_beta,
        "k_after_gamma": k_after_gamma,
        "k_after_beta": k_after_beta,
    }
    sums = {"q": q_squared_sum, "k": k_squared_sum, "v": v_squared_sum}
    residuals: tuple[NkiTensor, ...] = ()
    if residual_0 != None:
        residuals = (residual_0,) if residual_1 == None else (residual_0, residual_1)
    operands = Operands(
        hidden=hidden,
        weight=weight,
        weight_scales=weight_scales,
        bias=bias,
        q_gamma=q_gamma,
        k_gamma=k_gamma,
        cos=cos_cache,
        sin=sin_cache,
        residuals=residuals,
        input_gamma=input_gamma,
        input_beta=input_beta,
        k_cos=k_cos_cache,
        k_sin=k_sin_cache,
        head_vectors=given(named),
        k_cache=k_cache,
        v_cache=v_cache,
        slots=slot_mapping,
        k_scale=k_scale,
        v_scale=v_scale,
        sums=given(sums),
    )
    output = create_output(config, operands, nl.bfloat16 if config.format.name == ROW_MX else hidden.dtype)
    project(config, operands, output)
    return output


def given(named: dict[str, NkiTensor | None]) -> dict[str, NkiTensor]:
    """Those that are not None."""
    found: dict[str, NkiTensor] = {}
    for name, tensor in named.items():
        if tensor != None:
            found[name] = tensor
    return found
