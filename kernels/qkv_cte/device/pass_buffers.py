"""The on-chip tensors of the norm and RoPE pass, over what the projection no longer needs."""

from dataclasses import dataclass

import nki.language as nl
from kernels.qkv_cte.device.config import PASS_BUFFERS, S_TILE, NormRopePass, ProjectionConfig
from kernels.qkv_cte.device.loads import load_row
from kernels.qkv_cte.device.placing import place
from kernels.qkv_cte.device.tiling import count_tiles
from nki.language import NKIObject, NkiTensor


@dataclass
class PassBuffers(NKIObject):
    """Tensors of the pass. Lists run over rotating buffers, but `gammas` over segments."""

    gammas: list[NkiTensor | None]
    caches: list[tuple[NkiTensor, NkiTensor]]
    rows: list[NkiTensor]
    angles: list[tuple[NkiTensor, NkiTensor]]
    straight: list[NkiTensor]
    crossed: list[NkiTensor]


def load_gammas(
    config: ProjectionConfig,
    norm_rope: NormRopePass,
    q_gamma: NkiTensor | None,
    k_gamma: NkiTensor | None,
) -> list[NkiTensor | None]:
    """Loads each segment's gamma to every partition, in its type; None for a segment that is not normalised.

    gamma[p, i] = gamma of channel i of the whole segment
    """
    gammas = []
    for segment in norm_rope.segments:
        source = q_gamma if segment.name == "q" else k_gamma
        gamma = None
        if source != None and segment.gamma_bytes > 0:
            gamma = place(config, f"gamma_{segment.name}", (S_TILE, segment.width), source.dtype)
            load_row(gamma, source)
        gammas.append(gamma)
    return gammas


def allocate_pass(
    config: ProjectionConfig,
    norm_rope: NormRopePass,
    gammas: list[NkiTensor | None],
    cos: NkiTensor | None,
    output: NkiTensor,
) -> PassBuffers:
    """Creates the rotating buffers of the pass at their addresses. Layouts, partition dimension first:

    rows [128 tokens, widest segment] of the output's type; with RoPE caches and angles, each cos and sin,
    [128 tokens, head_dim] of the caches' type and of fp32; straight, crossed [128 tokens, widest segment] fp32.
    """
    caches, rows, angles, straight, crossed = [], [], [], [], []
    widest = 0
    for segment in norm_rope.segments:
        widest = max(widest, segment.width)
    s_tiles = count_tiles(config.tokens_per_core, S_TILE)
    angle_shape = (S_TILE, norm_rope.head_dim)
    for i in range(min(PASS_BUFFERS, s_tiles * len(norm_rope.segments))):
        rows.append(place(config, f"pass_rows_{i}", (S_TILE, widest), output.dtype))
        if cos != None:
            scaled_cos = place(config, f"scaled_cos_{i}", angle_shape, nl.float32)
            scaled_sin = place(config, f"scaled_sin_{i}", angle_shape, nl.float32)
            angles.append((scaled_cos, scaled_sin))
            straight.append(place(config, f"straight_{i}", (S_TILE, widest), nl.float32))
            crossed.append(place(config, f"crossed_{i}", (S_TILE, widest), nl.float32))
    if cos != None:
        for i in range(min(PASS_BUFFERS, s_tiles)):
            cos_tile = place(config, f"cos_{i}", angle_shape, cos.dtype)
            caches.append((cos_tile, place(config, f"sin_{i}", angle_shape, cos.dtype)))
    return PassBuffers(gammas=gammas, caches=caches, rows=rows, angles=angles, straight=straight, crossed=crossed)
