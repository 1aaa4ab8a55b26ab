"""Small random models of `transformers`, which tests compare with, and what goes on inside them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DeepseekV32Config, DeepseekV32ForCausalLM, DynamicCache
from transformers.models.deepseek_v32.modeling_deepseek_v32 import apply_rotary_pos_emb

from common.tiling import ceil_div
from models.deepseek_v32 import attention, checkpoint
from models.deepseek_v32.attention import Device
from models.deepseek_v32.cache import PagedCache
from models.deepseek_v32.config import ModelConfig
from models.deepseek_v32.layer import run_layer
from models.deepseek_v32.ranks import LocalRanks, add_up
from models.deepseek_v32.step import make_step
from models.deepseek_v32.tiny import TINY
from models.deepseek_v32.weights import LayerWeights, ModelWeights

BLOCK_SIZE = 8


def make_oracle(config: ModelConfig, seed: int = 0) -> DeepseekV32ForCausalLM:
    """A random model in float32 whose every part matters: projections keep their input's size, norms vary.

    Weights are bf16 numbers, so that models of either type have the same.
    """
    plain = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in ("yarn", "rope_theta")
    }
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.yarn is not None:
        rope |= {"rope_type": "yarn", **dataclasses.asdict(config.yarn)}
    made = DeepseekV32Config(**plain, num_key_value_heads=config.num_attention_heads, rope_parameters=rope)
    made._attn_implementation = "eager"
    model = DeepseekV32ForCausalLM(made).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        tensor.copy_(_random(name, tensor, generator).bfloat16())
    return model


def _random(name: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    normal = torch.randn(tensor.shape, generator=generator)
    if name.endswith("correction_bias"):
        return 0.1 * normal
    if tensor.dim() == 1:
        return 0.2 * normal if name.endswith("bias") else 1 + 0.2 * normal
    return normal if "embed_tokens" in name else normal * tensor.shape[-1] ** -0.5


def save(oracle: DeepseekV32ForCausalLM, folder: Path, dtype: torch.dtype | None = None) -> Path:
    """Saves a model as `transformers` does, which is the hub's layout, in several files."""
    # A copy: a model that goes to bf16 and back has rounded rotary frequencies.
    copy.deepcopy(oracle).to(dtype or oracle.dtype).save_pretrained(folder, max_shard_size="1MB")
    return folder


def run_oracle(oracle: DeepseekV32ForCausalLM, tokens: list[int]) -> dict[str, torch.Tensor]:
    """A full forward of one sequence: every intermediate under the name that `run_layer` gives it, [n, ...]."""
    cache = DynamicCache(config=oracle.config)
    with _watched(oracle, range(oracle.config.num_hidden_layers)) as seen:
        logits = oracle(torch.tensor([tokens]), cache=cache, use_cache=True).logits
    for layer in range(oracle.config.num_hidden_layers):
        _take_cached(seen, cache, layer)
    return seen | {"logits": logits[0]}


def run_oracle_layer(oracle: DeepseekV32ForCausalLM, layer: int, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same for one layer, given what goes into it, [n, hidden]."""
    cache = DynamicCache(config=oracle.config)
    positions = torch.arange(len(hidden))[None]
    mask = torch.full((len(hidden), len(hidden)), -torch.inf).triu(1)[None, None]
    with _watched(oracle, [layer]) as seen:
        oracle.model.layers[layer](
            hidden[None].float(),
            attention_mask=mask,
            position_ids=positions,
            cache=cache,
            position_embeddings=oracle.model.rotary_emb(hidden.float(), positions),
        )
    _take_cached(seen, cache, layer)
    return seen


@contextlib.contextmanager
def _watched(oracle: DeepseekV32ForCausalLM, layers: range | list[int]) -> Iterator[dict[str, torch.Tensor]]:
    """Records what modules take and give while the block runs."""
    seen: dict[str, torch.Tensor] = {}
    handles = []

    def watch(module: torch.nn.Module, name: str, pick: Callable[[Any], Any]) -> None:
        def record(_module: torch.nn.Module, _given: Any, made: Any) -> None:
            seen[name] = pick(made)[0]

        handles.append(module.register_forward_hook(record))

    size = (oracle.config.index_n_heads * oracle.config.index_head_dim) ** -0.5
    for layer in layers:
        block, prefix = oracle.model.layers[layer], f"layers.{layer}."
        at = block.self_attn
        watch(block.input_layernorm, f"{prefix}input_norm", lambda made: made)
        watch(at.q_a_layernorm, f"{prefix}q_low", lambda made: made)
        watch(at.indexer.wq_b, f"{prefix}index_queries", functools.partial(_turned_queries, oracle))
        watch(at.indexer.weights_proj, f"{prefix}index_head_weights", lambda made: made * size)
        watch(at.indexer, f"{prefix}selected", lambda made: made)
        watch(at, f"{prefix}attention", lambda made: made[0])
        watch(block.post_attention_layernorm, f"{prefix}mlp_norm", lambda made: made)
        watch(block.mlp, f"{prefix}mlp", lambda made: made)
        watch(block, f"{prefix}layer", lambda made: made)
        if hasattr(block.mlp, "gate"):
            watch(block.mlp.gate, f"{prefix}experts", lambda made: [made[2]])
            watch(block.mlp.gate, f"{prefix}expert_weights", lambda made: [made[1]])
        handles.append(
            block.post_attention_layernorm.register_forward_pre_hook(
                lambda _, given, prefix=prefix: seen.__setitem__(f"{prefix}after_attention", given[0][0])
            )
        )
    watch(oracle.model.norm, "norm", lambda made: made)
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _turned_queries(oracle: DeepseekV32ForCausalLM, made: torch.Tensor) -> torch.Tensor:
    """The indexer's queries as it scores with them, [1, n, heads, dim], rotated by transformers' own function."""
    rope = oracle.config.qk_rope_head_dim
    queries = made.unflatten(-1, (oracle.config.index_n_heads, -1))
    cos, sin = oracle.model.rotary_emb(made, torch.arange(made.shape[1])[None])
    turned, _ = apply_rotary_pos_emb(queries[..., :rope], queries[..., :rope], cos, sin, unsqueeze_dim=2)
    return torch.cat([turned, queries[..., rope:]], dim=-1)


def _take_cached(seen: dict[str, torch.Tensor], cache: DynamicCache, layer: int) -> None:
    """Cache rows and indexer keys. `transformers` keeps rotated pairs apart, first all their firsts."""
    cached: Any = cache.layers[layer]
    k_pe = torch.stack(cached.values[0, 0].chunk(2, dim=-1), dim=-1).flatten(-2)
    seen[f"layers.{layer}.cache_row"] = torch.cat([k_pe, cached.keys[0, 0]], dim=-1)
    seen[f"layers.{layer}.index_keys"] = cached.indexer_keys[0]


class Collector:
    """Keeps what a model shows, call by call."""

    def __init__(self) -> None:
        self._values: dict[str, list[torch.Tensor]] = {}

    def __call__(self, name: str, value: torch.Tensor) -> None:
        """An `Observe`."""
        self._values.setdefault(name, []).append(value)

    def joined(self) -> dict[str, torch.Tensor]:
        """Of calls with tokens of one sequence, each value for all tokens."""
        return {name: torch.cat(values) for name, values in self._values.items()}

    def of_batch(self, row: int) -> dict[str, torch.Tensor]:
        """Of steps with one token of each of several sequences, the values of one of them."""
        return {name: torch.stack([value[row] for value in values]) for name, values in self._values.items()}


def run_our_layer(
    config: ModelConfig,
    weights: Sequence[LayerWeights],
    layer: int,
    hidden: torch.Tensor,
    decoded: Collection[int],
) -> dict[str, torch.Tensor]:
    """What `run_oracle_layer` gives, of our layer: tokens `decoded` one by one on the kernels, the others in torch.

    Args:
        config, layer, hidden: as there; the type of `hidden` is the model's.
        weights: of the layer, one entry for each rank.
        decoded: positions.
    """
    seen = Collector()
    blocks = ceil_div(len(hidden), BLOCK_SIZE)
    cache = PagedCache(config, blocks, BLOCK_SIZE, hidden.dtype)
    table = torch.randperm(blocks, generator=torch.Generator().manual_seed(0)).int()[None]
    on_kernels = functools.partial(attention.on_kernels, config, Device())
    on_reference = functools.partial(attention.on_reference, config)
    sums = functools.partial(add_up, LocalRanks(len(weights)), target="trn2")
    bounds = sorted({0, len(hidden), *decoded, *(own + 1 for own in decoded)})
    for first, stop in itertools.pairwise(bounds):
        positions = torch.arange(first, stop, dtype=torch.int32)
        step = make_step(config, positions, table.expand(stop - first, -1), BLOCK_SIZE)
        attend = on_kernels if first in decoded else on_reference
        run_layer(config, weights, layer, hidden[first:stop], cache, step, attend, sums, _named(seen, layer))
    return seen.joined()


def _named(seen: Collector, layer: int) -> Callable[[str, torch.Tensor], None]:
    return lambda name, value: seen(f"layers.{layer}.{name}", value)


def chosen(indices: torch.Tensor, size: int) -> torch.Tensor:
    """[n, k] indices, in any order, perhaps -1, as a [n, size] mask."""
    mask = torch.zeros(len(indices), size + 1, dtype=torch.bool)
    return mask.scatter(1, indices.long() % (size + 1), True)[:, :size]


@functools.cache
def tiny_oracle() -> DeepseekV32ForCausalLM:
    """The oracle of `TINY`."""
    return make_oracle(TINY)


@functools.cache
def _tiny_folder() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    save(tiny_oracle(), Path(folder.name))
    return folder


def tiny_weights(dtype: torch.dtype, rank: int = 0, ranks: int = 1) -> ModelWeights:
    """A rank's weights of `tiny_oracle`, from a checkpoint that transformers saved."""
    config, weights = checkpoint.load(Path(_tiny_folder().name), dtype, rank, ranks)
    assert config == TINY
    return weights


def layer_inputs(count: int) -> list[torch.Tensor]:
    """What goes into each layer of `tiny_oracle`, [tokens, hidden], given a random prompt of `count` tokens."""
    (prompt,) = random_prompts(count)
    seen = run_oracle(tiny_oracle(), prompt)
    embedded = tiny_oracle().model.embed_tokens(torch.tensor(prompt))
    return [embedded, *(seen[f"layers.{layer}.layer"] for layer in range(TINY.num_hidden_layers - 1))]


def random_prompts(*lengths: int, seed: int = 1) -> list[list[int]]:
    """Prompts of these lengths for `TINY`."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(TINY.vocab_size, (length,), generator=generator).tolist() for length in lengths]
