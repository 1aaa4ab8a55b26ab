"""Errors of a converted checkpoint against diffusers, intermediate by intermediate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from models.wan22.block import Block
from models.wan22.compare import Error, compare
from models.wan22.config import HEAD_DIM
from models.wan22.launching import launch
from models.wan22.model import WanDiT
from models.wan22.oracle import Inputs, Intermediates, Recorder
from models.wan22.projecting import heads_call, project
from models.wan22.projections import CROSS_OUT, CROSS_Q, FFN_DOWN, FFN_UP, SELF_OUT


@dataclass(frozen=True)
class Errors:
    """Against the oracle's step.

    Attributes:
        in_chain: of every intermediate, with all errors before it.
        alone: of every projection in a block, given the oracle's own input to it; those of self-attention's Q, K, V
            given the oracle's tokens before the block.
        blocks: of every block, given the oracle's tokens before it.
        updates: of what every block adds to its tokens, likewise. The tokens' rounding to bf16 is in it: an outlier
            channel of 30 is a multiple of 1/8, whatever was added to it.
    """

    in_chain: dict[str, Error]
    alone: dict[str, Error]
    blocks: dict[str, Error]
    updates: dict[str, Error]


def evaluate(converted: Path, inputs: Inputs, expected: Intermediates) -> Errors:
    """Runs one step of a converted checkpoint on one rank and compares it with the oracle's."""
    model = WanDiT.load(converted)
    prompt = model.encode(inputs.text, inputs.image)
    grid = model.config.grid(tuple(inputs.latents.shape))
    recorder = Recorder(math.prod(grid))
    model(inputs.latents, inputs.timestep, prompt, recorder)
    in_chain = {name: compare(tensor, expected[name]) for name, tensor in recorder.seen.items()}
    alone: dict[str, Error] = {}
    blocks: dict[str, Error] = {}
    updates: dict[str, Error] = {}
    modulation = expected["condition_embedder.time_proj"].unflatten(1, (6, -1))
    for layer, (block, keys) in enumerate(zip(model.blocks, prompt.keys, strict=True)):
        name = f"blocks.{layer}"
        before = expected[f"blocks.{layer - 1}"] if layer else expected["patch_embedding"]
        forced = Recorder(math.prod(grid))
        block.forward(model.share(before), modulation, model.places(grid), keys, forced)
        after, wanted = forced.seen[""].float(), expected[name].float()
        blocks[name] = compare(after, wanted)
        updates[name] = compare(after - before.float(), wanted - before.float())
        heads = ("attn1.query", "attn1.key", "attn1.value", "attn2.key", "attn2.value")
        found = {part: forced.seen[part] for part in heads} | _alone(block, name, expected)
        alone |= {f"{name}.{part}": compare(tensor, expected[f"{name}.{part}"]) for part, tensor in found.items()}
    return Errors(in_chain, alone, blocks, updates)


def _alone(block: Block, name: str, expected: Intermediates) -> dict[str, torch.Tensor]:
    """Outputs of projections given the oracle's inputs to them."""
    lnc, found = block.mesh.lnc, {}
    steps = (
        (SELF_OUT, "attn1.attended", "attn1"),
        (CROSS_OUT, "attn2.attended", "attn2"),
        (FFN_UP, "ffn.input", "ffn.net.0.proj"),
        (FFN_DOWN, "ffn.net.0", "ffn"),
    )
    for which, taken, given in steps:
        projection = block.weights.projections[which]
        states = expected[f"{name}.{taken}"]
        found[given] = project(projection, projection.rows(_padded(states, lnc), lnc), lnc)[:, : states.shape[1]]
    to_q, gamma = block.weights.projections[CROSS_Q], block.weights.kept["attn2.norm_q.weight"]
    states = expected[f"{name}.attn2.input"]
    call = heads_call(to_q, to_q.rows(_padded(states, lnc), lnc), HEAD_DIM, gamma, block.config.eps)
    return found | {"attn2.query": launch(call, lnc).transpose(0, 1)[:, :, : states.shape[1]]}


def _padded(states: torch.Tensor, lnc: int) -> torch.Tensor:
    return torch.nn.functional.pad(states, (0, 0, 0, -states.shape[1] % lnc))
