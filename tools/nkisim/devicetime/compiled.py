"""Numba's compiler as this package uses it: results are kept on disk where a folder can be written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def _keep_somewhere_writable() -> None:
    """Numba keeps compiled code beside the source; under Bazel and in sandboxes that cannot be written."""
    folder = os.environ.get("TEST_TMPDIR") or os.path.join(tempfile.gettempdir(), f"devicetime_numba_{os.getuid()}")
    os.environ.setdefault("NUMBA_CACHE_DIR", folder)


_keep_somewhere_writable()

import numba  # noqa: E402 - reads its folder when imported


def compiled(function: Function) -> Function:
    """The function in machine code, without Python's objects."""
    made: Any = numba.njit(cache=True, error_model="numpy")(function)
    return made  # type: ignore[no-any-return]
