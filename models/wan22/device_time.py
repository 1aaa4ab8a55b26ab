"""Predicted device time of a block's kernels, at any size: simulated without values, and never a measurement.

What runs in torch here is not in it: attention itself, GELU, gates, embeddings, norm and RoPE of bf16 Q and K over
ranks, and the exchange of tokens and keys between ranks. Attention's time at the Tensor Engine's peak is given beside
it, as what it cannot be below.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import nkisim
from common import hardware
from common.row_mx import H_PACK, ROW_TAIL_BYTES
from common.tiling import round_up
from devicetime.predict import predict
from devicetime.timeline import Timeline
from kernels.adaln_quant.device.kernel import adaln, row_quantise
from kernels.adaln_quant.host.call import adaln_operands, quantise_operands
from models.wan22.config import HEAD_DIM, TEXT_TOKENS, WanConfig
from models.wan22.launching import TARGET, Call, check
from models.wan22.mesh import Mesh
from models.wan22.projecting import Projection, fused_call, heads_call, plain_call
from models.wan22.projections import (
    CROSS_K,
    CROSS_OUT,
    CROSS_Q,
    CROSS_V,
    FFN_DOWN,
    FFN_UP,
    SELF_OUT,
    SELF_QKV,
    Precision,
    Precisions,
)

QKV_CTE, ADALN_QUANT = "qkv_cte", "adaln_quant"
_OPTIONS = nkisim.Options(target=TARGET, numerics=False)


@dataclass(frozen=True)
class KernelCall:
    """One launch of a kernel in a block.

    Attributes:
        name: what it is there for.
        kernel: which kernel.
        shape: of its input [B, S, H], and the width of its output.
        record: simulates it without values on the ranks that take part.
        once: whether it runs once per generation instead of in every step.
    """

    name: str
    kernel: str
    shape: tuple[int, int, int, int]
    record: Callable[[], Sequence[nkisim.Run]]
    once: bool = False

    def timeline(self) -> Timeline:
        """When each of its instructions would run."""
        return predict(self.record(), TARGET)


@dataclass(frozen=True)
class Sizes:
    """What a block works on.

    Attributes:
        batch: B.
        tokens: S of all ranks, without padding.
        mesh: the ranks.
    """

    batch: int
    tokens: int
    mesh: Mesh

    @property
    def rank_tokens(self) -> int:
        """S of a rank, padding included."""
        return self.mesh.padded(self.tokens) // self.mesh.size

    @property
    def group_tokens(self) -> int:
        """S of a tensor-parallel group, padding included."""
        return self.rank_tokens * self.mesh.tp


def block_calls(config: WanConfig, precisions: Precisions, sizes: Sizes) -> list[KernelCall]:
    """The kernels' launches of a block on a rank, in order.

    Raises:
        ValueError: the mesh does not fit the model.
    """
    sizes.mesh.require_heads(config)
    return list(_Launches(config, precisions, sizes).block())


def attention_floor_us(config: WanConfig, sizes: Sizes) -> float:
    """Self- and cross-attention's products on a rank at the Tensor Engine's bf16 peak: no time is below it."""
    chip = hardware.get(TARGET)
    own = sizes.group_tokens * (config.num_attention_heads // sizes.mesh.tp) * sizes.tokens
    across = sizes.rank_tokens * config.num_attention_heads * TEXT_TOKENS
    operations = 4 * HEAD_DIM * sizes.batch * (own + across)
    return operations / (chip.tensor_peak_bf16_tflops * sizes.mesh.lnc) / 1e6


class _Launches:
    """Makes the launches of a block, with operands of zeros."""

    def __init__(self, config: WanConfig, precisions: Precisions, sizes: Sizes) -> None:
        self.config = config
        self.precisions = precisions
        self.sizes = sizes
        self.lnc = sizes.mesh.lnc

    def block(self) -> Iterator[KernelCall]:
        hidden, tokens = self.config.hidden, self.sizes.rank_tokens
        gamma = torch.ones(hidden, dtype=torch.bfloat16)
        text_tokens = round_up(TEXT_TOKENS, self.lnc)
        for name, norm in ((CROSS_K, gamma), (CROSS_V, None)):
            yield from self._quantised(name, text_tokens, hidden, once=True)
            yield self._heads(name, text_tokens, norm, once=True)
        yield self._modulated("attn1.input", SELF_QKV)
        yield self._self()
        yield from self._plain(SELF_OUT, tokens, hidden, hidden)
        yield self._modulated("attn2.input", CROSS_Q)
        yield self._heads(CROSS_Q, tokens, gamma)
        yield from self._plain(CROSS_OUT, tokens, hidden, hidden)
        yield self._modulated("ffn.input", FFN_UP)
        yield self._projected(FFN_UP, plain_call(*self._operands(FFN_UP, tokens, hidden, self.config.ffn_dim)))
        yield from self._plain(FFN_DOWN, tokens, self.config.ffn_dim, hidden)

    def _plain(self, name: str, tokens: int, inputs: int, outputs: int) -> Iterator[KernelCall]:
        yield from self._quantised(name, tokens, inputs)
        yield self._projected(name, plain_call(*self._operands(name, tokens, inputs, outputs)))

    def _heads(self, name: str, tokens: int, gamma: torch.Tensor | None, once: bool = False) -> KernelCall:
        operands = self._operands(name, tokens, self.config.hidden, self.config.hidden)
        return self._projected(name, heads_call(*operands, HEAD_DIM, gamma, self.config.eps), once=once)

    def _self(self) -> KernelCall:
        """All ranks of a tensor-parallel group, which meet in its all-reduce; in bf16 one, without norm and RoPE."""
        mesh, tokens = self.sizes.mesh, self.sizes.group_tokens
        width = self.config.hidden // mesh.tp
        cache, gamma = torch.ones(tokens, HEAD_DIM), torch.ones(width, dtype=torch.bfloat16)
        group = (mesh.tp_group(0),) if mesh.tp > 1 else None
        operands = self._operands(SELF_QKV, tokens, self.config.hidden, 3 * width)
        if group is not None and not self._is_quantised(SELF_QKV):
            return self._projected(SELF_QKV, plain_call(*operands))
        call = fused_call(*operands, HEAD_DIM, (gamma, gamma), (cache, cache), self.config.eps, group)
        return self._projected(SELF_QKV, call, ranks=mesh.tp)

    def _projected(self, name: str, call: Call, once: bool = False, ranks: int = 1) -> KernelCall:
        checked = check(call, self.lnc)
        rows = call.arguments["packed_hidden" if call.quantised else "input"]
        weight = call.arguments["weight" if call.quantised else "fused_qkv_weights"]
        shape = (*rows.shape[:2], rows.shape[2] - ROW_TAIL_BYTES * call.quantised, weight.shape[1])
        record = functools.partial(nkisim.run_ranks, checked.kernel, [checked.operands] * ranks, _OPTIONS)
        return KernelCall(name, QKV_CTE, shape, record, once)

    def _modulated(self, name: str, reader: str) -> KernelCall:
        x = self._tokens(self.sizes.rank_tokens, self.config.hidden)
        vector = torch.zeros(self.sizes.batch, self.config.hidden)
        quant = "row" if self._is_quantised(reader) else None
        operands = adaln_operands(x, vector, vector, self.config.eps, quant, TARGET, self.lnc)
        return self._recorded(name, adaln, x, operands)

    def _quantised(self, name: str, tokens: int, hidden: int, once: bool = False) -> Iterator[KernelCall]:
        """The launch that quantises a projection's inputs, if it takes packed rows."""
        if self._is_quantised(name):
            x = self._tokens(tokens, hidden)
            yield self._recorded(f"{name} rows", row_quantise, x, quantise_operands(x, TARGET, self.lnc), once)

    def _recorded(
        self, name: str, kernel: Any, x: torch.Tensor, operands: tuple[Any, ...], once: bool = False
    ) -> KernelCall:
        record = functools.partial(nkisim.run_ranks, kernel[self.lnc], [operands], _OPTIONS)
        batch, tokens, hidden = x.shape
        return KernelCall(name, ADALN_QUANT, (batch, tokens, hidden, hidden), record, once)

    def _operands(self, name: str, tokens: int, inputs: int, outputs: int) -> tuple[Projection, torch.Tensor]:
        """A projection of these sizes, and rows as it takes them."""
        bias, batch = torch.zeros(1, outputs), self.sizes.batch
        if not self._is_quantised(name):
            weight = torch.zeros(inputs, outputs, dtype=torch.bfloat16)
            return Projection(weight, bias, None), self._tokens(tokens, inputs)
        codes = torch.zeros(inputs // H_PACK, outputs, H_PACK, dtype=torch.uint8).view(torch.float8_e4m3fn)
        rows = torch.zeros(batch, tokens, inputs + ROW_TAIL_BYTES, dtype=torch.uint8)
        rows[..., inputs:] = torch.ones(1).view(torch.uint8)
        return Projection(codes, bias, torch.ones(1, outputs)), rows.view(torch.float8_e4m3fn)

    def _tokens(self, tokens: int, hidden: int) -> torch.Tensor:
        return torch.zeros(self.sizes.batch, tokens, hidden, dtype=torch.bfloat16)

    def _is_quantised(self, name: str) -> bool:
        return self.precisions[name] is Precision.ROW_MX
