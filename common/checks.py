"""Argument checks whose messages name the argument, the value given and what is accepted."""

from __future__ import annotations

import operator
from typing import Any


def require_type(name: str, value: Any, accepted: type) -> None:
    """Refuse a `value` that is not of type `accepted`.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(value, accepted):
        raise TypeError(f"{name} must be a {accepted.__name__}, got {value!r} of type {type(value).__name__}")


def require_int(name: str, value: Any, at_least: int) -> int:
    """Return `value` as an int.

    Raises:
        TypeError: `value` is no integer (a bool is none either).
        ValueError: `value` is below `at_least`.
    """
    number = _as_int(name, value)
    if number < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {number}")
    return number


def require_cores(name: str, value: Any) -> int:
    """Return `value`, the cores that share a call, 1 or 2, as an int.

    Raises:
        TypeError: `value` is no integer.
        ValueError: it is another.
    """
    number = _as_int(name, value)
    if number not in (1, 2):
        raise ValueError(f"{name} is {number}; accepted: 1 or 2")
    return number


def _as_int(name: str, value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}") from None
