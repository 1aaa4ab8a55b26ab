"""Where in the kernel a call was made: the innermost frame outside the simulator and the `nki` package."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple

_PACKAGES = Path(__file__).absolute().parents[1]
OWN = (f"{_PACKAGES}/nkisim/", f"{_PACKAGES}/nki/")
"""Where the simulator's own files lie, as code objects name them: Bazel's links are not followed."""
_TEST = "_test.py"
"""Ends the names of the tests that lie among them, whose kernels are kernels like any other."""

kernel_files: set[str] = set()
"""Files found to be no part of the simulator: what most instructions are called from, and quick to look up."""


class Site(NamedTuple):
    """A place in a kernel: its code and the offset of the instruction; the line is looked up when asked for."""

    code: CodeType
    instruction: int

    @property
    def line(self) -> int:
        """The line number, or the function's first where the byte code names none."""
        positions = list(self.code.co_positions())
        line = positions[self.instruction // 2][0] if self.instruction >= 0 else None
        return line or self.code.co_firstlineno

    def __str__(self) -> str:
        name, line = self.code.co_filename, self.line
        text = linecache.getline(name, line).strip()
        return f"{name}:{line} in {self.code.co_name}" + (f": {text}" if text else "")


def kernel_frame(frame: FrameType | None) -> FrameType | None:
    """The first frame from `frame` outwards that is not the simulator's own."""
    while frame is not None and _is_own(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None:
        kernel_files.add(frame.f_code.co_filename)
    return frame


def _is_own(path: str) -> bool:
    return path.startswith(OWN) and not path.endswith(_TEST)


def current() -> Site | None:
    """The kernel's line that is running now, if a kernel runs."""
    frame = kernel_frame(sys._getframe(1))
    return Site(frame.f_code, frame.f_lasti) if frame else None


def operands(trace: TracebackType | None) -> list[tuple[str, Any]]:
    """Tensors (whatever has a `history`) among the arguments of the call that a kernel made and that failed."""
    called = None
    while trace is not None:
        frame = trace.tb_frame
        called = (called or frame) if _is_own(frame.f_code.co_filename) else None
        trace = trace.tb_next
    if called is None:
        return []
    code = called.f_code
    found: list[tuple[str, Any]] = []
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        value = called.f_locals.get(name)
        many = [(f"{name}[{i}]", v) for i, v in enumerate(value)] if isinstance(value, (list, tuple)) else []
        found += [(label, v) for label, v in (many or [(name, value)]) if hasattr(type(v), "history")]
    return found
