"""Tests for what helps to find a fault: printing, breakpoints, and errors that explain an operand's view."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nki
import nki.isa
import nki.language
from nkisim import Options, run
from nkisim.errors import ArgumentError, NkiValidationError, ShapeError, WrongBufferError

nisa: Any = nki.isa  # kernels here break its types on purpose
nl: Any = nki.language


def failure(kernel: Callable[..., Any], *args: Any) -> NkiValidationError:
    with pytest.raises(NkiValidationError) as caught:
        run(kernel, *args)
    return caught.value


def test_tensors_print_name_shape_type_place_and_values() -> None:
    def kernel(x):
        tile = nl.ndarray((2, 3), nl.float32, buffer=nl.sbuf, name="acc", address=(32, 64))
        nisa.dma_copy(tile, x)
        printed.append(repr(tile))
        printed.append(repr(x.select(0, nisa.register_alloc(1))))
        return x

    printed: list[str] = []
    run(kernel, np.array([[1, 2, 3], [4, 5, 6.5]], np.float32))
    assert printed[0] == "<acc: float32[2, 3] in sbuf at (32, 64)>\n[[1.  2.  3. ]\n [4.  5.  6.5]]"
    assert printed[1] == "<x: float32[3] in shared_hbm, offset chosen by <register: 1>>"


def test_no_name_is_a_name_made_up() -> None:
    def kernel(x, name):
        nisa.memset(nl.ndarray((2, 3), nl.float32, name=name), 1.0)

    for name in (None, "", "acc"):
        run(kernel, np.ones((1, 2), np.float32), name)
    with pytest.raises(ArgumentError, match=r"nl\.ndarray: name 3; accepted: a string or None"):
        run(kernel, np.ones((1, 2), np.float32), 3)


def test_device_print(capsys: pytest.CaptureFixture[str]) -> None:
    def kernel(x):
        tile = nl.ndarray((1, 2), nl.float32, buffer=nl.sbuf, name="tile")
        nisa.dma_copy(tile, x)
        nl.device_print("after load", tile)
        return x

    run(kernel, np.array([[1, 2]], np.float32))
    assert capsys.readouterr().out == "after load <tile: float32[1, 2] in sbuf>\n[[1. 2.]]\n"
    run(kernel, np.array([[1, 2]], np.float32), options=Options(numerics=False))
    assert capsys.readouterr().out == "after load <tile: float32[1, 2] in sbuf>\n"


def test_device_print_names_the_core(capsys: pytest.CaptureFixture[str]) -> None:
    def kernel(x):
        tile = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf, name="tile")
        nisa.memset(tile, nl.program_id(0) + 5)
        nl.device_print("id", tile)
        return x

    run(nki.jit(kernel)[2], np.zeros((1, 1), np.int32))
    assert sorted(line for line in capsys.readouterr().out.splitlines() if line.startswith("core")) == [
        "core 0: id <tile: int32[1, 1] in sbuf>",
        "core 1: id <tile: int32[1, 1] in sbuf>",
    ]


def test_device_print_faults() -> None:
    def kernel(x, prefix, buffer):
        tile = nl.ndarray((1, 2), nl.float32, buffer=buffer)
        nl.device_print(prefix, tile)
        return x

    x = np.zeros((1, 2), np.float32)
    run(kernel, x, "tile", nl.sbuf)
    assert isinstance(failure(kernel, x, 3, nl.sbuf), ArgumentError)
    found = failure(kernel, x, "tile", nl.psum)
    assert isinstance(found, WrongBufferError)
    assert "lies in psum; accepted: sbuf or private_hbm" in str(found)


def test_breakpoint_stops_in_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(x):
        tile = nl.ndarray((1, 2), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(tile, x)
        breakpoint()
        return x

    seen = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: seen.append(sys._getframe(1).f_locals["tile"].array().tolist()))
    run(kernel, np.array([[3, 4]], np.float32))
    assert seen == [[[3.0, 4.0]]]


def test_errors_explain_their_operands_views() -> None:
    def kernel(x):
        tile = nl.ndarray((4, 6, 8), nl.float32, buffer=nl.sbuf, name="tile")
        nisa.dma_copy(tile[:, 0:4, nl.ds(2, 5)].permute((0, 2, 1)), x[1, ...])
        return x

    found = failure(kernel, np.zeros((3, 4, 8), np.float32))
    assert isinstance(found, ShapeError)
    explained = found.explain().splitlines()
    assert explained[:2] == str(found).splitlines()
    assert explained[2].startswith("dst: tile: float32[4, 6, 8] in sbuf created at ")
    assert explained[2].endswith("-> [:, 0:4, nl.ds(2, 5)] [4, 4, 5] -> permute(0, 2, 1) [4, 5, 4]")
    assert explained[3] == "src: x: float32[3, 4, 8] in shared_hbm -> [1, ...] [4, 8]"


def test_errors_of_views_explain_the_tensor() -> None:
    def kernel(x):
        x.reshape((4, 6)).view(nl.uint8).reshape((5, 5))
        return x

    assert failure(kernel, np.zeros((24,), np.float32)).explain().splitlines()[-1] == (
        "self: x: float32[24] in shared_hbm -> reshape(4, 6) [4, 6] -> view(uint8) uint8[4, 24]"
    )


def test_long_histories_are_told() -> None:
    def kernel(x):
        view = x
        for _ in range(3000):
            view = view[0:4]
        nisa.dma_copy(x, view)
        return x

    assert failure(kernel, np.zeros((5, 2), np.float32)).explain().count("->") == 3000


def test_errors_of_lists_explain_each_tensor() -> None:
    def kernel(x):
        nisa.dma_compute(x, [x, x[0:2]], nl.add)
        return x

    lines = failure(kernel, np.zeros((4, 2), np.float32)).explain().splitlines()
    assert [line.split(":")[0] for line in lines[2:]] == ["dst", "srcs[0]", "srcs[1]"]


def test_errors_name_the_kernels_own_line() -> None:
    def kernel(x):
        nisa.dma_copy(x, x[0:2])  # the culprit
        return x

    assert "# the culprit" in str(failure(kernel, np.zeros((4, 2), np.float32)))
