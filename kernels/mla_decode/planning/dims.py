"""Sizes of one decode step."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from common.tiling import ceil_div
from kernels.mla_decode.device.config import BANK_BYTES, P_MAX, row_bytes

BANK_FP32 = BANK_BYTES // 4


@dataclass(frozen=True)
class Dims:
    """Sizes of a step: tokens and heads of this rank, selected keys, and widths.

    Attributes:
        n_tokens, n_heads: 1 to 128.
        n_prior: selected keys per token, from 1.
        kv_lora_rank: width of a cache row's latent field, a multiple of 128 up to a PSUM bank's 512 fp32.
        rope: width of its positional field, even, up to 128.
        v_head_dim: up to 128.
        hidden: what the o-projection emits.
        itemsize: bytes of an element of the cache and the weights, 2 (bf16) or 4 (fp32).
        fp8_cache: whether cache rows are in the format of `cache_format`; weights are bf16 then.
        cores: 1, or 2 that take half of the tokens or of the heads each, see `Plan.cores_share`.
    """

    n_tokens: int
    n_heads: int
    n_prior: int
    kv_lora_rank: int = 512
    rope: int = 64
    v_head_dim: int = 128
    hidden: int = 7168
    itemsize: int = 2
    fp8_cache: bool = False
    cores: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name != "fp8_cache":
                _require_size(field.name, getattr(self, field.name))
        for name in ("n_tokens", "n_heads", "rope", "v_head_dim"):
            if getattr(self, name) > P_MAX:
                raise ValueError(f"{name} is {getattr(self, name)}; accepted: up to {P_MAX}")
        if self.rope % 2:
            raise ValueError(f"rope is {self.rope}; accepted: an even number")
        if self.kv_lora_rank % P_MAX or self.kv_lora_rank > BANK_FP32:
            raise ValueError(
                f"kv_lora_rank is {self.kv_lora_rank}; accepted: a multiple of {P_MAX} up to {BANK_FP32}, a PSUM bank"
            )
        self._check_type()
        self._check_cores()

    def _check_type(self) -> None:
        if self.itemsize not in (2, 4):
            raise ValueError(f"itemsize is {self.itemsize}; accepted: 2 (bfloat16) or 4 (float32)")
        if self.fp8_cache and self.itemsize != 2:
            raise ValueError(f"itemsize is {self.itemsize}; accepted with an fp8 cache: 2 (bfloat16)")

    def _check_cores(self) -> None:
        if self.cores > 2:
            raise ValueError(f"cores is {self.cores}; accepted: 1 or 2")
        if self.hidden < self.cores:
            raise ValueError(f"hidden is {self.hidden}; accepted on 2 cores: from 2, each makes some of its columns")
        if not self.shareable:
            raise ValueError(
                f"n_tokens is {self.n_tokens} and n_heads {self.n_heads}; accepted on 2 cores: an even number of one "
                "of them, of which each core has half"
            )

    @property
    def shareable(self) -> tuple[str, ...]:
        """What the cores can share, "tokens" or "heads": an even number of them; one core has all of both."""
        if self.cores == 1:
            return ("tokens",)
        numbers = {"tokens": self.n_tokens, "heads": self.n_heads}
        return tuple(name for name, number in numbers.items() if number % self.cores == 0)

    def of_core(self, shared: str) -> Dims:
        """The sizes of a core's part of the attention, where the cores share `shared`, "tokens" or "heads"."""
        if shared == "heads":
            return replace(self, n_heads=self.n_heads // self.cores, cores=1)
        return replace(self, n_tokens=self.n_tokens // self.cores, cores=1)

    @property
    def cache_row_bytes(self) -> int:
        """Bytes of a cache row."""
        if self.fp8_cache:
            return row_bytes(self.kv_lora_rank, self.rope)
        return self.row_width * self.itemsize

    @property
    def key_tiles(self) -> int:
        """Key tiles of the prior."""
        return ceil_div(self.n_prior, P_MAX)

    @property
    def latent_tiles(self) -> int:
        """Tiles of 128 latent features."""
        return self.kv_lora_rank // P_MAX

    @property
    def row_width(self) -> int:
        """Elements of a cache row."""
        return self.rope + self.kv_lora_rank


@dataclass(frozen=True)
class FrontDims:
    """Sizes of the front-fold that the attention does not have.

    Attributes:
        q_lora: width of the query's low-rank path.
        nope: width of a head's query without positions, up to 128.
        input_norm: whether hidden states are normalised first.
    """

    q_lora: int = 1536
    nope: int = 128
    input_norm: bool = False

    def __post_init__(self) -> None:
        _require_size("q_lora", self.q_lora)
        _require_size("nope", self.nope)
        if self.nope > P_MAX:
            raise ValueError(f"nope is {self.nope}; accepted: up to {P_MAX}")


def _require_size(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {value!r}; accepted: an integer from 1")
