"""Stressed activations and weights at the width of Wan2.2, and what quantisation and kernel leave of each head.

One rank of TP 4: 10 heads of Q, K and V from 5,120 channels, norm and RoPE included. A video of 720p x 81 frames is
21 x 45 x 80 = 75,600 latent positions; RoPE turns a third of a head's lanes by each coordinate, with base 10,000.
Tokens do not meet in a projection, so a sample of them, spread over all positions, stands for the video.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from common import row_mx
from kernels.qkv_cte.oracle import reference
from kernels.qkv_cte.oracle.cases import Case, Operands
from kernels.qkv_cte.oracle.norm_rope_cases import NormRopeCase, NormRopeOperands

GRID = (21, 45, 80)
"""Latent frames, rows and columns of the video."""

HIDDEN, HEADS, HEAD_DIM = 5120, 10, 128
AXIS_LANES = (44, 42, 42)
"""Lanes of a head that turn with each coordinate."""

TOKENS = 130
"""Sampled positions."""


@dataclass(frozen=True)
class Stress:
    """What the projection is of.

    Attributes:
        name: unique.
        change_x: from activations [S, H] of order 1 to stressed ones.
        head_scale: the weights and biases of head h of each segment are multiplied by this to the power of h.
    """

    name: str
    change_x: Callable[[torch.Tensor], torch.Tensor]
    head_scale: float = 1.0


def outlier_channels(x: torch.Tensor) -> torch.Tensor:
    """Eight channels a hundred times as large, as in the residual stream of trained transformers."""
    loud = torch.ones(x.shape[-1])
    loud[37::640] = 100.0
    return x * loud


def near_zero_rows(x: torch.Tensor) -> torch.Tensor:
    """Every second token about as small as the least row scale, 1e-6 times 448, and below; every 16th is zero."""
    size = torch.ones(x.shape[0], 1)
    size[1::2, 0] = 10.0 ** -torch.linspace(2.0, 8.0, size[1::2].numel())
    size[::16] = 0.0
    return x * size


STRESSES = (
    Stress("normal", lambda x: x),
    Stress("outlier channels", outlier_channels),
    Stress("near-zero rows", near_zero_rows),
    Stress("heads of scale 2**h", lambda x: x, head_scale=2.0),
)


@dataclass(frozen=True)
class Stressed:
    """A call and what it is in fp32.

    Attributes:
        call, operands: for the kernel, quantised.
        unquantised: Q, K and V [S, heads * head_dim] of the activations and weights before quantisation.
    """

    call: NormRopeCase
    operands: NormRopeOperands
    unquantised: tuple[torch.Tensor, ...]

    @property
    def quantised(self) -> tuple[torch.Tensor, ...]:
        """The same of the quantised operands, in fp64: what a kernel without any rounding would give."""
        projected = reference.row_mx_qkv_proj(*self.operands.projection.tensors)[0]
        return finish(self.call, self.operands, projected)


@functools.cache
def make(stress: Stress, tokens: int = TOKENS, seed: int = 0) -> Stressed:
    """Operands of a stress at positions spread evenly over all of the video."""
    generator = torch.Generator().manual_seed(seed)
    width = 3 * HEADS * HEAD_DIM
    x = stress.change_x(torch.randn(tokens, HIDDEN, generator=generator))
    scale = (stress.head_scale ** torch.arange(HEADS)).repeat_interleave(HEAD_DIM).repeat(3)
    weight = torch.randn(HIDDEN, width, generator=generator) / HIDDEN**0.5 * scale
    bias = 0.1 * torch.randn(1, width, generator=generator) * scale
    codes, scales = row_mx.quantise_columns(weight)
    q_gamma, k_gamma = (0.5 + torch.rand(1, HEADS * HEAD_DIM, generator=generator) for _ in "qk")
    cos, sin = (f(angles(tokens))[None].float() for f in (torch.cos, torch.sin))
    packed = row_mx.row_quantise_packed(x[None])
    projection = Operands(packed, row_mx.pack_weight(codes), scales, bias)
    operands = NormRopeOperands(projection, q_gamma, k_gamma, cos, sin)
    call = NormRopeCase(Case(stress.name, tokens, HIDDEN, HEADS, "full", num_kv_heads=HEADS, lnc=2))
    return Stressed(call, operands, finish(call, operands, x.double() @ weight.double() + bias.double()))


def angles(tokens: int) -> torch.Tensor:
    """Rotate-half angles [tokens, head_dim] of positions spread evenly over the grid, fp64."""
    positions = torch.linspace(0, 75_599, tokens).round().long()
    coordinates = torch.stack(torch.unravel_index(positions, GRID), -1).double()
    half = [
        coordinates[:, axis, None] * 10_000 ** -(torch.arange(0, lanes, 2).double() / lanes)
        for axis, lanes in enumerate(AXIS_LANES)
    ]
    return torch.cat(half * 2, -1)


def finish(call: NormRopeCase, operands: NormRopeOperands, projected: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Q, K and V of a projection [S, I] after norm and RoPE, in fp64."""
    q, k, v = projected[None].double().chunk(3, -1)
    assert operands.q_gamma is not None
    assert operands.k_gamma is not None
    assert operands.cos is not None
    assert operands.sin is not None
    q, k = (
        reference.rope(reference.rms_norm(part, gamma, call.eps), operands.cos, operands.sin)
        for part, gamma in ((q, operands.q_gamma), (k, operands.k_gamma))
    )
    return q[0], k[0], v[0]


def head_snr_db(got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Signal over error in dB of each head of [S, heads * head_dim], over all tokens."""
    heads = [part.double().unflatten(-1, (-1, HEAD_DIM)) for part in (wanted, got.double() - wanted.double())]
    signal, noise = (part.square().sum((0, 2)) for part in heads)
    return 10 * torch.log10(signal / noise)
