"""A layer's attention over the positions that the indexer selected: on the kernels, or on their references."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.mla_decode import build_prior_index, mla_decode, mla_decode_attention, mla_decode_qkv, reference
from kernels.mla_decode.host.tables import PriorIndex
from kernels.mla_decode.oracle.front_reference import front_fold
from models.deepseek_v32 import rope
from models.deepseek_v32.config import NORM_EPS, ModelConfig
from models.deepseek_v32.indexer import NO_POSITION
from models.deepseek_v32.step import Step
from models.deepseek_v32.weights import AttentionWeights


@dataclass(frozen=True)
class Device:
    """Where kernels run: "trn2" or "trn3", on lnc cores, 1 or 2."""

    target: str = "trn2"
    lnc: int = 1

    def cores(self, tokens: int, heads: int) -> int:
        """Cores that share a step of a rank, halving its tokens or its heads; one where neither is even."""
        return self.lnc if tokens * heads % self.lnc == 0 else 1


def on_kernels(
    config: ModelConfig,
    device: Device,
    weights: AttentionWeights,
    hidden: torch.Tensor,
    selected: torch.Tensor,
    latent_cache: torch.Tensor,
    step: Step,
) -> torch.Tensor:
    """The attention block of one rank, [n, hidden] before the all-reduce; writes this step's rows to the cache.

    The attention kernel always sees one key beside the prior ones, and in the fused step that is the token's own.
    Where the indexer left a token's own position out, the step runs as its two halves, and that key is one of the
    selected.

    Args:
        config: the model; device: where it runs.
        weights: of one layer and rank.
        hidden: [n, hidden], not normalised.
        selected: [n, index_topk] int32, from the indexer.
        latent_cache: [n_blocks, 1, block_size, rope + kv_lora].
        step: which tokens these are.
    """
    front = (
        hidden,
        weights.wq_a,
        weights.q_norm,
        weights.wq_b,
        weights.wkv_a,
        weights.kv_norm,
        step.cos,
        step.sin,
        weights.q_absorb,
        latent_cache,
        step.slots,
    )
    tails = (step.positions, weights.out_absorb, weights.o_proj, config.index_topk, rope.softmax_scale(config))
    cores = device.cores(len(hidden), len(weights.q_absorb))
    own = step.positions[:, None]
    if (selected == own).any(dim=-1).all():
        index = _prior_index(config, selected, latent_cache, step)
        output, _ = mla_decode(*front, *index, *tails, weights.input_norm, NORM_EPS, target=device.target, lnc=cores)
        return output
    q_absorbed, q_pe, _ = mla_decode_qkv(*front, weights.input_norm, NORM_EPS, target=device.target, lnc=cores)
    always = torch.where((selected == own).any(dim=-1), step.positions, selected[:, 0])
    index = _prior_index(config, selected.masked_fill(selected == always[:, None], NO_POSITION), latent_cache, step)
    rows = latent_cache.flatten(0, 2)
    visible = torch.stack([rows[step.rows_of(token, position)] for token, position in enumerate(always)])
    return mla_decode_attention(
        q_absorbed, q_pe, latent_cache, visible, *index, *tails, target=device.target, lnc=cores
    )


def _prior_index(config: ModelConfig, selected: torch.Tensor, latent_cache: torch.Tensor, step: Step) -> PriorIndex:
    """The kernel's tables; positions that are not before a token's own become slots that change nothing."""
    rows = latent_cache.shape[0] * latent_cache.shape[2]
    return build_prior_index(selected, step.positions, step.block_table, step.block_size, rows, config.index_topk)


def on_reference(
    config: ModelConfig,
    weights: AttentionWeights,
    hidden: torch.Tensor,
    selected: torch.Tensor,
    latent_cache: torch.Tensor,
    step: Step,
) -> torch.Tensor:
    """What `on_kernels` gives, in torch and fp32: how prompts are taken in, any number of tokens at once."""
    front = front_fold(
        hidden,
        weights.wq_a,
        weights.q_norm,
        weights.wq_b,
        weights.wkv_a,
        weights.kv_norm,
        step.cos,
        step.sin,
        weights.q_absorb,
        weights.input_norm,
        NORM_EPS,
        torch.float32,
        hidden.dtype,
    )
    rows = latent_cache.flatten(0, 2)
    rows[step.slots.long()] = front.kv_row_cur.to(rows.dtype)
    keys = [rows[step.rows_of(token, seen[seen != NO_POSITION])] for token, seen in enumerate(selected)]
    output = reference.attention(
        front.q_absorbed,
        front.q_pe,
        keys,
        weights.out_absorb,
        weights.o_proj,
        rope.softmax_scale(config),
        torch.float32,
    )
    return output.to(hidden.dtype)
