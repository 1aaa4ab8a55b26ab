"""Norms of single heads and RoPE, on the way from PSUM to SBUF: a piece of whole heads at a time, all of them at once.

Everything is fp32 from the projection's scales and bias on; what the last step gives is rounded once to the output's
type.
"""

from dataclasses import dataclass

import nki.isa as nisa
import nki.language as nl
from kernels.qkv_cte.device.config import LAYER, S_TILE, HeadNorm, Piece, ProjectionConfig, SBlock
from kernels.qkv_cte.device.operands import Operands
from kernels.qkv_cte.device.placing import place
from kernels.qkv_cte.device.tiling import first_token, tile_tokens
from kernels.qkv_cte.device.transfer import copy
from nki.language import NKIObject, NkiTensor


@dataclass
class HeadBuffers(NKIObject):
    """Tensors of the stage, partition dimension first. Lists run over rotating buffers, or S-tiles of a block.

    Attributes:
        staged: [128 tokens, columns of a bank] fp32: projected, then worked on in place.
        scratch: the same, for squares and the crossed half of RoPE.
        inv_rms, means: [128 tokens, heads of a bank] fp32, behind the columns of `staged`.
        vectors: gammas and betas by name, [128, head_dim], the same row in every partition.
        cos, sin, k_cos, k_sin: [128 tokens, head_dim] for each S-tile; the lower half of sin with its sign changed.
    """

    staged: list[NkiTensor]
    scratch: list[NkiTensor]
    means: list[NkiTensor]
    inv_rms: list[NkiTensor]
    vectors: dict[str, NkiTensor]
    cos: list[NkiTensor]
    sin: list[NkiTensor]
    k_cos: list[NkiTensor]
    k_sin: list[NkiTensor]


def allocate_heads(config: ProjectionConfig, operands: Operands) -> HeadBuffers:
    """Creates the buffers at their addresses; none where no head is normalised or rotated."""
    stage = config.stages.heads
    staged, scratch, inv_rms, means = [], [], [], []
    vectors: dict[str, NkiTensor] = {}
    if stage != None:
        columns = min(config.bank_columns, config.width)
        count = columns // stage.head_dim
        norm_end = columns + count if has_norm(config, "") else columns
        end = norm_end + count if has_norm(config, LAYER) else norm_end
        for i in range(config.head_buffers):
            whole = place(config, f"staged_{i}", (S_TILE, end), nl.float32)
            staged.append(whole[:, 0:columns])
            scratch.append(place(config, f"head_scratch_{i}", (S_TILE, columns), nl.float32))
            if norm_end > columns:
                inv_rms.append(whole[:, columns:norm_end])
            if end > norm_end:
                means.append(whole[:, norm_end:end])
        if operands.head_vectors != None:
            for name, source in operands.head_vectors.items():
                vectors[name] = place(config, name, (S_TILE, stage.head_dim), source.dtype)
    rope = allocate_rope(config, operands)
    return HeadBuffers(
        staged=staged,
        scratch=scratch,
        means=means,
        inv_rms=inv_rms,
        vectors=vectors,
        cos=rope["rope_cos"],
        sin=rope["rope_sin"],
        k_cos=rope["rope_k_cos"],
        k_sin=rope["rope_k_sin"],
    )


def allocate_rope(config: ProjectionConfig, operands: Operands) -> dict[str, list[NkiTensor]]:
    """Creates the buffers of the RoPE caches at their addresses, by name; none without RoPE."""
    stage = config.stages.heads
    rope: dict[str, list[NkiTensor]] = {}
    for name, source in rope_sources(operands):
        tiles = []
        if stage != None and stage.rope_bytes > 0 and source != None:
            for t in range(config.blocks[0].num_tiles):
                tiles.append(place(config, f"{name}_{t}", (S_TILE, stage.head_dim), source.dtype))
        rope[name] = tiles
    return rope


def has_norm(config: ProjectionConfig, kind: str) -> bool:
    """Whether any segment has a norm of this kind, or of any kind where it is ""."""
    found = False
    if config.stages.heads != None:
        for segment in config.stages.heads.segments:
            for norm in (segment.before, segment.after):
                if norm != None and kind in ("", norm.kind):
                    found = True
    return found


def rope_sources(operands: Operands) -> list[tuple[str, NkiTensor | None]]:
    """Names of the buffers of the RoPE caches and what they are loaded from."""
    return [
        ("rope_cos", operands.cos),
        ("rope_sin", operands.sin),
        ("rope_k_cos", operands.k_cos),
        ("rope_k_sin", operands.k_sin),
    ]


def head_vectors(operands: Operands, heads: HeadBuffers) -> list[tuple[NkiTensor, NkiTensor]]:
    """Rows that are loaded to every partition, with where they go."""
    vectors = []
    if operands.head_vectors != None:
        for name, source in operands.head_vectors.items():
            vectors.append((source, heads.vectors[name]))
    return vectors


def load_rope(config: ProjectionConfig, operands: Operands, heads: HeadBuffers, block: SBlock) -> None:
    """Loads the RoPE caches of a block's tokens: sin[t][s, i] = -sin_cache[token, i] in the lower half."""
    stage = config.stages.heads
    if stage == None or stage.rope_bytes == 0:
        return
    half = stage.head_dim // 2
    tables = [
        (heads.cos, operands.cos),
        (heads.sin, operands.sin),
        (heads.k_cos, operands.k_cos),
        (heads.k_sin, operands.k_sin),
    ]
    for t in range(block.num_tiles):
        first, tokens = tile_tokens(config, block.first_tile + t)
        first += first_token(config)
        for targets, source in tables:
            if source != None and len(targets) > 0:
                rows = source.reshape((source.shape[0] * source.shape[1], source.shape[2]))
                copy(dst=targets[t][0:tokens, :], src=rows[first : first + tokens, :])
        for sines in (heads.sin, heads.k_sin):
            if len(sines) > 0:
                lower = sines[t][0:tokens, 0:half]
                nisa.tensor_scalar(dst=lower, data=lower, op0=nl.multiply, operand0=-1.0, engine=nisa.engine.scalar)


def finish_heads(
    config: ProjectionConfig,
    heads: HeadBuffers,
    piece: Piece,
    staged: NkiTensor,
    finished: NkiTensor,
    t: int,
    slot: int,
) -> None:
    """Norm, RoPE and norm of a piece of whole heads; each step works in place and the last one writes the output.

    finished = after(rope(before(staged)))
    """
    stage = config.stages.heads
    if stage == None:
        return
    segment = stage.segments[piece.head_segment]
    by_head = (piece.width // stage.head_dim, stage.head_dim)
    tokens = staged.shape[0]
    x = staged.reshape_dim(1, by_head)
    result = finished.reshape_dim(1, by_head)
    scratch = heads.scratch[slot][0:tokens, 0 : piece.width].reshape_dim(1, by_head)
    if segment.before != None:
        last = stage.rope_bytes == 0 and segment.after == None
        normalise(heads, segment.before, f"{segment.name}_before", x, scratch, result if last else x, slot)
    if stage.rope_bytes > 0:
        cos, sin = heads.cos[t], heads.sin[t]
        if segment.name == "k" and stage.own_k_caches:
            cos, sin = heads.k_cos[t], heads.k_sin[t]
        rotate_heads(x, scratch, cos[0:tokens, :], sin[0:tokens, :], result if segment.after == None else x)
    if segment.after != None:
        normalise(heads, segment.after, f"{segment.name}_after", x, scratch, result, slot)


def normalise(
    heads: HeadBuffers, norm: HeadNorm, name: str, x: NkiTensor, scratch: NkiTensor, result: NkiTensor, slot: int
) -> None:
    """result[s, n, i] = (x[s, n, i] - mean[s, n]) * inv_rms[s, n] * gamma[i] + beta[i]; without the mean with RMS."""
    tokens, count, head_dim = x.shape
    vector, gpsimd = nisa.engine.vector, nisa.engine.gpsimd
    inv_rms = heads.inv_rms[slot][0:tokens, 0:count]
    if norm.kind == LAYER:
        means = heads.means[slot][0:tokens, 0:count]
        nisa.tensor_reduce(dst=means, op=nl.add, data=x, axis=2)
        nisa.activation(dst=means, op=nl.copy, data=means, scale=1.0 / head_dim)
        nisa.tensor_tensor(dst=x, data1=x, data2=over_lanes(means, head_dim), op=nl.subtract, engine=gpsimd)
    nisa.activation(dst=scratch, op=nl.square, data=x)
    nisa.tensor_reduce(dst=inv_rms, op=nl.add, data=scratch, axis=2)
    nisa.activation(dst=inv_rms, op=nl.rsqrt, data=inv_rms, scale=1.0 / head_dim, bias=norm.eps)
    gamma, beta = None, None
    if norm.gamma_bytes > 0:
        gamma = over_heads(heads.vectors[f"{name}_gamma"][0:tokens, :], count)
    if norm.beta_bytes > 0:
        beta = over_heads(heads.vectors[f"{name}_beta"][0:tokens, :], count)
    scaled = result if gamma == None and beta == None else x
    nisa.tensor_tensor(dst=scaled, data1=x, data2=over_lanes(inv_rms, head_dim), op=nl.multiply, engine=vector)
    if gamma != None:
        target = result if beta == None else x
        nisa.tensor_tensor(dst=target, data1=x, data2=gamma, op=nl.multiply, engine=gpsimd)
    if beta != None:
        nisa.tensor_tensor(dst=result, data1=x, data2=beta, op=nl.add, engine=gpsimd)


def rotate_heads(x: NkiTensor, scratch: NkiTensor, cos: NkiTensor, sin: NkiTensor, result: NkiTensor) -> None:
    """Rotate-half RoPE in four wide operations.

    result[s, n, i] = x[s, n, i] * cos[s, i] + x[s, n, other half of i] * sin[s, i]
    """
    count, head_dim = x.shape[1], x.shape[2]
    half = head_dim // 2
    cos, sin = over_heads(cos, count), over_heads(sin, count)
    vector, gpsimd = nisa.engine.vector, nisa.engine.gpsimd
    lower, upper = scratch[:, :, 0:half], scratch[:, :, half:head_dim]
    nisa.tensor_tensor(dst=lower, data1=x[:, :, half:head_dim], data2=sin[:, :, 0:half], op=nl.multiply, engine=gpsimd)
    nisa.tensor_tensor(dst=upper, data1=x[:, :, 0:half], data2=sin[:, :, half:head_dim], op=nl.multiply, engine=gpsimd)
    nisa.tensor_tensor(dst=x, data1=x, data2=cos, op=nl.multiply, engine=vector)
    nisa.tensor_tensor(dst=result, data1=x, data2=scratch, op=nl.add, engine=vector)


def over_heads(vector: NkiTensor, count: int) -> NkiTensor:
    """[tokens, head_dim], repeated for each head by a stride of 0."""
    return vector.expand_dim(1).broadcast(1, count)


def over_lanes(numbers: NkiTensor, head_dim: int) -> NkiTensor:
    """[tokens, heads], repeated for each lane of a head by a stride of 0."""
    return numbers.expand_dim(2).broadcast(2, head_dim)
