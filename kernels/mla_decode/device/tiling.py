"""Sizes that follow from a configuration."""

import nki.language as nl
from kernels.mla_decode.device.config import P_MAX, AttentionConfig, row_bytes


def count_tiles(extent: int, size: int) -> int:
    """Tiles of `size` that cover `extent`."""
    return (extent + size - 1) // size


def prior_tiles(config: AttentionConfig) -> int:
    """Key tiles of the selected prior; the last one may be ragged."""
    return count_tiles(config.n_prior, P_MAX)


def latent_tiles(config: AttentionConfig) -> int:
    """Tiles of 128 latent features."""
    return config.kv_lora_rank // P_MAX


def packed_row_bytes(config: AttentionConfig) -> int:
    """Bytes of a row of an fp8 cache."""
    return row_bytes(config.kv_lora_rank, config.rope)


def check_cores(config: AttentionConfig) -> None:
    """The launch has the cores that the plan shares the work between."""
    cores = nl.num_programs(0)
    assert cores == config.cores, f"launched on {cores} cores; accepted: {config.cores}, which the plan is made for"


def first_token(config: AttentionConfig) -> int:
    """The first of this core's tokens."""
    check_cores(config)
    return nl.program_id(0) * config.n_tokens if config.cores_share == "tokens" else 0


def first_head(config: AttentionConfig) -> int:
    """The first of this core's heads."""
    check_cores(config)
    return nl.program_id(0) * config.n_heads if config.cores_share == "heads" else 0


def all_tokens(config: AttentionConfig) -> int:
    """Tokens of the step."""
    return config.n_tokens * config.cores if config.cores_share == "tokens" else config.n_tokens


def all_heads(config: AttentionConfig) -> int:
    """Heads of this rank."""
    return config.n_heads * config.cores if config.cores_share == "heads" else config.n_heads


def own_columns(config: AttentionConfig) -> tuple[int, int]:
    """The first column of `hidden` that this core makes, and the one after its last."""
    columns = count_tiles(config.hidden, config.cores)
    first = nl.program_id(0) * columns
    return first, min(first + columns, config.hidden)


def group_ranges(config: AttentionConfig) -> list[tuple[int, int]]:
    """First token and number of tokens of each softmax group."""
    ranges = []
    for first in range(0, config.n_tokens, config.group_tokens):
        ranges.append((first, min(config.group_tokens, config.n_tokens - first)))
    return ranges


def tail_ranges(config: AttentionConfig) -> list[tuple[int, int]]:
    """First token and one past the last of each batch of tokens that goes through the tails together."""
    if not config.schedule.per_token_tails:
        return [(0, config.n_tokens)]
    ranges = []
    for token in range(config.n_tokens):
        ranges.append((token, token + 1))
    return ranges
