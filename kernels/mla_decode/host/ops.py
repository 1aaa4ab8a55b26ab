"""The shims as torch custom ops, for torch.compile, export and torch's own checks.

`torch.ops.mla_decode.attention`, `.qkv` and `.step` take the arguments of `mla_decode_attention`, `mla_decode_qkv` and
`mla_decode`, target and cores by name. `qkv` and `step` write to `kv_cache`, and say so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from kernels.mla_decode.host import front_shim, shim

attention = torch.library.custom_op("mla_decode::attention", shim.mla_decode_attention, mutates_args=())
qkv = torch.library.custom_op("mla_decode::qkv", front_shim.mla_decode_qkv, mutates_args=("kv_cache",))
step = torch.library.custom_op("mla_decode::step", front_shim.mla_decode, mutates_args=("kv_cache",))


def _bound(function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments by name."""
    return dict(inspect.signature(function).bind(*arguments, **named).arguments)


@attention.register_fake
def _(*arguments: Any, **named: Any) -> torch.Tensor:
    given = _bound(shim.mla_decode_attention, arguments, named)
    return given["q_absorbed"].new_empty(given["q_absorbed"].shape[0], given["o_proj_w"].shape[1])


@qkv.register_fake
def _(*arguments: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    given = _bound(front_shim.mla_decode_qkv, arguments, named)
    x, rope = given["hidden_states"], 2 * given["cos"].shape[1]
    heads, _, rank = given["q_absorb_w"].shape
    tokens = x.shape[0]
    return x.new_empty(tokens, heads, rank), x.new_empty(tokens, heads, rope), x.new_empty(tokens, rope + rank)


@step.register_fake
def _(*arguments: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
    given = _bound(front_shim.mla_decode, arguments, named)
    x, row = given["hidden_states"], 2 * given["cos"].shape[1] + given["q_absorb_w"].shape[2]
    return x.new_empty(x.shape[0], given["o_proj_w"].shape[1]), x.new_empty(x.shape[0], row)
