"""The general projection as a torch custom op, `torch.ops.qkv_cte.qkv`, so that it can be compiled and exported.

Its schema is made from the fields of `QKVArguments`. What a schema does not know goes flat: an enum by its name, a
QKNormConfig `x` as `x_q`, `x_k` and `x_eps`, a scale that may be a number as `x` and `x_number`, groups of ranks as the
ranks in their order and the size of a group. Caches and sums of squares are written, and the schema says so.
"""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Callable
from typing import Any

import torch

from kernels.qkv_cte.host import arguments
from kernels.qkv_cte.host.interface import NormType, QKNormConfig, QKVOutputLayout, QuantizationType
from kernels.qkv_cte.host.ops import groups_of, member
from kernels.qkv_cte.host.qkv_arguments import QKVArguments

WRITTEN = ("k_cache", "v_cache", "q_squared_sum_out", "k_squared_sum_out", "v_squared_sum_out")

_TYPES = typing.get_type_hints(QKVArguments)
_ENUMS = {name: kind for name, kind in _TYPES.items() if isinstance(kind, type) and issubclass(kind, enum.Enum)}
_NORMS = tuple(name for name, kind in _TYPES.items() if kind == QKNormConfig | None)
_NUMBERS = tuple(name for name, kind in _TYPES.items() if kind == torch.Tensor | float | None)
_GROUPS = "replica_groups"
_PLAIN = {
    torch.Tensor: "Tensor",
    torch.Tensor | None: "Tensor?",
    int: "int",
    int | None: "int?",
    float: "float",
    float | None: "float?",
    bool: "bool",
}


def _schema() -> str:
    """The schema, from the record's fields in their order."""
    parts = []
    for number, field in enumerate(dataclasses.fields(QKVArguments)):
        name, default = field.name, "" if field.default is dataclasses.MISSING else f"={_default(field.default)}"
        if name in WRITTEN:
            parts.append(f"Tensor(a{number}!)? {name}=None")
        elif name in _ENUMS:
            parts.append(f"str {name}{default}")
        elif name in _NORMS:
            parts += [f"str? {name}_q=None", f"str? {name}_k=None", f"float? {name}_eps=None"]
        elif name in _NUMBERS:
            parts += [f"Tensor? {name}=None", f"float? {name}_number=None"]
        elif name == _GROUPS:
            parts += ["int[]? replica_ranks=None", "int ranks_per_group=0"]
        else:
            parts.append(f"{_PLAIN[_TYPES[name]]} {name}{default}")
    return f'({", ".join(parts)}, *, str target="trn3", int lnc=2) -> Tensor'


def _default(value: Any) -> str:
    return f'"{value.name}"' if isinstance(value, enum.Enum) else str(value)


def flat(call: QKVArguments) -> dict[str, Any]:
    """A call's arguments as the op takes them, by name."""
    given: dict[str, Any] = {}
    for name in _TYPES:
        value = getattr(call, name)
        if name in _ENUMS:
            given[name] = value.name
        elif name in _NORMS:
            if value is not None:
                given |= {
                    f"{name}_q": value.q_norm and value.q_norm.name,
                    f"{name}_k": value.k_norm and value.k_norm.name,
                    f"{name}_eps": value.eps,
                }
        elif name in _NUMBERS and not isinstance(value, torch.Tensor):
            given[f"{name}_number"] = value
        elif name == _GROUPS:
            if value is not None:
                given |= {
                    "replica_ranks": [rank for group in value for rank in group],
                    "ranks_per_group": len(value[0]),
                }
        else:
            given[name] = value
    return given


def call_of(given: dict[str, Any]) -> QKVArguments:
    """Inverse of `flat`.

    Raises:
        ValueError: a name is no member's of its enum, groups do not come out even, or an argument lacks its companion
            or has one too many.
    """
    _require_companions(given)
    fields = {name: given[name] for name in _TYPES if name in given}
    fields |= {name: member(kind, fields[name]) for name, kind in _ENUMS.items() if name in fields}
    for name in _NORMS:
        eps = given.get(f"{name}_eps")
        if eps is not None:
            kinds = (given.get(f"{name}_{segment}") for segment in "qk")
            q_norm, k_norm = (None if kind is None else member(NormType, kind) for kind in kinds)
            fields[name] = QKNormConfig(q_norm, k_norm, eps)
    for name in _NUMBERS:
        if given.get(f"{name}_number") is not None:
            fields[name] = given[f"{name}_number"]
    if given.get("replica_ranks") is not None:
        fields[_GROUPS] = groups_of(given["replica_ranks"], given.get("ranks_per_group", 0))
    return QKVArguments(**fields)


def _require_companions(given: dict[str, Any]) -> None:
    """Refuses what would be left out of the call without a word."""
    for name in _NORMS:
        named = [f"{name}_{segment}" for segment in "qk" if given.get(f"{name}_{segment}") is not None]
        if named and given.get(f"{name}_eps") is None:
            raise ValueError(f"{name}_eps is None; accepted with {named[0]}: a number above 0")
    for name in _NUMBERS:
        if given.get(name) is not None and given.get(f"{name}_number") is not None:
            raise ValueError(f"{name} and {name}_number are given; accepted: one of them")
    if given.get("replica_ranks") is None and given.get("ranks_per_group", 0) != 0:
        raise ValueError(f"ranks_per_group is {given['ranks_per_group']} without replica_ranks; accepted: 0")


def define(run: Callable[[QKVArguments, str, int], torch.Tensor]) -> None:
    """Defines the op: `run` is what it does, from a call, the target and the cores."""

    def eager(*positional: Any, target: str = "trn3", lnc: int = 2, **named: Any) -> torch.Tensor:
        return run(call_of(dict(zip(_NAMES, positional, strict=False)) | named), target, lnc)

    operator = torch.library.custom_op("qkv_cte::qkv", eager, mutates_args=WRITTEN, schema=_SCHEMA)

    @operator.register_fake
    def _(*positional: Any, target: str = "trn3", lnc: int = 2, **named: Any) -> torch.Tensor:
        del target, lnc
        return result_like(call_of(dict(zip(_NAMES, positional, strict=False)) | named))


def result_like(call: QKVArguments) -> torch.Tensor:
    """A tensor like the result, of no values."""
    batch, seqlen, _ = call.input.shape
    heads = call.num_q_heads + 2 * call.num_kv_heads
    shape: tuple[int, ...] = (batch, seqlen, heads * call.d_head)
    if call.output_layout is QKVOutputLayout.NBSd:
        shape = (heads, batch, seqlen, call.d_head)
    row_mx = call.quantization_type is QuantizationType.ROW_MX
    return call.input.new_empty(shape, dtype=torch.bfloat16 if row_mx else call.input.dtype)


def traced(call: QKVArguments, target: str, lnc: int) -> torch.Tensor:
    """The op, called with a call's arguments; detached, since it has no gradient and eager calls give none either."""
    arguments.require_replica_groups(call.replica_groups)
    given = flat(call)
    for name, value in given.items():
        if isinstance(value, torch.Tensor) and value.requires_grad:
            given[name] = value.detach()
    result: torch.Tensor = torch.ops.qkv_cte.qkv(**given, target=target, lnc=lnc)
    return result


_SCHEMA = _schema()
_NAMES = tuple(part.split()[-1].partition("=")[0] for part in _SCHEMA[1:].partition(", *,")[0].split(", "))
