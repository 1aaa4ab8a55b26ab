"""Predicted device time of a block's kernels, at any size: simulated without values, and never a measurement.

What runs in torch here (attention itself, GELU, gates, embeddings) and the exchange of tokens and keys between ranks
are not in it; attention's time at the Tensor Engine's peak is given beside it as what it cannot be below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import nkisim
from common import hardware
from common.row_mx import H_PACK, ROW_TAIL_BYTES
from common.tiling import round_up
from devicetime.predict import predict
from devicetime.timeline import Timeline
from kernels.adaln_quant.call import adaln_operands, quantise_operands
from kernels.adaln_quant.kernel import adaln, row_quantise
from kernels.qkv_cte import NormType, QKNormConfig, QKVOutputLayout
from kernels.qkv_cte.call import kernel_operands
from kernels.qkv_cte.kernel import row_mx_projection
from models.wan22.config import HEAD_DIM, TEXT_TOKENS, WanConfig
from models.wan22.mesh import Mesh
from models.wan22.projecting import Projection, fused_call
from models.wan22.projections import FFN_UP, SELF_QKV, Precision, Precisions
from models.wan22.ranks import TARGET

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
    """The kernels' launches of a block on a rank, in order; projections that are bf16 are torch's, and not among them.

    Raises:
        ValueError: the mesh does not fit the model.
    """
    sizes.mesh.require_heads(config)
    quantised = {name for name, precision in precisions.items() if precision is Precision.ROW_MX}
    calls = _text_calls(config, quantised, sizes)
    for part, projections in (("attn1", ["to_qkv", "to_out.0"]), ("attn2", ["to_q", "to_out.0"]), ("ffn", [])):
        first, last = [f"{part}.{name}" for name in projections] or [FFN_UP, "ffn.net.2"]
        calls.append(_modulate_call(f"{part}.input", config.hidden, first in quantised, sizes))
        if first in quantised:
            calls.append(_first_call(config, first, sizes))
        if last in quantised:
            inputs = config.ffn_dim if part == "ffn" else config.hidden
            calls.append(_quantise_call(f"{last} rows", inputs, sizes.rank_tokens, sizes))
            calls.append(_plain_call(last, sizes.rank_tokens, inputs, config.hidden, sizes))
    return calls


def attention_floor_us(config: WanConfig, sizes: Sizes) -> float:
    """Self- and cross-attention's products on a rank at the Tensor Engine's bf16 peak: no time is below it."""
    chip = hardware.get(TARGET)
    own = sizes.group_tokens * (config.num_attention_heads // sizes.mesh.tp) * sizes.tokens
    across = sizes.rank_tokens * config.num_attention_heads * TEXT_TOKENS
    operations = 4 * HEAD_DIM * sizes.batch * (own + across)
    return operations / (chip.tensor_peak_bf16_tflops * sizes.mesh.lnc) / 1e6


def _text_calls(config: WanConfig, quantised: set[str], sizes: Sizes) -> list[KernelCall]:
    tokens = round_up(TEXT_TOKENS, sizes.mesh.lnc)
    calls = []
    for name in ("attn2.to_k", "attn2.to_v"):
        if name in quantised:
            calls.append(_quantise_call(f"{name} rows", config.hidden, tokens, sizes, once=True))
            calls.append(_heads_call(config, name, tokens, sizes, norm=name == "attn2.to_k", once=True))
    return calls


def _first_call(config: WanConfig, name: str, sizes: Sizes) -> KernelCall:
    if name == SELF_QKV:
        return _self_call(config, sizes)
    if name == FFN_UP:
        return _plain_call(name, sizes.rank_tokens, config.hidden, config.ffn_dim, sizes)
    return _heads_call(config, name, sizes.rank_tokens, sizes, norm=True)


def _modulate_call(name: str, hidden: int, quantised: bool, sizes: Sizes) -> KernelCall:
    lnc = sizes.mesh.lnc
    x = torch.zeros(sizes.batch, sizes.rank_tokens, hidden, dtype=torch.bfloat16)
    vector = torch.zeros(sizes.batch, hidden)
    operands = adaln_operands(x, vector, vector, 1e-6, "row" if quantised else None, TARGET, lnc)
    shape = (sizes.batch, sizes.rank_tokens, hidden, hidden)
    return KernelCall(name, ADALN_QUANT, shape, lambda: [nkisim.run(adaln[lnc], *operands, options=_OPTIONS)])


def _quantise_call(name: str, hidden: int, tokens: int, sizes: Sizes, once: bool = False) -> KernelCall:
    lnc = sizes.mesh.lnc
    operands = quantise_operands(torch.zeros(sizes.batch, tokens, hidden, dtype=torch.bfloat16), TARGET, lnc)
    shape = (sizes.batch, tokens, hidden, hidden)
    return KernelCall(
        name, ADALN_QUANT, shape, lambda: [nkisim.run(row_quantise[lnc], *operands, options=_OPTIONS)], once
    )


def _plain_call(name: str, tokens: int, inputs: int, outputs: int, sizes: Sizes) -> KernelCall:
    call = _weights(inputs, outputs).call(_rows(sizes.batch, tokens, inputs), 1, 0, outputs)
    return _projection_call(name, call, sizes)


def _heads_call(
    config: WanConfig, name: str, tokens: int, sizes: Sizes, *, norm: bool, once: bool = False
) -> KernelCall:
    hidden = config.hidden
    rows = _rows(sizes.batch, tokens, hidden)
    call = _weights(hidden, hidden).call(rows, config.num_attention_heads, 0, HEAD_DIM)
    call["output_layout"] = QKVOutputLayout.NBSd
    if norm:
        call["qk_norm_pre_rope"] = QKNormConfig(q_norm=NormType.RMS_NORM_ACROSS_HEADS, eps=config.eps)
        call["qk_norm_pre_rope_q_gamma"] = torch.ones(1, hidden, dtype=torch.bfloat16)
    return _projection_call(name, call, sizes, once)


def _self_call(config: WanConfig, sizes: Sizes) -> KernelCall:
    """All ranks of a tensor-parallel group, which meet in its all-reduce."""
    mesh, width = sizes.mesh, config.hidden // sizes.mesh.tp
    cache = torch.ones(sizes.group_tokens, HEAD_DIM)
    gamma = torch.ones(width, dtype=torch.bfloat16)
    group = (mesh.tp_group(0),) if mesh.tp > 1 else None
    call = fused_call(
        _weights(config.hidden, 3 * width),
        _rows(sizes.batch, sizes.group_tokens, config.hidden),
        HEAD_DIM,
        (gamma, gamma),
        (cache, cache),
        config.eps,
        group,
    )
    return _projection_call(SELF_QKV, dict(call), sizes, ranks=mesh.tp)


def _projection_call(name: str, call: dict[str, Any], sizes: Sizes, once: bool = False, ranks: int = 1) -> KernelCall:
    lnc = sizes.mesh.lnc
    operands = kernel_operands(**call, target=TARGET, lnc=lnc)
    rows, weight = operands[0], operands[1]
    shape = (*rows.shape[:2], rows.shape[2] - ROW_TAIL_BYTES, weight.shape[1])
    return KernelCall(
        name,
        QKV_CTE,
        shape,
        lambda: nkisim.run_ranks(row_mx_projection[lnc], [operands] * ranks, _OPTIONS),
        once,
    )


def _weights(inputs: int, outputs: int) -> Projection:
    """A projection of these sizes, of zeros."""
    weight = torch.zeros(inputs // H_PACK, outputs, H_PACK, dtype=torch.uint8).view(torch.float8_e4m3fn)
    return Projection(weight, torch.zeros(1, outputs), torch.ones(1, outputs))


def _rows(batch: int, tokens: int, hidden: int) -> torch.Tensor:
    """Packed rows of zeros."""
    rows = torch.zeros(batch, tokens, hidden + ROW_TAIL_BYTES, dtype=torch.uint8)
    rows[..., hidden:] = torch.ones(1).view(torch.uint8)
    return rows.view(torch.float8_e4m3fn)
