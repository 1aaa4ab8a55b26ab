"""How ranks share a model's heads and tokens."""

from __future__ import annotations

from dataclasses import dataclass

from common.checks import require_int
from common.tiling import round_up
from models.wan22.config import WanConfig


@dataclass(frozen=True)
class Mesh:
    """`tp` x `cp` ranks; rank = cp index x tp + tp index.

    Every rank holds its share of the tokens, in rank order, through the whole model, and all weights but those of
    self-attention's Q, K and V. There, ranks of a tensor-parallel group hold their share of the heads for all tokens
    of the group, and K and V are gathered over the context-parallel group.

    Attributes:
        tp: ranks that share the heads of self-attention.
        cp: groups of them that share the tokens.
        lnc: cores of a rank, 1 or 2; each rank's tokens are padded to a multiple of it.
    """

    tp: int = 1
    cp: int = 1
    lnc: int = 2

    def __post_init__(self) -> None:
        require_int("tp", self.tp, at_least=1)
        require_int("cp", self.cp, at_least=1)
        if require_int("lnc", self.lnc, at_least=1) > 2:
            raise ValueError(f"lnc is {self.lnc}; accepted: 1 or 2")

    @property
    def size(self) -> int:
        """Ranks."""
        return self.tp * self.cp

    @property
    def replica_groups(self) -> tuple[tuple[int, ...], ...] | None:
        """Tensor-parallel groups, as kernels take them; None where every rank has all heads."""
        return tuple(self.tp_group(cp * self.tp) for cp in range(self.cp)) if self.tp > 1 else None

    def tp_group(self, rank: int) -> tuple[int, ...]:
        """Ranks with this rank's tokens and other heads, itself included."""
        first = rank // self.tp * self.tp
        return tuple(range(first, first + self.tp))

    def cp_group(self, rank: int) -> tuple[int, ...]:
        """Ranks with this rank's heads and other tokens, itself included."""
        return tuple(range(rank % self.tp, self.size, self.tp))

    def padded(self, tokens: int) -> int:
        """Tokens of all ranks, padding included."""
        return round_up(tokens, self.size * self.lnc)

    def require_heads(self, config: WanConfig) -> None:
        """Refuses heads that cannot be shared evenly.

        Raises:
            ValueError: the heads are no multiple of `tp`.
        """
        if config.num_attention_heads % self.tp:
            raise ValueError(
                f"tp is {self.tp} with {config.num_attention_heads} attention heads; accepted: a divisor of them"
            )
