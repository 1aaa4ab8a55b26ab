"""The paged cache: what each position left behind, per layer."""

from __future__ import annotations

import torch

from models.deepseek_v32.config import ModelConfig


class PagedCache:
    """Latent rows and indexer keys of every layer, in blocks; a rank's own, the same on every rank.

    Attributes:
        latent: per layer [n_blocks, 1, block_size, rope + kv_lora], rows `[k_pe | kv_latent]`.
        index_keys: per layer [n_blocks * block_size, index_head_dim].
    """

    def __init__(self, config: ModelConfig, n_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        layers = range(config.num_hidden_layers)
        rows = n_blocks * block_size
        self.latent = [torch.zeros(n_blocks, 1, block_size, config.cache_row, dtype=dtype) for _ in layers]
        self.index_keys = [torch.zeros(rows, config.index_head_dim, dtype=dtype) for _ in layers]

    def latent_rows(self, layer: int) -> torch.Tensor:
        """The layer's rows one after the other, [n_blocks * block_size, rope + kv_lora]; a view."""
        return self.latent[layer].flatten(0, 2)
