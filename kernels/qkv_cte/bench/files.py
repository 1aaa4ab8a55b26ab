"""Files that a command reads and writes for its caller."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def caller_path(text: str) -> Path:
    """Resolves a relative path against the folder where `bazel run` was typed, else the current one."""
    return Path(os.environ.get("BUILD_WORKING_DIRECTORY", "")).joinpath(text)


def require_writable(path: Path) -> None:
    """Refuses a path that no file can be written to.

    Raises:
        ValueError: it is a folder, device or pipe, or its folder does not exist or is closed to this user.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; accepted: the name of a file")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a device or pipe, which a whole file would replace; accepted: the name of a file")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.absolute().parent}")
    if not os.access(path.absolute().parent, os.W_OK):
        raise ValueError(f"{path}: the folder {path.absolute().parent} is not writable")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields the name of a file to write, which becomes `path` at the end: whoever sees `path` sees it whole."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
