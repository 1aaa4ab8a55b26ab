"""Names of the projection's interface."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class NormType(enum.Enum):
    """How Q or K is normalised."""

    RMS_NORM_ACROSS_HEADS = "rms_norm_across_heads"
    """One RMS per token over the whole Q (or K) vector, over all heads of all ranks."""


class QKVOutputLayout(enum.Enum):
    """Layout of the result."""

    BSD = "BSD"
    """[B, S, I]"""

    NBSd = "NBSd"
    """[num_heads, B, S, head_dim]"""


@dataclass(frozen=True)
class QKNormConfig:
    """Norm of Q and K before RoPE.

    Attributes:
        q_norm, k_norm: None leaves Q or K as it is; `k_norm` must be None where there is no K segment.
        eps: added to the mean square.
    """

    q_norm: NormType | None = None
    k_norm: NormType | None = None
    eps: float = 1e-6
