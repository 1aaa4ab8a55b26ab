"""From the hub's tensors to the layouts that this model computes with, and which part of each a rank has.

A packed tensor comes from one tensor of the hub. Ranks share out heads of the attention, columns of every MLP and
the vocabulary of the head; norms, the indexer, the router and the embedding are on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from common.checks import require_int
from models.deepseek_v32.config import ModelConfig

Pack = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Packed:
    """A tensor as this model has it.

    Attributes:
        name: such as "layers.0.attention.wq_a".
        source: the hub's name of what it is made from.
        source_shape: its whole shape there.
        source_split: the dimension there that ranks share out, None where all have all.
        shape: whole shape here; split: the dimension here that ranks share out.
        pack: makes it from the source, or from a rank's part of the source.
        fp32: kept in float32 whatever the model's type.
    """

    name: str
    source: str
    source_shape: tuple[int, ...]
    source_split: int | None
    shape: tuple[int, ...]
    split: int | None
    pack: Pack
    fp32: bool = False

    def dtype(self, model: torch.dtype) -> torch.dtype:
        """Its type in a model of type `model`."""
        return torch.float32 if self.fp32 else model

    def make(self, source: torch.Tensor, model: torch.dtype) -> torch.Tensor:
        """The packed tensor, or a rank's part of it, from that of the source; contiguous."""
        return self.pack(source).to(self.dtype(model)).contiguous()

    def part(self, rank: int, ranks: int) -> tuple[slice, ...]:
        """A rank's part of the packed tensor."""
        return _part(self.shape, self.split, rank, ranks)

    def source_part(self, rank: int, ranks: int) -> tuple[slice, ...]:
        """What of the source a rank's part is made from."""
        return _part(self.source_shape, self.source_split, rank, ranks)


def _part(shape: tuple[int, ...], split: int | None, rank: int, ranks: int) -> tuple[slice, ...]:
    slices = [slice(0, size) for size in shape]
    if split is not None:
        size = shape[split] // ranks
        slices[split] = slice(rank * size, (rank + 1) * size)
    return tuple(slices)


def packed_tensors(config: ModelConfig) -> Iterator[Packed]:
    """Every tensor of the model, layer by layer."""
    vocabulary = (config.vocab_size, config.hidden_size)
    yield _as_is("embedding", "model.embed_tokens.weight", vocabulary)
    for layer in range(config.num_hidden_layers):
        yield from layer_tensors(config, layer)
    yield _as_is("norm", "model.norm.weight", (config.hidden_size,), fp32=True)
    yield _as_is("head", "lm_head.weight", vocabulary, split=0)


def require_divisible(config: ModelConfig, ranks: int) -> None:
    """Whether ranks can share the model out evenly.

    Raises:
        TypeError, ValueError: naming the size that does not divide.
    """
    require_int("ranks", ranks, at_least=1)
    for name in ("num_attention_heads", "intermediate_size", "moe_intermediate_size", "vocab_size"):
        if getattr(config, name) % ranks:
            raise ValueError(f"{name} is {getattr(config, name)}; accepted over {ranks} ranks: a multiple of {ranks}")


def require_share(config: ModelConfig, rank: int, ranks: int) -> None:
    """Whether there is a share of this rank.

    Raises:
        TypeError, ValueError: as for `require_divisible`, or there is no such rank.
    """
    require_divisible(config, ranks)
    if require_int("rank", rank, at_least=0) >= ranks:
        raise ValueError(f"rank is {rank}; accepted of {ranks} ranks: 0 to {ranks - 1}")


def layer_tensors(config: ModelConfig, layer: int) -> Iterator[Packed]:
    """Every tensor of a layer."""
    here, there, hidden = f"layers.{layer}.", f"model.layers.{layer}.", config.hidden_size
    yield _as_is(f"{here}attention.input_norm", f"{there}input_layernorm.weight", (hidden,), fp32=True)
    yield from _attention(config, f"{here}attention.", f"{there}self_attn.")
    yield from _indexer(config, f"{here}indexer.", f"{there}self_attn.indexer.")
    yield _as_is(f"{here}mlp_norm", f"{there}post_attention_layernorm.weight", (hidden,), fp32=True)
    if config.is_dense(layer):
        yield from _mlp(hidden, config.intermediate_size, f"{here}mlp.", f"{there}mlp.")
    else:
        yield from _experts(config, f"{here}mlp.", f"{there}mlp.")


def _attention(config: ModelConfig, here: str, there: str) -> Iterator[Packed]:
    hidden, heads, low, rank = config.hidden_size, config.num_attention_heads, config.q_lora_rank, config.kv_lora_rank
    nope, value = config.qk_nope_head_dim, config.v_head_dim
    yield _turned(f"{here}wq_a", f"{there}q_a_proj.weight", (low, hidden))
    yield _as_is(f"{here}q_norm", f"{there}q_a_layernorm.weight", (low,), fp32=True)
    yield _turned(f"{here}wq_b", f"{there}q_b_proj.weight", (heads * config.query_head_dim, low), split=0)
    yield _turned(f"{here}wkv_a", f"{there}kv_a_proj_with_mqa.weight", (rank + config.qk_rope_head_dim, hidden))
    yield _as_is(f"{here}kv_norm", f"{there}kv_a_layernorm.weight", (rank,), fp32=True)
    both = (heads * (nope + value), rank)

    def of_heads(first: int, stop: int) -> Pack:
        return lambda source: source.unflatten(0, (-1, nope + value))[:, first:stop]

    source = f"{there}kv_b_proj.weight"
    yield Packed(f"{here}q_absorb", source, both, 0, (heads, nope, rank), 0, of_heads(0, nope))
    yield Packed(f"{here}out_absorb", source, both, 0, (heads, value, rank), 0, of_heads(nope, nope + value))
    yield _turned(f"{here}o_proj", f"{there}o_proj.weight", (hidden, heads * value), split=1)


def _indexer(config: ModelConfig, here: str, there: str) -> Iterator[Packed]:
    heads, dim, hidden = config.index_n_heads, config.index_head_dim, config.hidden_size
    yield _as_is(f"{here}wq_b", f"{there}wq_b.weight", (heads * dim, config.q_lora_rank))
    yield _as_is(f"{here}wk", f"{there}wk.weight", (dim, hidden))
    yield _as_is(f"{here}k_norm", f"{there}k_norm.weight", (dim,), fp32=True)
    yield _as_is(f"{here}k_norm_bias", f"{there}k_norm.bias", (dim,), fp32=True)
    yield _as_is(f"{here}head_weights", f"{there}weights_proj.weight", (heads, hidden), fp32=True)


def _experts(config: ModelConfig, here: str, there: str) -> Iterator[Packed]:
    hidden, width, experts = config.hidden_size, config.moe_intermediate_size, config.n_routed_experts
    yield _as_is(f"{here}router", f"{there}gate.weight", (experts, hidden), fp32=True)
    yield _as_is(f"{here}correction", f"{there}gate.e_score_correction_bias", (experts,), fp32=True)
    for expert in range(experts):
        yield from _mlp(hidden, width, f"{here}experts.{expert}.", f"{there}experts.{expert}.")
    shared = config.n_shared_experts * width
    yield from _mlp(hidden, shared, f"{here}shared.", f"{there}shared_experts.")


def _mlp(hidden: int, width: int, here: str, there: str) -> Iterator[Packed]:
    yield _as_is(f"{here}gate", f"{there}gate_proj.weight", (width, hidden), split=0)
    yield _as_is(f"{here}up", f"{there}up_proj.weight", (width, hidden), split=0)
    yield _as_is(f"{here}down", f"{there}down_proj.weight", (hidden, width), split=1)


def _as_is(name: str, source: str, shape: tuple[int, ...], split: int | None = None, fp32: bool = False) -> Packed:
    return Packed(name, source, shape, split, shape, split, lambda tensor: tensor, fp32)


def _turned(name: str, source: str, shape: tuple[int, int], split: int | None = None) -> Packed:
    """[out, in] at the hub, [in, out] here."""
    turned = None if split is None else 1 - split
    return Packed(name, source, shape, split, (shape[1], shape[0]), turned, torch.t)
