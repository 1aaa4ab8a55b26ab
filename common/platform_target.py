"""Names the simulator's target, for as long as a launch takes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

TARGET_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"

_LOCK = threading.RLock()
"""The variable is the process's: threads take turns, or one would run on another's target."""


@contextmanager
def platform_target(target: str) -> Iterator[None]:
    """Names the target while the context lasts; other threads that want to name one wait."""
    with _LOCK:
        before = os.environ.get(TARGET_VARIABLE)
        os.environ[TARGET_VARIABLE] = target
        try:
            yield
        finally:
            if before is None:
                del os.environ[TARGET_VARIABLE]
            else:
                os.environ[TARGET_VARIABLE] = before
