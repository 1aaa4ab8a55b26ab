"""Pure moves take along what nothing has written; whoever computes with it, or returns it, is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim.errors import OutputNotWrittenError, UninitializedReadError
from nkisim.launch import run
from nkisim.options import Options

X = np.random.default_rng(7).standard_normal((32, 32), np.float32)
EYE = np.eye(32, dtype=np.float32)
ROW, COLUMNS = 3, slice(5, 9)
"""The gap in the tile that is moved."""


def launch(kernel: Callable[..., Any], *args: Any) -> Any:
    return run(kernel, *args, options=Options(target="trn3")).outputs


def _index() -> Any:
    index = nl.ndarray((32, 1), nl.int32)
    nisa.iota(index, [[1, 1]], 0, 1)
    return index


def _gather(dst: Any, src: Any) -> None:
    table = nl.ndarray((32, 32), nl.float32, nl.private_hbm)
    nisa.dma_copy(table, src)
    nisa.dma_copy(dst, table.vector_select(0, _index()))


def _scatter(dst: Any, src: Any) -> None:
    table = nl.ndarray((32, 32), nl.float32, nl.private_hbm)
    nisa.dma_copy(table, dst)
    nisa.dma_copy(table.vector_select(0, _index()), src)
    nisa.dma_copy(dst, table)


def _by_matmul(dst: Any, src: Any, identity: Any) -> None:
    nisa.nc_matmul(dst, src, identity, is_transpose=True)


STRAIGHT: dict[str, Callable[..., Any]] = {
    "tensor_copy": lambda dst, src: nisa.tensor_copy(dst, src),
    "dma_copy": lambda dst, src: nisa.dma_copy(dst, src),
    "gathering dma_copy": _gather,
    "scattering dma_copy": _scatter,
    "nc_stream_shuffle": lambda dst, src: nisa.nc_stream_shuffle(dst, src, range(32)),
}
TURNING: dict[str, Callable[..., Any]] = {
    "nc_transpose by vector": lambda dst, src: nisa.nc_transpose(dst, src, nisa.engine.vector),
    "nc_transpose by tensor": lambda dst, src: nisa.nc_transpose(dst, src, nisa.engine.tensor),
    "dma_transpose": lambda dst, src: nisa.dma_transpose(dst, src),
    "nc_matmul": _by_matmul,
}
IN_PSUM = ("nc_transpose by tensor", "nc_matmul")


def _with_gap(x: Any) -> Any:
    tile = nl.ndarray((32, 32), x.dtype, name="tile")
    for rows, columns in (
        (slice(0, ROW), slice(0, 32)),
        (slice(ROW, ROW + 1), slice(0, COLUMNS.start)),
        (slice(ROW, ROW + 1), slice(COLUMNS.stop, 32)),
        (slice(ROW + 1, 32), slice(0, 32)),
    ):
        nisa.dma_copy(tile[rows, columns], x[rows, columns])
    return tile


def _kernel(x: Any, eye: Any, name: str, finish: Callable[[Any, Any, bool], None]) -> Any:
    """Moves a tile with a gap over one without and returns the result, after `finish(moved, x, turned)`."""
    moved = nl.ndarray((32, 32), x.dtype, nl.psum if name in IN_PSUM else nl.sbuf)
    nisa.memset(moved, 1.0)
    identity = nl.ndarray((32, 32), x.dtype)
    nisa.dma_copy(identity, eye)
    source = _with_gap(x)
    if name in STRAIGHT:
        STRAIGHT[name](moved, source)
    else:
        TURNING[name](moved, source, *([identity] if name == "nc_matmul" else []))
    kept = nl.ndarray((32, 32), x.dtype)
    nisa.tensor_copy(kept, moved)
    finish(kept, x, name in TURNING)
    out = nl.ndarray((32, 32), x.dtype, nl.shared_hbm, name="out")
    nisa.dma_copy(out, kept)
    return out


def _fill(kept: Any, x: Any, turned: bool) -> None:
    if turned:
        nisa.dma_copy(kept[COLUMNS, ROW : ROW + 1], x[0 : COLUMNS.stop - COLUMNS.start, 0:1])
    else:
        nisa.dma_copy(kept[ROW : ROW + 1, COLUMNS], x[0:1, 0 : COLUMNS.stop - COLUMNS.start])


@pytest.mark.parametrize("name", [*STRAIGHT, *TURNING])
def test_what_is_written_arrives_and_the_gap_can_be_filled(name: str) -> None:
    turned = name in TURNING
    expected = (X.T if turned else X).copy()
    if turned:
        expected[COLUMNS, ROW] = X[0:4, 0]
    else:
        expected[ROW, COLUMNS] = X[0, 0:4]
    np.testing.assert_array_equal(launch(_kernel, X, EYE, name, _fill), expected)


@pytest.mark.parametrize("name", [*STRAIGHT, *TURNING])
def test_computing_with_the_gap_or_returning_it_is_an_error(name: str) -> None:
    first = r"element \[5, 3\]" if name in TURNING else r"element \[3, 5\]"
    with pytest.raises(UninitializedReadError, match=first):
        launch(_kernel, X, EYE, name, lambda kept, x, turned: nl.add(kept, 1.0))
    with pytest.raises(OutputNotWrittenError, match=rf"output out \[32, 32\]: {first} was never written"):
        launch(_kernel, X, EYE, name, lambda kept, x, turned: None)


@pytest.mark.parametrize("name", [*STRAIGHT, *TURNING])
def test_a_tile_of_which_nothing_was_written_is_not_moved(name: str) -> None:
    def kernel(x: Any, eye: Any) -> None:
        dst = nl.ndarray((32, 32), x.dtype, nl.psum if name in IN_PSUM else nl.sbuf)
        nisa.memset(dst, 1.0)
        identity = nl.ndarray((32, 32), x.dtype)
        nisa.dma_copy(identity, eye)
        move = STRAIGHT.get(name) or TURNING[name]
        move(dst, nl.ndarray((32, 32), x.dtype, name="empty"), *([identity] if name == "nc_matmul" else []))

    with pytest.raises(UninitializedReadError, match=r"element \[0, 0\] of this view of empty \[32, 32\]"):
        launch(kernel, X, EYE)


CASTING = {name: STRAIGHT[name] for name in ("tensor_copy", "dma_copy", "gathering dma_copy")}


@pytest.mark.parametrize("name", CASTING)
@pytest.mark.parametrize(("dtype", "storage"), [("bfloat16", ml_dtypes.bfloat16), ("int8", np.int8)])
def test_a_cast_takes_the_gap_along(name: str, dtype: str, storage: Any) -> None:
    """Whether the result is wider or narrower than what it was cast from."""

    def kernel(x: Any, finish: Callable[[Any], None]) -> Any:
        narrow, wide = nl.ndarray((32, 32), getattr(nl, dtype)), nl.ndarray((32, 32), x.dtype)
        CASTING[name](narrow, _with_gap(x))
        CASTING[name](wide, narrow)
        finish(wide)
        out = nl.ndarray((32, 32), x.dtype, nl.shared_hbm, name="out")
        nisa.dma_copy(out, wide)
        return out

    numbers = np.round(X * 8)
    expected = numbers.astype(storage).astype(np.float32)
    expected[ROW, COLUMNS] = 1.0
    filled = launch(kernel, numbers, lambda wide: nisa.dma_copy(wide[ROW : ROW + 1, COLUMNS], _ones()))
    np.testing.assert_array_equal(filled, expected)
    with pytest.raises(UninitializedReadError, match=r"element \[3, 5\]"):
        launch(kernel, numbers, lambda wide: nl.add(wide, 1.0))
    with pytest.raises(OutputNotWrittenError, match=r"output out \[32, 32\]: element \[3, 5\] was never written"):
        launch(kernel, numbers, lambda wide: None)


def _ones() -> Any:
    ones = nl.ndarray((1, 4), nl.float32)
    nisa.memset(ones, 1.0)
    return ones


@pytest.mark.parametrize("name", CASTING)
def test_a_tile_of_which_nothing_was_written_is_not_cast(name: str) -> None:
    def kernel(x: Any) -> None:
        CASTING[name](nl.ndarray((32, 32), nl.bfloat16), nl.ndarray((32, 32), x.dtype, name="empty"))

    with pytest.raises(UninitializedReadError, match=r"element \[0, 0\] of this view of empty \[32, 32\]"):
        launch(kernel, X)


def test_an_argument_is_not_left_in_part_unwritten() -> None:
    def kernel(x: Any, state: Any, rows: int) -> None:
        nisa.dma_copy(state[:rows], _with_gap(x)[:rows])

    state = np.zeros_like(X)
    launch(kernel, X, state, ROW)
    np.testing.assert_array_equal(state[:ROW], X[:ROW])
    before = state.copy()
    with pytest.raises(OutputNotWrittenError, match=r"argument state \[32, 32\]: element \[3, 5\] was never written"):
        launch(kernel, X, state, ROW + 1)
    np.testing.assert_array_equal(state, before)


def test_of_equal_indices_the_last_row_decides_what_is_written() -> None:
    def kernel(x: Any, index: Any) -> Any:
        table = nl.ndarray((32, 32), x.dtype, nl.shared_hbm, name="table")
        nisa.dma_copy(table, x)
        rows = nl.ndarray((32, 1), nl.int32)
        nisa.dma_copy(rows, index)
        nisa.dma_copy(table.vector_select(0, rows), _with_gap(x))
        return table

    index = np.arange(32, dtype=np.int32)[:, None]
    index[10] = ROW
    index[ROW] = ROW
    expected = X.copy()
    expected[ROW] = X[10]
    np.testing.assert_array_equal(launch(kernel, X, index), expected)
    index[10], index[1] = 10, ROW
    with pytest.raises(OutputNotWrittenError, match=r"table \[32, 32\]: element \[3, 5\]"):
        launch(kernel, X, index)


def test_a_row_left_out_keeps_what_it_was() -> None:
    def kernel(x: Any, index: Any) -> Any:
        table, dst = nl.ndarray((32, 32), x.dtype, nl.private_hbm), nl.ndarray((32, 32), x.dtype)
        nisa.dma_copy(table, _with_gap(x))
        nisa.memset(dst, 1.0)
        rows = nl.ndarray((32, 1), nl.int32)
        nisa.dma_copy(rows, index)
        nisa.dma_copy(dst, table.vector_select(0, rows), oob_mode=nisa.oob_mode.skip)
        out = nl.ndarray((32, 32), x.dtype, nl.shared_hbm)
        nisa.dma_copy(out, dst)
        return out

    index = np.arange(32, dtype=np.int32)[:, None]
    index[ROW] = 99
    expected = X.copy()
    expected[ROW] = 1.0
    np.testing.assert_array_equal(launch(kernel, X, index), expected)
    index[ROW] = ROW
    with pytest.raises(OutputNotWrittenError, match=r"element \[3, 5\]"):
        launch(kernel, X, index)


def test_wider_and_narrower_views() -> None:
    def kernel(x: Any, columns: int) -> Any:
        dst = nl.ndarray((32, 32), x.dtype)
        nisa.dma_copy(dst.view(nl.uint16), _with_gap(x).view(nl.uint16))
        out = nl.ndarray((32, columns), x.dtype, nl.shared_hbm)
        nisa.dma_copy(out, dst[:, :columns])
        return out

    np.testing.assert_array_equal(launch(kernel, X, 5), X[:, :5])
    with pytest.raises(OutputNotWrittenError, match=r"element \[3, 5\]"):
        launch(kernel, X, 6)
