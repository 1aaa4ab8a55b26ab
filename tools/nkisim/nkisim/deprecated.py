"""Names that the documentation keeps and deprecates."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

from nkisim.enums import engine

_ENGINES = {f"{member.name}_engine": member for member in (
    engine.tensor, engine.vector, engine.scalar, engine.gpsimd, engine.unknown
)}  # fmt: skip


def warn(name: str, instead: str) -> None:
    """Says to whoever wrote the calling line that a name is deprecated."""
    warnings.warn(f"{name} is deprecated; use {instead}", DeprecationWarning, stacklevel=3)


def engine_constant(name: str) -> engine:
    """`nki.isa.tensor_engine` and its siblings, older names of the members of `nki.isa.engine`.

    Raises:
        AttributeError: it is none of them.
    """
    if name not in _ENGINES:
        raise AttributeError(f"module 'nki.isa' has no attribute {name!r}")
    warn(f"nki.isa.{name}", f"nki.isa.engine.{_ENGINES[name].name}")
    return _ENGINES[name]


def without_dtype(instruction: Callable[..., Any]) -> Callable[..., Any]:
    """An instruction that still takes `dtype`, as older kernels pass it, but does not document it."""
    signature = inspect.signature(instruction)
    documented = [p for p in signature.parameters.values() if p.name != "dtype"]
    instruction.__signature__ = signature.replace(parameters=documented)  # type: ignore[attr-defined]
    return instruction
