"""Tiles of comparisons, which `assert` may test in a simulation."""

from __future__ import annotations

import ast
import functools
import linecache
import opcode
import sys
from types import FrameType

from nkisim import memory
from nkisim.source import kernel_frame
from nkisim.tensor import NkiTensor

_RAISES = opcode.opmap["LOAD_ASSERTION_ERROR"]


class Flags(NkiTensor):
    """The tile that a comparison made.

    `assert flags` holds where every element is nonzero, and always in a timing-only run. Any other use as a truth
    value is an error, as for every tensor: what a tile holds is not known when a kernel is traced.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        frame = kernel_frame(sys._getframe(1))
        if frame is None or not _asserts(frame):
            return super().__bool__()
        return self.storage.raw is None or bool(memory.read("assert", "condition", self).all())


def testable(compared: NkiTensor) -> Flags:
    """The same tile as `Flags`."""
    flags: Flags = object.__new__(Flags)
    flags.shape, flags.strides, flags.offset = compared.shape, compared.strides, compared.offset
    flags.dtype, flags.buffer, flags.storage = compared.dtype, compared.buffer, compared.storage
    return flags


def _asserts(frame: FrameType) -> bool:
    """Whether the frame runs the condition of an `assert`; the source is asked where pytest has rewritten the code."""
    following = frame.f_lasti + 2
    if frame.f_code.co_code[following : following + 1] == bytes([_RAISES]):
        return True
    return any(frame.f_lineno in lines for lines in _assert_lines(frame.f_code.co_filename))


@functools.lru_cache(maxsize=64)
def _assert_lines(filename: str) -> tuple[range, ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:
        return ()
    asserts = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    return tuple(range(node.lineno, (node.end_lineno or node.lineno) + 1) for node in asserts)
