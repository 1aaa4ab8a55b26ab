"""What the bench does with a checkpoint: project one layer's inputs and compare with the layer's own projections."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from common import row_mx
from common.hardware import Hardware
from kernels.qkv_cte.bench import measure
from kernels.qkv_cte.bench.checkpoint import Layer, Linear
from kernels.qkv_cte.bench.random_layer_input import random_layer_input
from kernels.qkv_cte.bench.shapes import within_tolerance
from kernels.qkv_cte.oracle.cases import Operands
from kernels.qkv_cte.oracle.compare import Errors, compare
from kernels.qkv_cte.planning import plan
from kernels.qkv_cte.planning.dims import Dims
from kernels.qkv_cte.planning.plan import Plan

MAX_RELATIVE_RMS = 0.06
"""Largest accepted distance from the unquantised projection.

A float8_e4m3fn code has three fraction bits: the error is uniform within 2**-4 of the leading power of two, so its
RMS is at most 2**-4 / sqrt(3) = 3.6 % of the value. Activations and weights each have it, independently: 5.1 %.
"""

TOKENS, TEXT_TOKENS = 256, 512
"""Tokens of random inputs, where the file stores none."""


@dataclass(frozen=True)
class Projection:
    """One call of the kernel.

    Attributes:
        name: what it is.
        linears: the layer's projections that it fuses, by segment.
        hidden_states: [B, S, hidden].
        plan: its plan.
    """

    name: str
    linears: dict[str, Linear]
    hidden_states: torch.Tensor
    plan: Plan


@dataclass(frozen=True)
class SegmentResult:
    """Output columns of one of the layer's projections, against torch.nn.functional.linear in fp32.

    Attributes:
        name: "Q", "K" or "V".
        cosine: cosine of the angle between the two outputs as vectors; None where one of them is all zero.
        relative_rms: RMS of the difference over RMS of the layer's own output; of an own output of all zeros, 0 where
            there is no difference and infinity where there is one.
    """

    name: str
    cosine: float | None
    relative_rms: float

    @property
    def accepted(self) -> bool:
        """Whether the difference is no more than quantisation makes."""
        return self.relative_rms <= MAX_RELATIVE_RMS


@dataclass(frozen=True)
class ProjectionResult:
    """What a projection gave.

    Attributes:
        projection: what ran.
        errors: against the fp64 reference on the same quantised operands.
        segments: against the layer itself; quantisation is most of the difference.
    """

    projection: Projection
    errors: Errors
    segments: tuple[SegmentResult, ...]

    @property
    def exact(self) -> bool:
        """Whether the call is within tolerance of the fp64 reference."""
        return within_tolerance(self.errors)

    @property
    def accepted(self) -> bool:
        """Whether both comparisons are within tolerance."""
        return self.exact and all(segment.accepted for segment in self.segments)


def prepare(layer: Layer, hardware: Hardware, lnc: int) -> list[Projection]:
    """The calls that Wan2.2 makes for a layer with all heads on one rank: fused Q|K|V, then Q, K, V on their own.

    Raises:
        ValueError: a size or the target is not accepted.
        BudgetError: a projection fits under no schedule.
    """
    tokens, text = layer.hidden_states, layer.encoder_hidden_states
    if tokens is None:
        tokens = random_layer_input(TOKENS, layer.hidden, seed=0)
    if text is None:
        text = random_layer_input(TEXT_TOKENS, layer.hidden, seed=1)
    own, cross = layer.self_attention, layer.cross_attention
    calls: list[tuple[str, dict[str, Linear], torch.Tensor]] = [
        ("self-attention QKV", {"Q": own.to_q, "K": own.to_k, "V": own.to_v}, tokens),
        ("cross-attention Q", {"Q": cross.to_q}, tokens),
        ("cross-attention K", {"K": cross.to_k}, text),
        ("cross-attention V", {"V": cross.to_v}, text),
    ]
    projections = []
    for name, linears, states in calls:
        batch, seqlen, hidden = states.shape
        dims = Dims(batch, seqlen, hidden, hidden * len(linears), lnc)
        projections.append(Projection(name, linears, states, plan.make(dims, hardware)))
    return projections


def run(projection: Projection) -> ProjectionResult:
    """Quantises, packs, projects on the simulator and compares."""
    operands = quantise(projection)
    output = measure.run(projection.plan, operands).output
    errors = compare(output, *operands.tensors)
    return ProjectionResult(projection, errors, tuple(compare_segments(projection, output)))


def quantise(projection: Projection) -> Operands:
    """The kernel's operands: rows and output channels quantised, segments side by side, bias in fp32."""
    columns = [row_mx.quantise_columns(linear.weight.T) for linear in projection.linears.values()]
    codes = torch.cat([codes.view(torch.uint8) for codes, _ in columns], dim=1).view(torch.float8_e4m3fn)
    return Operands(
        packed_hidden=row_mx.row_quantise_packed(projection.hidden_states),
        weight=row_mx.pack_weight(codes),
        weight_scales=torch.cat([scales for _, scales in columns], dim=1),
        bias=torch.cat([linear.bias.float() for linear in projection.linears.values()])[None],
    )


def compare_segments(projection: Projection, output: torch.Tensor) -> Iterator[SegmentResult]:
    """Compares a call's output [B, S, I], segment by segment, with what the layer itself makes of the same input."""
    states = projection.hidden_states.float()
    first = 0
    for name, linear in projection.linears.items():
        width = linear.weight.shape[0]
        got = output[..., first : first + width].double().flatten()
        own = torch.nn.functional.linear(states, linear.weight.float(), linear.bias.float()).double().flatten()
        yield _compare_segment(name, got, own)
        first += width


def _compare_segment(name: str, got: torch.Tensor, own: torch.Tensor) -> SegmentResult:
    lengths = float(got.norm()), float(own.norm())
    distance = float((got - own).norm())
    cosine = float(torch.dot(got, own)) / math.prod(lengths) if all(lengths) else None
    if lengths[1]:
        return SegmentResult(name, cosine, distance / lengths[1])
    return SegmentResult(name, cosine, math.inf if distance else 0.0)
