"""Files that a command reads and writes for its caller."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

STDOUT = 1
"""Its descriptor."""


def caller_path(text: str) -> Path:
    """Resolves a relative path against the folder where `bazel run` was typed, else the current one."""
    return Path(os.environ.get("BUILD_WORKING_DIRECTORY", "")).joinpath(text)


def read_json(path: Path, at_most_bytes: int, accepted: str) -> Any:
    """What a JSON file holds.

    Args:
        path: the file.
        at_most_bytes: what it may have.
        accepted: what a file has to be, for the error.

    Raises:
        ValueError: it cannot be read, is a device, too large, or no JSON; names the file.
    """
    try:
        found = path.stat()
        if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
            raise ValueError(f"{path} is a device; accepted: {accepted}")
        if found.st_size > at_most_bytes:
            raise ValueError(f"{path} is larger than {at_most_bytes:,} bytes; accepted: {accepted}")
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is not a JSON file; accepted: {accepted}") from None


def _refuse(constant: str) -> NoReturn:
    """NaN and infinities, which JSON does not have."""
    raise ValueError(constant)


def require_writable(path: Path) -> None:
    """Refuses a path that no file can be written to, by beginning one beside it.

    Raises:
        ValueError: it is a folder, device or pipe, or where stdout goes; or its folder does not exist or takes no
            file from this user.
    """
    try:
        target = path.resolve()
        if target.is_dir():
            raise ValueError(f"{path} is a folder; accepted: the name of a file")
        if target.exists() and not target.is_file():
            raise ValueError(f"{path} is a device or pipe; accepted: the name of a regular file")
        if target.exists() and os.path.samestat(target.stat(), os.fstat(STDOUT)):
            raise ValueError(f"{path} is where stdout goes; accepted: the name of another file")
        if not target.parent.is_dir():
            raise ValueError(f"{path}: there is no folder {target.parent}")
        partial = _partial(target)
        partial.touch()
        partial.unlink()
    except (OSError, RuntimeError) as error:
        raise _cannot_be_written(path, error) from None


def require_apart(written: Path, read: Path) -> None:
    """Refuses to write over the file that is read, whatever links lead there.

    Raises:
        ValueError: both are one file.
    """
    # Path.exists() raises for a name that is too long.
    if os.path.exists(written) and os.path.exists(read) and written.samefile(read):
        raise ValueError(f"{written} is the file to read, {read}; accepted: another file to write")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields the name of a file to write, which becomes `path` at the end: whoever sees `path` sees it whole.

    A link stays, and what it leads to becomes the file. The file's mode is that of any new file, whoever wrote it.

    Raises:
        ValueError: the file cannot be written.
    """
    target = path.resolve()
    partial = _partial(target)
    try:
        partial.touch()
        mode = partial.stat().st_mode
        yield partial
        partial.chmod(mode)
        partial.replace(target)
    except OSError as error:
        raise _cannot_be_written(path, error) from None
    finally:
        partial.unlink(missing_ok=True)


def _partial(target: Path) -> Path:
    """A name that is short, so that it is not too long where the target's is not."""
    return target.with_name(f".{os.getpid()}.partial")


def _cannot_be_written(path: Path, error: Exception) -> ValueError:
    # resolve() reports a circle of links as a RuntimeError.
    reason = error.strerror if isinstance(error, OSError) else error
    return ValueError(f"{path} cannot be written: {reason}")
