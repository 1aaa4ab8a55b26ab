"""Greedy generation for a batch of prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from common.checks import require_int
from common.tiling import ceil_div
from models.deepseek_v32.blocks import CacheExhaustedError
from models.deepseek_v32.model import Model, require_list


def greedy(logits: torch.Tensor) -> list[int]:
    """The likeliest token of each row; the first of equals."""
    return [int(token) for token in logits.argmax(dim=-1)]


def generate(
    model: Model, prompts: Sequence[Sequence[int]], count: int, announce: Callable[[int], None] = lambda _: None
) -> list[list[int]]:
    """`count` tokens for each prompt; the sequences are removed at the end, however it ends.

    Args:
        model: with room for them.
        prompts: token ids of each.
        count: tokens to generate.
        announce: is told the number of each token before it is made.

    Raises:
        TypeError, ValueError: as for `Model.add`, or `count` is below 1 or beyond the model's positions; nothing
            has run.
        CacheExhaustedError: the free blocks do not hold all prompts with what is generated; nothing has run.
    """
    require_int("count", count, at_least=1)
    size = model.limits.block_size
    require_list("prompts", prompts)
    most = model.config.max_position_embeddings
    for number, prompt in enumerate(prompts):
        require_list(f"prompt {number}", prompt)
        if len(prompt) + count - 1 > most:
            raise ValueError(
                f"prompt {number} has {len(prompt)} tokens and {count} to generate, of which the last needs no "
                f"position; accepted: up to {most} positions, the model's"
            )
    needed = sum(ceil_div(len(prompt) + count - 1, size) for prompt in prompts)
    if needed > model.free_blocks:
        raise CacheExhaustedError(
            f"{len(prompts)} prompts with {count} tokens each need {needed} cache blocks of {size} positions; "
            f"{model.free_blocks} are free"
        )
    announce(1)
    names, logits = model.add(prompts)
    try:
        generated = [[token] for token in greedy(logits)]
        for step in range(2, count + 1):
            announce(step)
            logits = model.decode({name: tokens[-1] for name, tokens in zip(names, generated, strict=True)})
            for tokens, token in zip(generated, greedy(logits), strict=True):
                tokens.append(token)
        return generated
    finally:
        for name in names:
            model.remove(name)
