"""Names of the projection's interface."""

from __future__ import annotations

import enum
from dataclasses import dataclass

SEQLEN_THRESHOLD_FOR_QKV_CTE = 96
"""Up to as many tokens (B * S) a call generates tokens; with more it encodes a context."""


class NormType(enum.Enum):
    """How activations, Q or K are normalised."""

    NO_NORM = "no_norm"
    """Not at all."""

    RMS_NORM = "rms_norm"
    """Over the root mean square, times gamma."""

    RMS_NORM_SKIP_GAMMA = "rms_norm_skip_gamma"
    """Over the root mean square."""

    LAYER_NORM = "layer_norm"
    """Less the mean, over the standard deviation, times gamma, plus beta if there is one."""

    RMS_NORM_ACROSS_HEADS = "rms_norm_across_heads"
    """One RMS per token over the whole Q (or K) vector, over all heads of all ranks."""


class QKVOutputLayout(enum.Enum):
    """Layout of the result."""

    BSD = "BSD"
    """[B, S, I]"""

    NBSd = "NBSd"
    """[num_heads, B, S, head_dim]"""

    def shape(self, batch: int, seqlen: int, heads: int, head_dim: int) -> tuple[int, ...]:
        """Shape of a result in this layout."""
        if self is QKVOutputLayout.NBSd:
            return heads, batch, seqlen, head_dim
        return batch, seqlen, heads * head_dim


class QuantizationType(enum.Enum):
    """How the operands of the products are quantised."""

    NONE = "none"
    """bf16, fp16 or fp32 weights [H, I]."""

    ROW_MX = "row_mx"
    """fp8 with a scale for each row of activations and each column of weights."""

    MXFP8 = "mxfp8"
    """fp8 with a scale for every 32 contraction rows; activations are quantised in the kernel."""


@dataclass(frozen=True)
class QKNormConfig:
    """Norm of Q and K before or after RoPE.

    Attributes:
        q_norm, k_norm: None leaves Q or K as it is; `k_norm` must be None where there is no K segment.
        eps: added to the mean square or the variance.
    """

    q_norm: NormType | None = None
    k_norm: NormType | None = None
    eps: float = 1e-6
