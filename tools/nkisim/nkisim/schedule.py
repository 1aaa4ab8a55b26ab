"""`kernel.with_schedule`: the order of a kernel's instructions, given by their names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from nkisim import machine
from nkisim.errors import ArgumentError, DependencyError
from nkisim.instruction import NkiInstruction

Edges = Sequence[tuple[str, str | Sequence[str]]]


def keeping(function: Callable[..., Any], edges: Edges) -> Callable[..., Any]:
    """The kernel function, with some of its instructions waiting for others as if by `depends_on`.

    Args:
        edges: pairs of a name and the name, or names, of what it waits for.

    Raises:
        ArgumentError: `edges` is no such list.
    """
    pairs = [_pair(edge) for edge in _listed(edges)]

    @functools.wraps(function)
    def scheduled(*args: Any, **kwargs: Any) -> Any:
        returned = function(*args, **kwargs)
        core = machine.core("with_schedule")
        named: dict[str | None, list[NkiInstruction]] = {}
        for position, record in enumerate(core.stream):
            named.setdefault(record.name, []).append(NkiInstruction((core, position)))
        for consumer, producers in pairs:
            _only(named, consumer).depends_on(*(_only(named, producer) for producer in producers))
        return returned

    return scheduled


def _listed(edges: Any) -> list[Any]:
    if not isinstance(edges, (list, tuple)):
        raise ArgumentError(f"with_schedule: {edges!r}; accepted: a list of pairs of instruction names")
    return list(edges)


def _pair(edge: Any) -> tuple[str, tuple[str, ...]]:
    if isinstance(edge, (list, tuple)) and len(edge) == 2 and isinstance(edge[0], str):
        producers = (edge[1],) if isinstance(edge[1], str) else edge[1]
        if isinstance(producers, (list, tuple)) and all(isinstance(p, str) for p in producers):
            return edge[0], tuple(producers)
    raise ArgumentError(f"with_schedule: {edge!r}; accepted: a pair (name, name) or (name, [name, ...])")


def _only(named: dict[str | None, list[NkiInstruction]], name: str) -> NkiInstruction:
    found = named.get(name, [])
    if len(found) != 1:
        raise DependencyError(
            f"with_schedule: {len(found)} instructions are called {name!r}; accepted: names of one each"
        )
    return found[0]
