"""A block of the DiT on this process's ranks. Lists have one entry for each of them, in order.

    tokens + gate * attn1(modulate(norm1(tokens)))
    tokens + attn2(norm2(tokens), text)
    tokens + gate * ffn(modulate(norm3(tokens)))

Where the kernels do not compute, this is torch: attention itself, GELU, gates and residuals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from common.tiling import round_up
from kernels.adaln_quant import adaln_modulate
from models.wan22.config import WanConfig
from models.wan22.launching import TARGET, launch
from models.wan22.mesh import Mesh
from models.wan22.projecting import Projection, fused_call, heads_call, mean_square, norm_rope, project
from models.wan22.projections import (
    CROSS_K,
    CROSS_OUT,
    CROSS_Q,
    CROSS_V,
    FFN_DOWN,
    FFN_UP,
    IMAGE_K,
    IMAGE_V,
    SELF_OUT,
)
from models.wan22.ranks import Ranks
from models.wan22.weights import BlockWeights

Parts = list[torch.Tensor]

Observe = Callable[[str, Sequence[torch.Tensor]], None]
"""Is told every intermediate: its name, and a tensor for each rank here."""


@dataclass(frozen=True)
class Places:
    """Where the tokens are.

    Attributes:
        tokens: how many there are, without padding.
        caches: cos and sin, each [S, head_dim], of the tokens of each rank's tensor-parallel group.
    """

    tokens: int
    caches: tuple[tuple[torch.Tensor, torch.Tensor], ...]


@dataclass(frozen=True)
class CrossKeys:
    """Keys and values [B, heads, tokens, head_dim] of what a block attends to across: text, and an image or None."""

    text: tuple[torch.Tensor, torch.Tensor]
    image: tuple[torch.Tensor, torch.Tensor] | None


class Block:
    """One block."""

    def __init__(self, weights: BlockWeights, config: WanConfig, mesh: Mesh, ranks: Ranks) -> None:
        self.weights = weights
        self.config = config
        self.mesh = mesh
        self.ranks = ranks

    def cross_keys(self, text: torch.Tensor, image: torch.Tensor | None) -> CrossKeys:
        """What cross-attention needs of embedded text and image [B, tokens, hidden]: once per generation."""
        kept = self.weights.kept
        of_image = None
        if image is not None:
            of_image = self._keys(IMAGE_K, image, kept["attn2.norm_added_k.weight"]), self._keys(IMAGE_V, image, None)
        of_text = self._keys(CROSS_K, text, kept["attn2.norm_k.weight"]), self._keys(CROSS_V, text, None)
        return CrossKeys(of_text, of_image)

    def forward(
        self, tokens: Parts, modulation: torch.Tensor, places: Places, keys: CrossKeys, observe: Observe
    ) -> Parts:
        """One step through the block.

        Args:
            tokens: [B, S of a rank, hidden] bfloat16.
            modulation: [B, 6, hidden] bfloat16, of the time.
            places: of the tokens.
            keys: of text and image.
            observe: is told the intermediates.

        Returns:
            As `tokens`.
        """
        table = self.weights.kept["scale_shift_table"] + modulation.float()
        shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = table.unbind(1)
        tokens = gated(tokens, self._self_attention(tokens, scale, shift, places, observe), gate)
        across = self._cross_attention(tokens, keys, observe)
        tokens = [x + y for x, y in zip(tokens, across, strict=True)]
        tokens = gated(tokens, self._feed_forward(tokens, ffn_scale, ffn_shift, observe), ffn_gate)
        observe("", tokens)
        return tokens

    def _self_attention(
        self, tokens: Parts, scale: torch.Tensor, shift: torch.Tensor, places: Places, observe: Observe
    ) -> Parts:
        rows = self._modulated(tokens, scale, shift, self.weights.shares[0].qkv)
        observe("attn1.input", rows)
        of_group = self._of_tp_groups(rows)
        queries, keys, values = zip(*map(self._heads, self._projected(of_group, places)), strict=True)
        for name, parts in (("query", queries), ("key", keys), ("value", values)):
            observe(f"attn1.{name}", parts)
        every = zip(queries, *(self._of_all_tokens(parts, places.tokens) for parts in (keys, values)), strict=True)
        attended = [functional.scaled_dot_product_attention(*qkv) for qkv in every]
        own = self._own_tokens_of_all_heads(attended)
        observe("attn1.attended", own)
        return self._projected_each(SELF_OUT, own, "attn1", observe)

    def _cross_attention(self, tokens: Parts, keys: CrossKeys, observe: Observe) -> Parts:
        kept, to_q = self.weights.kept, self.weights.projections[CROSS_Q]
        batch = tokens[0].shape[0]
        scale = (kept["norm2.weight"] - 1).expand(batch, -1)
        rows = self._modulated(tokens, scale, kept["norm2.bias"].expand(batch, -1), to_q)
        observe("attn2.input", rows)
        queries = [self._project_heads(to_q, part, kept["attn2.norm_q.weight"]) for part in rows]
        for name, parts in (("query", queries), ("key", [keys.text[0]]), ("value", [keys.text[1]])):
            observe(f"attn2.{name}", parts)
        attended = [_joined_heads(functional.scaled_dot_product_attention(q, *keys.text)) for q in queries]
        if keys.image is not None:
            of_image = [_joined_heads(functional.scaled_dot_product_attention(q, *keys.image)) for q in queries]
            attended = [x + y for x, y in zip(attended, of_image, strict=True)]
        observe("attn2.attended", attended)
        return self._projected_each(CROSS_OUT, attended, "attn2", observe)

    def _feed_forward(self, tokens: Parts, scale: torch.Tensor, shift: torch.Tensor, observe: Observe) -> Parts:
        up = self.weights.projections[FFN_UP]
        rows = self._modulated(tokens, scale, shift, up)
        observe("ffn.input", rows)
        raised = [project(up, part, self.mesh.lnc) for part in rows]
        observe("ffn.net.0.proj", raised)
        hidden = [functional.gelu(part, approximate="tanh") for part in raised]
        observe("ffn.net.0", hidden)
        return self._projected_each(FFN_DOWN, hidden, "ffn", observe)

    def _modulated(self, tokens: Parts, scale: torch.Tensor, shift: torch.Tensor, reader: Projection) -> Parts:
        """`layer_norm(tokens) * (1 + scale) + shift` as `reader` takes it; scale and shift [B, hidden]."""
        eps, lnc, quant = self.config.eps, self.mesh.lnc, "row" if reader.quantised else None
        return [adaln_modulate(x, scale, shift, eps, quant, target=TARGET, lnc=lnc) for x in tokens]

    def _projected_each(self, name: str, parts: Parts, observed: str, observe: Observe) -> Parts:
        projection = self.weights.projections[name]
        out = [project(projection, projection.rows(part, self.mesh.lnc), self.mesh.lnc) for part in parts]
        observe(observed, out)
        return out

    def _keys(self, name: str, states: torch.Tensor, gamma: torch.Tensor | None) -> torch.Tensor:
        projection, tokens, lnc = self.weights.projections[name], states.shape[1], self.mesh.lnc
        padded = functional.pad(states, (0, 0, 0, round_up(tokens, lnc) - tokens))
        return self._project_heads(projection, projection.rows(padded, lnc), gamma)[:, :, :tokens]

    def _project_heads(self, projection: Projection, rows: torch.Tensor, gamma: torch.Tensor | None) -> torch.Tensor:
        call = heads_call(projection, rows, self.config.attention_head_dim, gamma, self.config.eps)
        return launch(call, self.mesh.lnc).transpose(0, 1)

    def _projected(self, rows: Parts, places: Places) -> Parts:
        """Q | K | V of each rank's heads, normalised across all heads and rotated: [B, S of the group, 3 * width]."""
        config, groups = self.config, self.mesh.replica_groups
        if groups is not None and not self.weights.shares[0].qkv.quantised:
            return self._projected_apart(rows, places)
        calls = [
            fused_call(share.qkv, part, config.attention_head_dim, share.gammas, caches, config.eps, groups)
            for share, part, caches in zip(self.weights.shares, rows, places.caches, strict=True)
        ]
        return self.ranks.project(calls, self.mesh.lnc)

    def _projected_apart(self, rows: Parts, places: Places) -> Parts:
        """The same where the kernel does not add up squares over ranks, which is so in bf16: norm and RoPE in torch."""
        shares = self.weights.shares
        segments = [
            [*project(share.qkv, part, self.mesh.lnc).chunk(3, -1)] for share, part in zip(shares, rows, strict=True)
        ]
        for index in range(2):
            every = self.ranks.gather([mean_square(parts[index]) for parts in segments])
            for rank, share, parts, caches in zip(self.ranks.here, shares, segments, places.caches, strict=True):
                mean = torch.stack([every[other] for other in self.mesh.tp_group(rank)]).mean(0)
                parts[index] = norm_rope(parts[index], mean, share.gammas[index], caches, self.config.eps)
        return [torch.cat(parts, -1) for parts in segments]

    def _heads(self, fused: torch.Tensor) -> Parts:
        """Q, K and V, each [B, heads, S, head_dim]."""
        lanes = fused.unflatten(-1, (3, -1, self.config.attention_head_dim))
        return [segment.transpose(1, 2) for segment in lanes.unbind(2)]

    def _of_tp_groups(self, parts: Parts) -> Parts:
        """Tokens (dimension 1) of each rank's tensor-parallel group, from its own tokens."""
        every = self.ranks.gather(parts)
        return [torch.cat([every[r] for r in self.mesh.tp_group(rank)], 1) for rank in self.ranks.here]

    def _of_all_tokens(self, parts: Sequence[torch.Tensor], tokens: int) -> Parts:
        """Keys or values of all tokens (dimension 2) without padding, from those of the tensor-parallel group."""
        every = self.ranks.gather(parts)
        joined = [torch.cat([every[r] for r in self.mesh.cp_group(rank)], 2) for rank in self.ranks.here]
        return [part[:, :, :tokens] for part in joined]

    def _own_tokens_of_all_heads(self, attended: Parts) -> Parts:
        """[B, S of a rank, hidden], from [B, heads of a rank, S of the group, head_dim]."""
        every = self.ranks.gather(attended)
        own = []
        for rank in self.ranks.here:
            group = self.mesh.tp_group(rank)
            place = group.index(rank)
            heads = [every[r].chunk(self.mesh.tp, 2)[place] for r in group]
            own.append(_joined_heads(torch.cat(heads, 1)))
        return own


def _joined_heads(attended: torch.Tensor) -> torch.Tensor:
    """[B, heads, S, head_dim] to [B, S, heads * head_dim]."""
    return attended.transpose(1, 2).flatten(2)


def gated(tokens: Parts, added: Parts, gate: torch.Tensor) -> Parts:
    """`tokens + added * gate` with a gate [B, hidden], in fp32 and rounded once."""
    return [(x.float() + y * gate[:, None]).to(x.dtype) for x, y in zip(tokens, added, strict=True)]
