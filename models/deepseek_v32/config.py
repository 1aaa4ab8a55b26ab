"""A model's configuration, from the `config.json` of a DeepSeek-V3.2 checkpoint."""

from __future__ import annotations

import json
import reprlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

NORM_EPS = 1e-6
"""Of every norm. The latent norms have it whatever `rms_norm_eps` says, and the front-fold knows one epsilon."""

_EXPECTED = {
    "model_type": "deepseek_v32",
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "hidden_act": "silu",
    "rms_norm_eps": NORM_EPS,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "moe_layer_freq": 1,
    "rope_interleave": True,
}
"""What this implementation is, where a configuration says it at all."""


@dataclass(frozen=True)
class Yarn:
    """YaRN's parameters, as in `rope_scaling`; none has a default, since each changes what the model says."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float
    mscale: float
    mscale_all_dim: float

    def __post_init__(self) -> None:
        for field in fields(self):
            _require_number(field.name, getattr(self, field.name))
        if self.beta_fast < self.beta_slow:
            raise ValueError(f"beta_fast is {self.beta_fast}; accepted: from beta_slow {self.beta_slow} on")


@dataclass(frozen=True)
class ModelConfig:
    """Sizes under the names of `config.json`.

    Attributes:
        qk_rope_head_dim: width of the rotated part, of a head's query and of the indexer's first features.
        yarn: None where positions are plain RoPE.
        others: as published.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    n_group: int
    topk_group: int
    routed_scaling_factor: float
    norm_topk_prob: bool
    first_k_dense_replace: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    max_position_embeddings: int
    rope_theta: float
    yarn: Yarn | None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
                _require_count(field.name, value, at_least=0 if field.name == "first_k_dense_replace" else 1)
            elif field.type == "float":
                _require_number(field.name, value)
        if not isinstance(self.norm_topk_prob, bool):
            raise TypeError(f"norm_topk_prob is {_shown(self.norm_topk_prob)}; accepted: true or false")
        self._check_experts()
        if self.rope_theta <= 1:
            raise ValueError(f"rope_theta is {self.rope_theta}; accepted: a finite number above 1")
        if self.qk_rope_head_dim % 2:
            raise ValueError(f"qk_rope_head_dim is {self.qk_rope_head_dim}; accepted: an even number")
        if self.qk_rope_head_dim > self.index_head_dim:
            raise ValueError(
                f"qk_rope_head_dim is {self.qk_rope_head_dim}; accepted: up to index_head_dim {self.index_head_dim}"
            )

    def _check_experts(self) -> None:
        if self.n_routed_experts % self.n_group:
            raise ValueError(f"n_routed_experts is {self.n_routed_experts}; accepted: a multiple of {self.n_group}")
        if self.n_routed_experts // self.n_group < 2:
            raise ValueError(f"n_group is {self.n_group}; accepted: groups of two experts or more")
        if self.topk_group > self.n_group:
            raise ValueError(f"topk_group is {self.topk_group}; accepted: up to n_group {self.n_group}")
        choosable = self.topk_group * (self.n_routed_experts // self.n_group)
        if self.num_experts_per_tok > choosable:
            raise ValueError(f"num_experts_per_tok is {self.num_experts_per_tok}; accepted: up to {choosable}")

    @property
    def query_head_dim(self) -> int:
        """Width of a head's query, before its first part goes into the latent space."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def cache_row(self) -> int:
        """Elements of a cache row, `[k_pe | kv_latent]`."""
        return self.qk_rope_head_dim + self.kv_lora_rank

    def is_dense(self, layer: int) -> bool:
        """Whether a layer has one MLP, and not experts."""
        return layer < self.first_k_dense_replace


def from_file(path: Path) -> ModelConfig:
    """The configuration in a `config.json`.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no JSON, or no configuration that `from_json` takes; the message begins with the file.
    """
    try:
        return from_json(json.loads(path.read_text()))
    except RecursionError:
        raise ValueError(f"{path}: nested too deep; accepted: a JSON object") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def from_json(given: Mapping[str, Any]) -> ModelConfig:
    """A configuration as published, or as `transformers` saves it.

    Raises:
        TypeError, ValueError: a key is missing or says what this implementation is not; the message names it.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"the configuration is a {type(given).__name__}; accepted: a JSON object")
    for name, value in _EXPECTED.items():
        if given.get(name, value) != value:
            raise ValueError(f"{name} is {_shown(given[name])}; accepted: {value!r}")
    heads = _take(given, "num_attention_heads")
    if given.get("num_key_value_heads", heads) != heads:
        raise ValueError(
            f"num_key_value_heads is {_shown(given['num_key_value_heads'])}; accepted: num_attention_heads {heads}"
        )
    theta, yarn = _rope(given)
    plain = {f.name: _take(given, f.name) for f in fields(ModelConfig) if f.name not in ("rope_theta", "yarn")}
    config = ModelConfig(**plain, rope_theta=theta, yarn=yarn)
    _require_layer_types(given, config)
    return config


def _rope(given: Mapping[str, Any]) -> tuple[Any, Yarn | None]:
    """Base and YaRN's parameters: published as `rope_theta` and `rope_scaling`, or as one `rope_parameters`."""
    name = "rope_parameters" if given.get("rope_parameters") else "rope_scaling"
    scaling = given.get(name) or {"rope_type": "default"}
    if not isinstance(scaling, Mapping):
        raise TypeError(f"{name} is {_shown(scaling)}; accepted: a JSON object")
    theta = scaling.get("rope_theta", given.get("rope_theta"))
    if theta is None:
        raise ValueError("rope_theta is missing; accepted: a number above 0")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "yarn":
        raise ValueError(f"{name} has type {_shown(kind)}; accepted: 'yarn' or 'default'")
    wanted = [field.name for field in fields(Yarn)]
    missing = [key for key in wanted if scaling.get(key) is None]
    if missing:
        raise ValueError(f"{name} lacks {', '.join(missing)}; accepted with type 'yarn': {', '.join(wanted)}")
    if scaling.get("truncate", True) is not True or scaling.get("attention_factor") is not None:
        raise ValueError(f"{name} has truncate or attention_factor; accepted: neither")
    return theta, Yarn(**{key: scaling[key] for key in wanted})


def _require_layer_types(given: Mapping[str, Any], config: ModelConfig) -> None:
    kinds = given.get("mlp_layer_types")
    if kinds is None:
        return
    count = config.num_hidden_layers
    as_many = isinstance(kinds, list) and len(kinds) == count
    if not as_many or kinds != ["dense" if config.is_dense(layer) else "sparse" for layer in range(count)]:
        raise ValueError(
            f"mlp_layer_types is {_shown(kinds)}; accepted: dense for the first {config.first_k_dense_replace} of "
            f"{count} layers, then sparse"
        )


def _take(given: Mapping[str, Any], name: str) -> Any:
    if given.get(name) is None:
        raise ValueError(f"{name} is missing")
    return given[name]


def _require_count(name: str, value: Any, at_least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {_shown(value)}; accepted: an integer from {at_least}")
    if not at_least <= value <= sys.maxsize:
        raise ValueError(f"{name} is {_shown(value)}; accepted: from {at_least} to 2**63 - 1")


def _require_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {_shown(value)}; accepted: a number above 0")
    # An integer can be larger than any float.
    if not 0 < value <= sys.float_info.max:
        raise ValueError(f"{name} is {_shown(value)}; accepted: a finite number above 0")


def _shown(value: Any) -> str:
    """A value as messages show it, in a few words whatever it is: integers can have too many digits to print."""
    if isinstance(value, int) and abs(value) > sys.maxsize:
        return f"an integer of {value.bit_length()} bits"
    return reprlib.repr(value)


PUBLISHED = ModelConfig(
    vocab_size=129280,
    hidden_size=7168,
    intermediate_size=18432,
    moe_intermediate_size=2048,
    num_hidden_layers=61,
    num_attention_heads=128,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    n_group=8,
    topk_group=4,
    routed_scaling_factor=2.5,
    norm_topk_prob=True,
    first_k_dense_replace=3,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    index_n_heads=64,
    index_head_dim=128,
    index_topk=2048,
    max_position_embeddings=163840,
    rope_theta=10000.0,
    yarn=Yarn(
        factor=40.0,
        original_max_position_embeddings=4096,
        beta_fast=32.0,
        beta_slow=1.0,
        mscale=1.0,
        mscale_all_dim=1.0,
    ),
)
"""DeepSeek-V3.2."""
