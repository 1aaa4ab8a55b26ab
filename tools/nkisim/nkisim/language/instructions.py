"""Temporary: the instructions by name, until every module of `nkisim.isa` exists."""

from typing import Any


def __getattr__(name: str) -> Any:
    import nki.isa

    return getattr(nki.isa, name)
