"""Runs the examples of the README's table of errors."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim import Options, errors, run
from nkisim.launch import Kernel

README = Path(__file__).with_name("README.md")
_ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| ([^|]*) \| `([^`]+)` \| (.+) \|$", re.MULTILINE)
RANK = """
import sys
import numpy as np
from nkisim import run_in_group
from readme_test import kernel_of
run_in_group(kernel_of(sys.argv[1]), np.ones((4, 8), np.float32))
"""


class Example(NamedTuple):
    """A row: the class, when it is raised, where the kernel runs, its line, and the message."""

    name: str
    raised: str
    on: str
    line: str
    message: str


EXAMPLES = [Example(*(part.strip() for part in row)) for row in _ROW.findall(README.read_text())]


def kernel_of(line: str) -> Any:
    space: dict[str, Any] = {"nisa": nisa, "nl": nl}
    exec(f"def kernel(x):\n    t = nl.ndarray((4, 8), nl.float32)\n    nisa.dma_copy(t, x)\n    {line}", space)
    return space["kernel"]


def says(message: str, shown: str) -> bool:
    """Whether a message is the one shown, in which three dots stand for a kernel's line."""
    pattern = ".+".join(re.escape(part) for part in shown.split("..."))
    return re.fullmatch(pattern, message.splitlines()[0]) is not None


def test_every_class_of_error_has_an_example() -> None:
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, (errors.NkiValidationError, errors.ValueRangeWarning))
    }
    assert sorted(e.name for e in EXAMPLES) == sorted(classes - {"NkiValidationError"})


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.on != "2 processes"], ids=lambda e: e.name)
def test_an_example_fails_as_the_table_says(example: Example) -> None:
    kernel = Kernel(kernel_of(example.line), 2 if example.on == "2 cores" else 1)
    options = Options(target=example.on or "trn3") if example.on != "2 cores" else Options()
    warnings.simplefilter("error", errors.ValueRangeWarning)  # pytest puts the filters back
    with pytest.raises(getattr(errors, example.name)) as caught:
        run(kernel, np.ones((4, 8), np.float32), options=options)
    assert type(caught.value).__name__ == example.name
    assert says(str(caught.value), example.message), str(caught.value)


def test_the_example_of_two_processes() -> None:
    (example,) = [e for e in EXAMPLES if e.on == "2 processes"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    path = os.pathsep.join([str(README.parent), *sys.path])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, example.line],
            env=os.environ | meeting | {"RANK": str(rank), "PYTHONPATH": path},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [rank.communicate(timeout=60)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1]
    lines = [line.partition("Error: ") for line in told[0].splitlines()]
    assert any(f"{name}Error".endswith(example.name) and says(text, example.message) for name, _, text in lines), told[
        0
    ]
