"""The model: prompts in, next-token logits out, step by step over a paged cache."""

from __future__ import annotations

import functools
import itertools
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from common import hardware
from common.budget import BudgetError
from common.checks import require_int
from kernels.mla_decode import plan
from kernels.mla_decode.planning.dims import Dims, FrontDims
from models.deepseek_v32 import attention
from models.deepseek_v32.attention import Device
from models.deepseek_v32.blocks import BlockManager
from models.deepseek_v32.cache import PagedCache
from models.deepseek_v32.config import ModelConfig
from models.deepseek_v32.layer import Attend, Observe, ignore, run_layer
from models.deepseek_v32.norm import rms_norm
from models.deepseek_v32.packing import require_divisible
from models.deepseek_v32.ranks import LocalRanks, Ranks, add_up, join
from models.deepseek_v32.step import Step, make_step
from models.deepseek_v32.weights import ModelWeights, require_weights

DTYPES = (torch.bfloat16, torch.float32)

MAX_POSITIONS = 2**31 - 1
"""Of a cache: its rows have int32 numbers."""

PREFILL_TOKENS = 256
"""Tokens of a prompt that are taken in at once; bounds what their scores and rows need in memory."""


def require_servable(config: ModelConfig, ranks: int, batch: int, dtype: torch.dtype, device: Device) -> None:
    """Whether the kernels can run this model over so many ranks.

    Raises:
        TypeError, ValueError: naming what cannot be, its value and what is accepted.
    """
    if dtype not in DTYPES:
        raise TypeError(f"dtype is {dtype}; accepted: {' or '.join(map(str, DTYPES))}")
    require_int("batch", batch, at_least=1)
    require_divisible(config, ranks)
    if require_int("lnc", device.lnc, at_least=1) > 2:
        raise ValueError(f"lnc is {device.lnc}; accepted: 1 or 2")
    # A step of one token less may run on fewer cores.
    for tokens in (batch, max(batch - 1, 1)):
        _require_plan(config, config.num_attention_heads // ranks, tokens, dtype, device)


def _require_plan(config: ModelConfig, heads: int, tokens: int, dtype: torch.dtype, device: Device) -> None:
    dims = Dims(
        n_tokens=tokens,
        n_heads=heads,
        n_prior=config.index_topk,
        kv_lora_rank=config.kv_lora_rank,
        rope=config.qk_rope_head_dim,
        v_head_dim=config.v_head_dim,
        hidden=config.hidden_size,
        itemsize=dtype.itemsize,
        cores=device.cores(tokens, heads),
    )
    try:
        front = FrontDims(config.q_lora_rank, config.qk_nope_head_dim, input_norm=True)
        plan.make(dims, hardware.get(device.target), front=front)
    except BudgetError as error:
        raise ValueError(f"batch {tokens} with {heads} heads per rank does not fit: {error}") from None


@dataclass(frozen=True)
class Limits:
    """Sizes of a model that runs.

    Attributes:
        batch: most sequences of a step.
        n_blocks, block_size: of the cache.
    """

    batch: int
    n_blocks: int
    block_size: int


class Model:
    """Sequences that share a cache.

    Every call checks its arguments, and that the cache has room for all it asks, before anything changes.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Sequence[ModelWeights],
        limits: Limits,
        *,
        ranks: Ranks | None = None,
        device: Device | None = None,
    ) -> None:
        """A model without sequences.

        Args:
            config: its sizes.
            weights: of each rank in this process.
            limits: batch and cache.
            ranks: who shares it; one rank in this process if None.
            device: where kernels run.

        Raises:
            TypeError, ValueError: weights of several types, or what `require_servable` refuses.
        """
        self.config, self.limits = config, limits
        self.ranks = ranks or LocalRanks(1)
        self.device = device or Device()
        if len(weights) != len(self.ranks.here):
            raise ValueError(
                f"weights of {len(weights)} ranks; accepted: those of {len(self.ranks.here)}, in this process"
            )
        self.weights = tuple(weights)
        self.dtype = require_weights(config, self.weights, self.ranks.size)
        require_servable(config, self.ranks.size, limits.batch, self.dtype, self.device)
        self._cache = _make_cache(config, limits, self.dtype)
        self._blocks = BlockManager(limits.n_blocks, limits.block_size)
        self._lengths: dict[int, int] = {}
        self._names: Iterator[int] = itertools.count()

    @property
    def lengths(self) -> Mapping[int, int]:
        """Tokens of each sequence so far."""
        return dict(self._lengths)

    @property
    def free_blocks(self) -> int:
        """Cache blocks that no sequence has."""
        return self._blocks.free_blocks

    def add(self, prompts: Sequence[Sequence[int]], observe: Observe = ignore) -> tuple[list[int], torch.Tensor]:
        """Takes in prompts, on the reference path.

        Returns:
            The new sequences' numbers, and the logits of what follows each prompt, [n, vocabulary] float32.

        Raises:
            TypeError, ValueError: a prompt is empty, has tokens outside the vocabulary or is longer than the cache or
                the model's positions.
            CacheExhaustedError: the free blocks do not hold all prompts.
        """
        require_list("prompts", prompts)
        if not prompts:
            raise ValueError("prompts is empty; accepted: at least one")
        for number, prompt in enumerate(prompts):
            self._require_tokens(f"prompt {number}", prompt)
            self._require_length(f"prompt {number}", len(prompt))
        if len(self._lengths) + len(prompts) > self.limits.batch:
            raise ValueError(
                f"{len(prompts)} prompts beside {len(self._lengths)} sequences; accepted: {self.limits.batch} in all"
            )
        names = [next(self._names) for _ in prompts]
        self._blocks.reserve({name: len(prompt) for name, prompt in zip(names, prompts, strict=True)})
        try:
            logits = [self._prefill(name, prompt, observe) for name, prompt in zip(names, prompts, strict=True)]
        except BaseException:  # Such as an interrupt: nobody has the names to remove the sequences.
            for name in names:
                self._blocks.free(name)
                self._lengths.pop(name, None)
            raise
        return names, torch.stack(logits)

    def _prefill(self, name: int, prompt: Sequence[int], observe: Observe) -> torch.Tensor:
        hidden = torch.empty(0)
        for first in range(0, len(prompt), PREFILL_TOKENS):
            chunk = torch.tensor(prompt[first : first + PREFILL_TOKENS])
            positions = torch.arange(first, first + len(chunk), dtype=torch.int32)
            step = self._step_of([name] * len(chunk), positions)
            hidden = self._run(chunk, step, functools.partial(attention.on_reference, self.config), observe)
        self._lengths[name] = len(prompt)
        return self._logits(hidden[-1:], observe)[0]

    def decode(self, tokens: Mapping[int, int], observe: Observe = ignore) -> torch.Tensor:
        """Appends one token to each of some sequences, on the kernels.

        Args:
            tokens: next token by sequence.
            observe: is shown intermediates.

        Returns:
            Logits of what follows, [n, vocabulary] float32, in the order of `tokens`.

        Raises:
            KeyError, TypeError, ValueError: no such sequence, a token outside the vocabulary, or a sequence at the end
                of the model's positions.
            CacheExhaustedError: a sequence needs a block and none is free.
        """
        if not isinstance(tokens, Mapping):
            raise TypeError(
                f"tokens is a {type(tokens).__name__}; accepted: a dictionary from sequences to their next tokens"
            )
        if not tokens:
            raise ValueError("tokens is empty; accepted: at least one sequence's next token")
        for name, token in tokens.items():
            if name not in self._lengths:
                raise KeyError(f"no sequence {name}; there are {sorted(self._lengths)}")
            self._require_tokens(f"sequence {name}", [token])
            self._require_length(f"sequence {name}", self._lengths[name] + 1)
        self._blocks.reserve({name: self._lengths[name] + 1 for name in tokens})
        positions = torch.tensor([self._lengths[name] for name in tokens], dtype=torch.int32)
        step = self._step_of(list(tokens), positions)
        attend = functools.partial(attention.on_kernels, self.config, self.device)
        hidden = self._run(torch.tensor(list(tokens.values())), step, attend, observe)
        for name in tokens:
            self._lengths[name] += 1
        return self._logits(hidden, observe)

    def remove(self, name: int) -> None:
        """Ends a sequence and frees its cache blocks.

        Raises:
            KeyError: no such sequence.
        """
        self._blocks.free(name)
        del self._lengths[name]

    def _step_of(self, names: list[int], positions: torch.Tensor) -> Step:
        return make_step(self.config, positions, self._blocks.table(names), self.limits.block_size)

    def _run(self, tokens: torch.Tensor, step: Step, attend: Attend, observe: Observe) -> torch.Tensor:
        """[n] tokens through all layers."""
        hidden = self.weights[0].embedding[tokens]
        for layer in range(self.config.num_hidden_layers):
            hidden = run_layer(
                self.config,
                [own.layers[layer] for own in self.weights],
                layer,
                hidden,
                self._cache,
                step,
                attend,
                functools.partial(add_up, self.ranks, target=self.device.target),
                _of_layer(observe, layer),
            )
        return hidden

    def _logits(self, hidden: torch.Tensor, observe: Observe) -> torch.Tensor:
        x = rms_norm(hidden, self.weights[0].norm)
        observe("norm", x)
        parts = [torch.nn.functional.linear(x, own.head).float() for own in self.weights]
        logits = join(self.ranks, parts, self.device.target)
        observe("logits", logits)
        return logits

    def _require_tokens(self, what: str, tokens: Sequence[int]) -> None:
        require_list(what, tokens)
        if not tokens:
            raise ValueError(f"{what} is empty; accepted: at least one token")
        for token in tokens:
            if isinstance(token, bool) or not isinstance(token, int):
                raise TypeError(f"{what} has token {reprlib.repr(token)}; accepted: integers")
            if not 0 <= token < self.config.vocab_size:
                raise ValueError(f"{what} has token {reprlib.repr(token)}; accepted: 0 to {self.config.vocab_size - 1}")

    def _require_length(self, what: str, length: int) -> None:
        positions = self.limits.n_blocks * self.limits.block_size
        if length > positions:
            raise ValueError(f"{what} has {length} tokens; accepted: up to {positions}, what the cache holds")
        most = self.config.max_position_embeddings
        if length > most:
            raise ValueError(f"{what} has {length} tokens; accepted: up to {most}, the model's positions")


def _make_cache(config: ModelConfig, limits: Limits, dtype: torch.dtype) -> PagedCache:
    """The cache, before anything else is as large."""
    require_int("n_blocks", limits.n_blocks, at_least=1)
    require_int("block_size", limits.block_size, at_least=1)
    positions = limits.n_blocks * limits.block_size
    if positions > MAX_POSITIONS:
        raise ValueError(
            f"n_blocks {limits.n_blocks} of block_size {limits.block_size} are {positions} positions; accepted: up to "
            f"{MAX_POSITIONS}"
        )
    try:
        return PagedCache(config, limits.n_blocks, limits.block_size, dtype)
    except RuntimeError:  # What torch raises where memory ends.
        raise ValueError(
            f"n_blocks {limits.n_blocks} of block_size {limits.block_size}: no memory for {positions} positions; "
            f"accepted: a cache that fits"
        ) from None


def require_list(what: str, given: object) -> None:
    """Refuses what has no order, no length or no parts.

    Raises:
        TypeError: it is neither list nor tuple.
    """
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"{what} is a {type(given).__name__}; accepted: a list")


def _of_layer(observe: Observe, layer: int) -> Observe:
    """Names what it is shown after the layer."""
    return lambda name, value: observe(f"layers.{layer}.{name}", value)
