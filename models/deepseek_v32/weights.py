"""A rank's weights, as the layers take them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch

from models.deepseek_v32.config import ModelConfig
from models.deepseek_v32.packing import Packed, packed_tensors, require_share

T = TypeVar("T")


@dataclass(frozen=True)
class AttentionWeights:
    """Of one layer, the rank's heads, in the layouts of `kernels.mla_decode`; norms float32.

    Attributes:
        input_norm: [hidden].
        wq_a: [hidden, q_lora]; q_norm: [q_lora]; wq_b: [q_lora, heads * (nope + rope)].
        wkv_a: [hidden, kv_lora + rope]; kv_norm: [kv_lora].
        q_absorb: [heads, nope, kv_lora]; out_absorb: [heads, v, kv_lora].
        o_proj: [heads * v, hidden].
    """

    input_norm: torch.Tensor
    wq_a: torch.Tensor
    q_norm: torch.Tensor
    wq_b: torch.Tensor
    wkv_a: torch.Tensor
    kv_norm: torch.Tensor
    q_absorb: torch.Tensor
    out_absorb: torch.Tensor
    o_proj: torch.Tensor


@dataclass(frozen=True)
class IndexerWeights:
    """Of one layer, the same on every rank.

    Attributes:
        wq_b: [heads * dim, q_lora]; wk: [dim, hidden].
        k_norm, k_norm_bias: [dim] float32, of a LayerNorm; head_weights: [heads, hidden] float32.
    """

    wq_b: torch.Tensor
    wk: torch.Tensor
    k_norm: torch.Tensor
    k_norm_bias: torch.Tensor
    head_weights: torch.Tensor


@dataclass(frozen=True)
class MlpWeights:
    """gate, up: [width of this rank, hidden]; down: [hidden, width of this rank]."""

    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True)
class ExpertWeights:
    """router: [experts, hidden] float32; correction: [experts] float32; the experts and the shared one."""

    router: torch.Tensor
    correction: torch.Tensor
    experts: tuple[MlpWeights, ...]
    shared: MlpWeights


@dataclass(frozen=True)
class LayerWeights:
    """One layer; mlp_norm: [hidden] float32."""

    attention: AttentionWeights
    indexer: IndexerWeights
    mlp_norm: torch.Tensor
    mlp: MlpWeights | ExpertWeights


@dataclass(frozen=True)
class ModelWeights:
    """A rank's whole model; embedding: [vocabulary, hidden], head: the same of its share; norm: [hidden] float32."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor


def assemble(config: ModelConfig, tensors: Mapping[str, torch.Tensor]) -> ModelWeights:
    """Weights from a rank's packed tensors by name."""
    return ModelWeights(
        embedding=tensors["embedding"],
        layers=tuple(_layer(config, tensors, layer) for layer in range(config.num_hidden_layers)),
        norm=tensors["norm"],
        head=tensors["head"],
    )


def pack(
    config: ModelConfig,
    read: Callable[[Packed, tuple[slice, ...]], torch.Tensor],
    dtype: torch.dtype,
    rank: int,
    ranks: int,
) -> ModelWeights:
    """Weights of a rank from the hub's tensors.

    Args:
        config: the model.
        read: gives the part of a source tensor, in any floating type.
        dtype: of the model.
        rank, ranks: whose part.

    Raises:
        TypeError, ValueError: ranks cannot share the model, or there is no such rank.
    """
    require_share(config, rank, ranks)
    parts = {p.name: p.make(read(p, p.source_part(rank, ranks)), dtype) for p in packed_tensors(config)}
    return assemble(config, parts)


def require_weights(config: ModelConfig, weights: Sequence[ModelWeights], ranks: int) -> torch.dtype:
    """The model's type, of weights whose sizes are those of one of `ranks` ranks.

    Raises:
        TypeError, ValueError: a tensor is missing or has another type or size; names it, what it is and what is
            accepted.
    """
    for own in weights:
        if not isinstance(own, ModelWeights):
            raise TypeError(f"weights have a {type(own).__name__}; accepted: ModelWeights of each rank")
        if len(own.layers) != config.num_hidden_layers:
            raise ValueError(f"weights have {len(own.layers)} layers; accepted: {config.num_hidden_layers}")
    dtype = weights[0].embedding.dtype
    for own in weights:
        for packed in packed_tensors(config):
            try:
                tensor = find(own, packed.name)
            except (AttributeError, IndexError):
                raise ValueError(f"weights have no {packed.name}; accepted: all that the config has") from None
            accepted = packed.dtype(dtype)
            if tensor.dtype is not accepted:
                raise TypeError(f"{packed.name} is {tensor.dtype}; accepted with an embedding of {dtype}: {accepted}")
            shape = [part.stop - part.start for part in packed.part(0, ranks)]
            if list(tensor.shape) != shape:
                raise ValueError(f"{packed.name} is {list(tensor.shape)}; accepted on one of {ranks} ranks: {shape}")
    return dtype


def find(weights: ModelWeights, name: str) -> torch.Tensor:
    """The tensor of a packed name."""

    def enter(at: Any, key: str) -> Any:
        return at[int(key)] if key.isdigit() else getattr(at, key)

    found: torch.Tensor = functools.reduce(enter, name.split("."), weights)
    return found


def _layer(config: ModelConfig, tensors: Mapping[str, torch.Tensor], layer: int) -> LayerWeights:
    prefix = f"layers.{layer}."
    return LayerWeights(
        attention=_fill(AttentionWeights, tensors, f"{prefix}attention."),
        indexer=_fill(IndexerWeights, tensors, f"{prefix}indexer."),
        mlp_norm=tensors[f"{prefix}mlp_norm"],
        mlp=_mlp(config, tensors, f"{prefix}mlp.", dense=config.is_dense(layer)),
    )


def _mlp(
    config: ModelConfig, tensors: Mapping[str, torch.Tensor], prefix: str, dense: bool
) -> MlpWeights | ExpertWeights:
    if dense:
        return _fill(MlpWeights, tensors, prefix)
    experts = range(config.n_routed_experts)
    return ExpertWeights(
        router=tensors[f"{prefix}router"],
        correction=tensors[f"{prefix}correction"],
        experts=tuple(_fill(MlpWeights, tensors, f"{prefix}experts.{expert}.") for expert in experts),
        shared=_fill(MlpWeights, tensors, f"{prefix}shared."),
    )


def _fill(kind: Callable[..., T], tensors: Mapping[str, torch.Tensor], prefix: str) -> T:
    """A record whose fields are the tensors named so behind the prefix."""
    return kind(**{field.name: tensors[prefix + field.name] for field in fields(kind)})  # type: ignore[arg-type]
