"""A function of the package as a torch custom op, so that it can be compiled and exported.

The schema is made from the fields of the function's record of arguments. What a schema does not know goes flat: an enum
by its name, a QKNormConfig `x` as `x_q`, `x_k` and `x_eps`, a scale that may be a number as `x` and `x_number`, groups
of ranks as the ranks in their order and the size of a group, a Choice as its integers. Arguments that are written are
so in the schema.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, TypeVar

import torch

from kernels.qkv_cte.host import arguments, launch
from kernels.qkv_cte.host.entries import Entry
from kernels.qkv_cte.host.interface import NormType, QKNormConfig
from kernels.qkv_cte.planning.choice import Choice

LIBRARY = "qkv_cte"

_NORMS, _NUMBER, _CHOICE = QKNormConfig | None, torch.Tensor | float | None, Choice | None
_GROUPS = tuple[tuple[int, ...], ...] | None
_PLAIN = {
    torch.Tensor: "Tensor",
    torch.Tensor | None: "Tensor?",
    int: "int",
    int | None: "int?",
    float: "float",
    float | None: "float?",
    bool: "bool",
}

Member = TypeVar("Member", bound=enum.Enum)


def call(entry: Entry, record: Any, *, target: str, lnc: int) -> torch.Tensor:
    """Calls the op while torch traces, else what it does.

    The op gets tensors detached, since it has no gradient and eager calls give none either.
    """
    if not torch.compiler.is_compiling():
        return launch.run(entry, record, target=target, lnc=lnc)
    arguments.require_replica_groups(record.replica_groups)
    given = flat(entry, record)
    for name, value in given.items():
        if isinstance(value, torch.Tensor) and value.requires_grad:
            given[name] = value.detach()
    result: torch.Tensor = getattr(torch.ops.qkv_cte, entry.name)(**given, target=target, lnc=lnc)
    return result


def define(entry: Entry) -> None:
    """Defines the op of an entry."""
    schema = _schema(entry)
    names = [part.split()[-1].partition("=")[0] for part in schema[1:].partition(", *,")[0].split(", ")]

    def record_of(positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return unflat(entry, dict(zip(names, positional, strict=False)) | named)

    def eager(*positional: Any, target: str = "trn3", lnc: int = 2, **named: Any) -> torch.Tensor:
        return launch.run(entry, record_of(positional, named), target=target, lnc=lnc)

    operator = torch.library.custom_op(f"{LIBRARY}::{entry.name}", eager, mutates_args=entry.written, schema=schema)

    @operator.register_fake
    def _(*positional: Any, target: str = "trn3", lnc: int = 2, **named: Any) -> torch.Tensor:
        del target, lnc
        like: torch.Tensor = record_of(positional, named).output_like
        return like


def flat(entry: Entry, record: Any) -> dict[str, Any]:
    """A record's arguments as its op takes them, by name."""
    given: dict[str, Any] = {}
    for name, kind in entry.types.items():
        value = getattr(record, name)
        if isinstance(value, enum.Enum):
            given[name] = value.name
        elif kind == _NORMS and value is not None:
            given[f"{name}_q"] = value.q_norm and value.q_norm.name
            given[f"{name}_k"] = value.k_norm and value.k_norm.name
            given[f"{name}_eps"] = value.eps
        elif kind == _NUMBER and isinstance(value, (int, float)):
            given[f"{name}_number"] = value
        elif kind == _GROUPS and value is not None:
            given["replica_ranks"] = [rank for group in value for rank in group]
            given["ranks_per_group"] = len(value[0])
        elif kind == _CHOICE and value is not None:
            given[name] = value.integers()
        elif kind not in (_NORMS, _GROUPS):
            given[name] = value
    return given


def unflat(entry: Entry, given: dict[str, Any]) -> Any:
    """Inverse of `flat`.

    Raises:
        ValueError: a name is no member's of its enum, groups do not come out even, or an argument lacks its companion
            or has one too many.
    """
    values = {name: _value(name, kind, given) for name, kind in entry.types.items()}
    return entry.record(**{name: value for name, value in values.items() if name in given or value is not None})


def _value(name: str, kind: Any, given: dict[str, Any]) -> Any:
    """An argument of the record; None where it is not given."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return member(kind, given[name]) if name in given else None
    if kind == _NORMS:
        return _norms_of(name, given)
    if kind == _NUMBER:
        return _number_of(name, given)
    if kind == _GROUPS:
        return _groups_of(given.get("replica_ranks"), given.get("ranks_per_group", 0))
    if kind == _CHOICE and given.get(name) is not None:
        return Choice.from_integers(given[name])
    return given.get(name)


def member(kind: type[Member], name: str) -> Member:
    """A member of an enum by its name.

    Raises:
        ValueError: it has none of that name.
    """
    if name not in kind.__members__:
        raise ValueError(f"{kind.__name__} has no {name!r}; accepted: {', '.join(kind.__members__)}")
    return kind[name]


def _norms_of(name: str, given: dict[str, Any]) -> QKNormConfig | None:
    kinds = {part: given.get(f"{name}_{part}") for part in "qk"}
    eps = given.get(f"{name}_eps")
    if eps is None:
        for part, kind in kinds.items():
            if kind is not None:
                raise ValueError(f"{name}_eps is None; accepted with {name}_{part}: a number above 0")
        return None
    q_norm, k_norm = (None if kind is None else member(NormType, kind) for kind in kinds.values())
    return QKNormConfig(q_norm, k_norm, eps)


def _number_of(name: str, given: dict[str, Any]) -> torch.Tensor | float | None:
    tensor, number = given.get(name), given.get(f"{name}_number")
    if tensor is not None and number is not None:
        raise ValueError(f"{name} and {name}_number are given; accepted: one of them")
    return number if tensor is None else tensor


def _groups_of(ranks: list[int] | None, ranks_per_group: int) -> tuple[tuple[int, ...], ...] | None:
    if ranks is None:
        if ranks_per_group != 0:
            raise ValueError(f"ranks_per_group is {ranks_per_group} without replica_ranks; accepted: 0")
        return None
    if ranks_per_group < 1 or len(ranks) % ranks_per_group:
        raise ValueError(
            f"ranks_per_group is {ranks_per_group} of {len(ranks)} replica_ranks; accepted: a divisor of their number"
        )
    return tuple(tuple(ranks[first : first + ranks_per_group]) for first in range(0, len(ranks), ranks_per_group))


def _schema(entry: Entry) -> str:
    """The schema, from the record's fields in their order."""
    parts = []
    for number, field in enumerate(dataclasses.fields(entry.record)):
        name, kind = field.name, entry.types[field.name]
        if name in entry.written:
            parts.append(f"Tensor(a{number}!)? {name}=None")
        elif isinstance(kind, type) and issubclass(kind, enum.Enum):
            parts.append(f'str {name}="{field.default.name}"')
        elif kind == _NORMS:
            parts += [f"str? {name}_q=None", f"str? {name}_k=None", f"float? {name}_eps=None"]
        elif kind == _NUMBER:
            parts += [f"Tensor? {name}=None", f"float? {name}_number=None"]
        elif kind == _GROUPS:
            parts += ["int[]? replica_ranks=None", "int ranks_per_group=0"]
        elif kind == _CHOICE:
            parts.append(f"int[]? {name}=None")
        else:
            default = "" if name in entry.required else f"={field.default}"
            parts.append(f"{_PLAIN[kind]} {name}{default}")
    return f'({", ".join(parts)}, *, str target="trn3", int lnc=2) -> Tensor'
