"""Numba's compiler as this package uses it: what it makes is kept on disk, also by processes in a sandbox.

Left alone, numba keeps code in a folder named after the path of its source, which under Bazel is another one in every
action, and notices when that file changes, not when another file does whose constants went into the code. Here it is a
folder named after the contents of all sources of this package.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import caching

Function = TypeVar("Function", bound=Callable[..., Any])


class Locator(caching.UserProvidedCacheLocator):  # type: ignore[misc]
    """Names the folder of this package's code."""

    @classmethod
    def get_suitable_cache_subpath(cls, _: str) -> str:
        """Whatever the source's path is."""
        return _sources()


@functools.cache
def _sources() -> str:
    """A digest of this package's files, tests aside."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        if not source.name.endswith("_test.py"):
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def _folder() -> str:
    """A folder that only this user can write to, since code from it is run; a new one where the usual one is not so."""
    usual = Path(tempfile.gettempdir()) / f"devicetime_{os.getuid()}"
    try:
        usual.mkdir(mode=stat.S_IRWXU, exist_ok=True)
        found = usual.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == stat.S_IRWXU:
            tempfile.TemporaryFile(dir=usual).close()
            return str(usual)
    except OSError:
        pass
    return tempfile.mkdtemp(prefix="devicetime_", dir=os.environ.get("TEST_TMPDIR"))


def compiled(function: Function) -> Function:
    """The function in machine code, without Python's objects."""
    made: Any = numba.njit(error_model="numpy")(function)
    settings: Any = numba.config
    before = settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES
    settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES = _folder(), f"{__name__}.{Locator.__name__}"
    try:
        made.enable_caching()
    finally:
        settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES = before
    return made  # type: ignore[no-any-return]
