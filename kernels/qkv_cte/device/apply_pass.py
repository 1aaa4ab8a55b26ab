"""The deferred pass over Q and K: gamma, `inv_rms` and RoPE, in place in HBM."""

import nki.isa as nisa
import nki.language as nl
from kernels.qkv_cte.device.buffers import Buffers
from kernels.qkv_cte.device.config import S_TILE, NormRopePass, ProjectionConfig
from kernels.qkv_cte.device.engines import helper
from kernels.qkv_cte.device.evict import output_columns
from kernels.qkv_cte.device.norm_pass import reduce_to_inv_rms
from kernels.qkv_cte.device.operands import Operands
from kernels.qkv_cte.device.pass_buffers import PassBuffers, allocate_pass, load_gammas
from kernels.qkv_cte.device.tiling import count_tiles, first_token, tile_tokens
from kernels.qkv_cte.device.transfer import copy
from nki.language import NkiTensor


def apply_pass(config: ProjectionConfig, buffers: Buffers, operands: Operands, output: NkiTensor) -> None:
    """Normalises and rotates the stored segments; rotates with RoPE, otherwise only normalises.

    output[s, segment] = bf16(f(output[s, segment]))   for every S-tile and segment of the pass
    """
    norm_rope = config.norm_rope
    if norm_rope == None:
        return
    inv_rms = reduce_to_inv_rms(config, buffers)
    gammas = load_gammas(config, norm_rope, operands.q_gamma, operands.k_gamma)
    passing = allocate_pass(config, norm_rope, gammas, operands.cos, output)
    core_first = first_token(config)
    applied = 0
    for tile in range(count_tiles(config.tokens_per_core, S_TILE)):
        first, tokens = tile_tokens(config, tile)
        caches = load_caches(passing, operands.cos, operands.sin, core_first + first, tokens, tile)
        for i in range(len(norm_rope.segments)):
            segment = norm_rope.segments[i]
            columns = output_columns(config, output, core_first + first, tokens, segment.first_column, segment.width)
            rows = passing.rows[applied % len(passing.rows)][0:tokens, 0 : segment.width]
            copy(dst=rows, src=columns)
            scale = None
            if inv_rms != None and segment.gamma_bytes > 0:
                column = segment.sum_column + tile
                scale = inv_rms[0:tokens, column : column + 1]
            gamma = passing.gammas[i]
            if gamma != None:
                gamma = gamma[0:tokens, :]
            if caches != None:
                rotate(config, norm_rope, passing, rows, scale, gamma, caches, applied)
            else:
                normalise(rows, scale, gamma)
            copy(dst=columns, src=rows)
            applied += 1


def load_caches(
    passing: PassBuffers,
    cos_cache: NkiTensor | None,
    sin_cache: NkiTensor | None,
    first_token: int,
    tokens: int,
    tile: int,
) -> tuple[NkiTensor, NkiTensor] | None:
    """Loads an S-tile's rows of the caches [B, S, head_dim], of which B and S are one axis here; None without RoPE."""
    if cos_cache == None or sin_cache == None:
        return None
    batch, seqlen, head_dim = cos_cache.shape
    cos, sin = passing.caches[tile % len(passing.caches)]
    flat = (batch * seqlen, head_dim)
    copy(dst=cos[0:tokens, :], src=cos_cache.reshape(flat)[first_token : first_token + tokens, :])
    copy(dst=sin[0:tokens, :], src=sin_cache.reshape(flat)[first_token : first_token + tokens, :])
    return cos[0:tokens, :], sin[0:tokens, :]


def normalise(rows: NkiTensor, inv_rms: NkiTensor | None, gamma: NkiTensor | None) -> None:
    """One wide operation: rows[s, i] = bf16(rows[s, i] * inv_rms[s] * gamma[i]), in fp32 until then."""
    if inv_rms != None and gamma != None:
        nisa.scalar_tensor_tensor(
            dst=rows, data=rows, op0=nl.multiply, operand0=inv_rms, op1=nl.multiply, operand1=gamma
        )


def rotate(
    config: ProjectionConfig,
    norm_rope: NormRopePass,
    passing: PassBuffers,
    rows: NkiTensor,
    inv_rms: NkiTensor | None,
    gamma: NkiTensor | None,
    caches: tuple[NkiTensor, NkiTensor],
    applied: int,
) -> None:
    """Gamma, then rotate-half RoPE over all heads in four wide operations, fp32 but for the result.

    x = rows * gamma
    rows[s, h, i] = bf16(x[s, h, i] * cos'[s, i] + x[s, h, other half of i] * sin'[s, i])

    cos' = cos * inv_rms; sin' = sin * inv_rms, negative in the lower half. Both are broadcast over the heads by a
    stride of 0.
    """
    tokens, width = rows.shape
    head_dim = norm_rope.head_dim
    half, heads = head_dim // 2, width // head_dim
    slot = applied % len(passing.rows)
    cos, sin = scaled_angles(passing.angles[slot], caches, inv_rms, half)
    cos = cos.expand_dim(1).broadcast(1, heads)
    sin = sin.expand_dim(1).broadcast(1, heads)
    straight = passing.straight[slot][0:tokens, 0:width]
    x = rows
    if gamma != None:
        nisa.tensor_tensor(dst=straight, data1=rows, data2=gamma, op=nl.multiply, engine=helper(config))
        x = straight
    by_head = (heads, head_dim)
    x = x.reshape_dim(1, by_head)
    straight = straight.reshape_dim(1, by_head)
    crossed = passing.crossed[slot][0:tokens, 0:width].reshape_dim(1, by_head)
    vector = nisa.engine.vector
    nisa.tensor_tensor(
        dst=crossed[:, :, 0:half], data1=x[:, :, half:head_dim], data2=sin[:, :, 0:half], op=nl.multiply, engine=vector
    )
    nisa.tensor_tensor(
        dst=crossed[:, :, half:head_dim],
        data1=x[:, :, 0:half],
        data2=sin[:, :, half:head_dim],
        op=nl.multiply,
        engine=vector,
    )
    nisa.tensor_tensor(dst=straight, data1=x, data2=cos, op=nl.multiply, engine=helper(config))
    nisa.tensor_tensor(dst=rows.reshape_dim(1, by_head), data1=straight, data2=crossed, op=nl.add, engine=vector)


def scaled_angles(
    angles: tuple[NkiTensor, NkiTensor], caches: tuple[NkiTensor, NkiTensor], inv_rms: NkiTensor | None, half: int
) -> tuple[NkiTensor, NkiTensor]:
    """cos' = cos * inv_rms;  sin' = [-sin_lo, sin_hi] * inv_rms;  three narrow operations, of one head's width."""
    cos, sin = caches
    tokens, head_dim = cos.shape
    scaled_cos, scaled_sin = angles[0][0:tokens, :], angles[1][0:tokens, :]
    scale = 1.0 if inv_rms == None else inv_rms
    scalar, vector = nisa.engine.scalar, nisa.engine.vector
    nisa.tensor_scalar(dst=scaled_cos, data=cos, op0=nl.multiply, operand0=scale, engine=scalar)
    nisa.tensor_scalar(
        dst=scaled_sin[:, 0:half],
        data=sin[:, 0:half],
        op0=nl.multiply,
        operand0=scale,
        op1=nl.multiply,
        operand1=-1.0,
        engine=vector,
    )
    nisa.tensor_scalar(
        dst=scaled_sin[:, half:head_dim], data=sin[:, half:head_dim], op0=nl.multiply, operand0=scale, engine=scalar
    )
    return scaled_cos, scaled_sin
