"""Functions of `nki.language` that instructions take as operators.

Called directly they would make tiles; that is not simulated yet.
"""

from __future__ import annotations

from typing import Any

from nkisim.errors import NotSimulatedError


def _not_yet(name: str) -> NotSimulatedError:
    return NotSimulatedError(f"calling nl.{name} is not simulated yet; it is accepted as an operator")


def add(x: Any, y: Any, dtype: Any = None) -> Any:
    """Sum."""
    raise _not_yet("add")


def subtract(x: Any, y: Any, dtype: Any = None) -> Any:
    """Difference."""
    raise _not_yet("subtract")


def multiply(x: Any, y: Any, dtype: Any = None) -> Any:
    """Product."""
    raise _not_yet("multiply")


def maximum(x: Any, y: Any, dtype: Any = None) -> Any:
    """The larger one."""
    raise _not_yet("maximum")


def copy(x: Any, dtype: Any = None) -> Any:
    """The value itself."""
    raise _not_yet("copy")
