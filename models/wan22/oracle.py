"""Diffusers' own Wan transformer: every intermediate of a step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
from diffusers import WanTransformer3DModel
from diffusers.models.transformers import transformer_wan
from safetensors.torch import load_file

from common import row_mx
from kernels.qkv_cte.host.lanes import to_interleaved
from models.wan22.config import HEAD_DIM

Intermediates = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Inputs:
    """Of one step: latents, timestep, text, and an image or None."""

    latents: torch.Tensor
    timestep: torch.Tensor
    text: torch.Tensor
    image: torch.Tensor | None = None


def random_inputs(
    *,
    batch: int = 1,
    channels: int = 16,
    size: tuple[int, int, int] = (3, 8, 10),
    text_tokens: int = 16,
    text_dim: int = 64,
    image_dim: int | None = None,
    seed: int = 1,
) -> Inputs:
    """Random inputs; `size` is that of the latents in time, height and width."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(torch.bfloat16)

    return Inputs(
        normal(batch, channels, *size),
        torch.linspace(900, 300, batch),
        normal(batch, 512 if image_dim else text_tokens, text_dim),
        None if image_dim is None else normal(batch, 257, image_dim),
    )


def run_oracle(folder: Path, inputs: Inputs, dtype: torch.dtype = torch.bfloat16) -> Intermediates:
    """A step of diffusers' model, with the intermediates by the names that `WanDiT` gives its own."""
    model = _load(folder, dtype)
    seen: Intermediates = {}
    with _recorded(model, seen), torch.no_grad():
        arguments = [None if t is None else t.to(dtype) for t in (inputs.latents, inputs.text, inputs.image)]
        latents, text, image = arguments
        seen["output"] = model(latents, inputs.timestep, text, image, return_dict=False)[0]
    seen["patch_embedding"] = seen["patch_embedding"].flatten(2).transpose(1, 2)
    return seen


def _load(folder: Path, dtype: torch.dtype) -> WanTransformer3DModel:
    """The model with what diffusers keeps in fp32: `from_pretrained` loads it only where accelerate is installed."""
    model = WanTransformer3DModel.from_config(WanTransformer3DModel.load_config(folder)).eval()
    shards = (load_file(shard) for shard in folder.glob("*.safetensors"))
    model.load_state_dict({name: tensor for shard in shards for name, tensor in shard.items()})
    for name, parameter in model.named_parameters():
        keeps_fp32 = any(part in name.split(".") for part in model._keep_in_fp32_modules)
        parameter.data = parameter.to(torch.float32 if keeps_fp32 else dtype)
    return model


def self_attention_heads(
    folder: Path, states: torch.Tensor, latents: torch.Tensor, places: torch.Tensor
) -> Intermediates:
    """Q, K and V of the first block's self-attention, in fp32.

    Args:
        folder: of the published transformer.
        states: [1, S, hidden], inputs of the projections.
        latents: [1, C, T, H, W], whose shape says where tokens are.
        places: [S], which of their tokens the states are.

    Returns:
        "query", "key" and "value", each [1, heads, S, head_dim].
    """
    model = _load(folder, torch.float32)
    seen: Intermediates = {}
    rotary = tuple(cache[:, places] for cache in model.rope(latents))
    recording = _recording_attention(["self"], None, seen)
    with mock.patch.object(transformer_wan, "dispatch_attention_fn", recording), torch.no_grad():
        model.blocks[0].attn1(states.float(), None, None, rotary)
    return {name.removeprefix("self."): tensor for name, tensor in seen.items()}


@contextlib.contextmanager
def _recorded(model: WanTransformer3DModel, seen: Intermediates) -> Iterator[None]:
    """Records what modules take and give while the context lasts."""

    def output(name: str) -> Callable[..., None]:
        def hook(module: object, args: object, result: torch.Tensor) -> None:  # noqa: ARG001
            seen[name] = result

        return hook

    def first_input(name: str) -> Callable[..., None]:
        def hook(module: object, args: tuple[torch.Tensor, ...]) -> None:  # noqa: ARG001
            seen[name] = args[0]

        return hook

    model.patch_embedding.register_forward_hook(output("patch_embedding"))
    model.condition_embedder.time_proj.register_forward_hook(output("condition_embedder.time_proj"))
    attentions = []
    for layer, block in enumerate(model.blocks):
        prefix = f"blocks.{layer}"
        block.register_forward_hook(output(prefix))
        for attention in ("attn1", "attn2"):
            module = block.get_submodule(attention)
            attentions.append(f"{prefix}.{attention}")
            module.register_forward_pre_hook(first_input(f"{prefix}.{attention}.input"))
            module.register_forward_hook(output(f"{prefix}.{attention}"))
            module.to_out[0].register_forward_pre_hook(first_input(f"{prefix}.{attention}.attended"))
        block.ffn.register_forward_pre_hook(first_input(f"{prefix}.ffn.input"))
        block.ffn.net[0].proj.register_forward_hook(output(f"{prefix}.ffn.net.0.proj"))
        block.ffn.net[0].register_forward_hook(output(f"{prefix}.ffn.net.0"))
        block.ffn.register_forward_hook(output(f"{prefix}.ffn"))
    with mock.patch.object(
        transformer_wan, "dispatch_attention_fn", _recording_attention(attentions, model.config.image_dim, seen)
    ):
        yield


def _recording_attention(attentions: list[str], image_dim: int | None, seen: Intermediates) -> Callable[..., object]:
    """Diffusers' attention that records queries, keys and values, each [B, heads, S, head_dim]."""
    attend = transformer_wan.dispatch_attention_fn
    calls = [name for name in attentions for _ in range(2 if image_dim and name.endswith("attn2") else 1)]
    order = iter(calls)

    def recording(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: object) -> object:
        name = next(order)
        for which, tensor in (("query", query), ("key", key), ("value", value)):
            seen[f"{name}.{which}"] = tensor.transpose(1, 2)
        return attend(query, key, value, **options)

    return recording


class Recorder:
    """Records a `WanDiT`'s intermediates in the oracle's terms: values of packed rows, its lanes, no padding."""

    def __init__(self, tokens: int) -> None:
        """Takes how many tokens there are without padding."""
        self.tokens = tokens
        self.seen: Intermediates = {}

    def __call__(self, name: str, parts: Sequence[torch.Tensor]) -> None:
        """Takes an intermediate of a model on one rank."""
        (tensor,) = parts
        if tensor.dtype == torch.float8_e4m3fn:
            codes, scales = row_mx.unpack_rows(tensor)
            tensor = codes.float() * scales
        if name.endswith(("attn1.query", "attn1.key")):
            tensor = to_interleaved(tensor, HEAD_DIM)
        token_dim = {3: 1, 4: 2}.get(tensor.dim())
        if token_dim and not name.endswith(("attn2.key", "attn2.value")):
            tensor = tensor.narrow(token_dim, 0, self.tokens)
        self.seen[name] = tensor
