"""Which projections a block has, and in which precision each is kept."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from models.wan22.config import WanConfig


class Precision(enum.Enum):
    """How a projection computes."""

    BF16 = "bf16"
    """bfloat16 weights and activations."""

    ROW_MX = "row_mx"
    """fp8 codes, one fp32 scale per token and per output channel."""


@dataclass(frozen=True)
class ProjectionSpec:
    """One projection of a block.

    Attributes:
        name: within the block; diffusers' name, also of fused ones.
        sources: diffusers' linears that it fuses, in order of output columns.
        inputs, outputs: H, and I of all sources together.
        rotated: how many of the sources, from the first, go through RoPE: their lanes are reordered.
    """

    name: str
    sources: tuple[str, ...]
    inputs: int
    outputs: int
    rotated: int = 0


SELF_QKV, SELF_OUT = "attn1.to_qkv", "attn1.to_out.0"
CROSS_Q, CROSS_K, CROSS_V, CROSS_OUT = "attn2.to_q", "attn2.to_k", "attn2.to_v", "attn2.to_out.0"
IMAGE_K, IMAGE_V = "attn2.add_k_proj", "attn2.add_v_proj"
FFN_UP, FFN_DOWN = "ffn.net.0.proj", "ffn.net.2"

Precisions = Mapping[str, Precision]
"""A precision for every projection of a block, by name."""


def block_projections(config: WanConfig) -> tuple[ProjectionSpec, ...]:
    """The projections of every block."""
    hidden, ffn = config.hidden, config.ffn_dim
    names = (SELF_OUT, CROSS_Q, CROSS_K, CROSS_V, CROSS_OUT, *((IMAGE_K, IMAGE_V) if config.has_image else ()))
    return (
        ProjectionSpec(SELF_QKV, ("attn1.to_q", "attn1.to_k", "attn1.to_v"), hidden, 3 * hidden, rotated=2),
        *(ProjectionSpec(name, (name,), hidden, hidden) for name in names),
        ProjectionSpec(FFN_UP, (FFN_UP,), hidden, ffn),
        ProjectionSpec(FFN_DOWN, (FFN_DOWN,), ffn, hidden),
    )


def choose_precisions(config: WanConfig, bf16: Iterable[str] = ()) -> Precisions:
    """ROW_MX everywhere but in the projections named, which are bf16 in every block.

    Raises:
        ValueError: a name is none of a projection.
    """
    names = [spec.name for spec in block_projections(config)]
    chosen = dict.fromkeys(names, Precision.ROW_MX)
    for name in bf16:
        if name not in chosen:
            raise ValueError(f"bf16 names the projection {name!r}; accepted: {', '.join(names)}")
        chosen[name] = Precision.BF16
    return MappingProxyType(chosen)


def all_bf16(config: WanConfig) -> Precisions:
    """bf16 everywhere."""
    return choose_precisions(config, [spec.name for spec in block_projections(config)])
