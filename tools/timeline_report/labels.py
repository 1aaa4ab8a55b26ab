"""What traces and reports call an event: its instruction, the kernel's line, its operands."""

from __future__ import annotations

from pathlib import Path
from types import CodeType

from nkisim.record import Record
from nkisim.source import Site
from nkisim.storage import Region

_WORKSPACE = f"{Path(__file__).absolute().parents[2]}/"
"""Of this file as it was imported: under Bazel the runfiles, where kernels lie, too."""


class Labels:
    """Labels of records. Lines are looked up once per call site."""

    def __init__(self) -> None:
        self._lines: dict[tuple[CodeType, int], str] = {}

    def instruction(self, record: Record) -> str:
        """The call, with the kernel's own name for it where it gave one: "nc_matmul", "dma_copy (load weights)"."""
        return f"{record.op} ({record.name})" if record.name else record.op

    def line(self, record: Record) -> str:
        """The kernel's line, "kernels/qkv_cte/device/matmul.py:35"; files outside the workspace by their full path."""
        key = record.code, record.instruction
        line = self._lines.get(key)
        if line is None:
            name = record.code.co_filename.removeprefix(_WORKSPACE)
            line = self._lines[key] = f"{name}:{Site(*key).line}"
        return line

    def operands(self, record: Record) -> str:
        """Results, then what they are made from: "scores float32[128,16] ← keys bfloat16[128,128]"."""
        written = ", ".join(map(_operand, record.writes))
        read = ", ".join(map(_operand, record.reads))
        return f"{written} ← {read}" if read else written


def _operand(region: Region) -> str:
    shape = ",".join(map(str, region.shape))
    return f"{region.allocation.name} {region.dtype}[{shape}]"
