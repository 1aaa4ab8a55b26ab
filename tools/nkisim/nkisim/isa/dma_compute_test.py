"""Tests for `dma_compute` against numpy, and each rule with its counterpart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki.isa
import nki.language
from nkisim import run
from nkisim.errors import ArgumentError, OutOfBoundsError, ShapeError, WrongBufferError

nisa: Any = nki.isa  # kernels here break its types on purpose
nl: Any = nki.language

BF16 = np.dtype(ml_dtypes.bfloat16)
ROWS, COLUMNS = 37, 24


def launch(kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return run(kernel, *args, **kwargs).outputs


def sum_kernel(*arrays, dtype="float32", in_sbuf=False, **options):
    out = nl.ndarray(arrays[0].shape, dtype, buffer=nl.shared_hbm)
    dst = nl.ndarray(arrays[0].shape, dtype, buffer=nl.sbuf) if in_sbuf else out
    nisa.dma_compute(dst, list(arrays), nl.add, **options)
    if in_sbuf:
        nisa.dma_copy(out, dst)
    return out


@pytest.mark.parametrize("count", [1, 2, 16])
@pytest.mark.parametrize("in_sbuf", [False, True])
def test_sum_in_fp32_rounded_once(count: int, in_sbuf: bool) -> None:
    rng = np.random.default_rng(count)
    arrays = [rng.standard_normal((ROWS, COLUMNS)).astype(np.float32).astype(BF16) for _ in range(count)]
    total = np.zeros((ROWS, COLUMNS), np.float32)
    for array in arrays:
        total += array.astype(np.float32)
    found = launch(sum_kernel, *arrays, dtype="bfloat16", in_sbuf=in_sbuf, scales=[1.0] * count)
    np.testing.assert_array_equal(found, total.astype(BF16))


def _tile(array, dtype=None):
    tile = nl.ndarray(array.shape, dtype or array.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, array)
    return tile


def scatter_kernel(table, values, index, order=(0, 1), mode=nisa.oob_mode.error, unique=True):
    view = table.vector_select(0, _tile(index))
    sources = [view, _tile(values)]
    nisa.dma_compute(view, [sources[o] for o in order], nl.add, unique_indices=unique, oob_mode=mode)
    return table


def gather_kernel(table, values, index, mode=nisa.oob_mode.error):
    out = nl.ndarray(values.shape, values.dtype, buffer=nl.shared_hbm)
    tile = _tile(values)
    nisa.dma_compute(tile, [table.vector_select(0, _tile(index)), tile], nl.add, oob_mode=mode)
    nisa.dma_copy(out, tile)
    return out


def _inputs(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    values = rng.standard_normal((20, COLUMNS)).astype(np.float32)
    return table, values, rng.permutation(ROWS)[:20].astype(np.int32)[:, None]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_scatter_adds_to_rows(order: tuple[int, int]) -> None:
    table, values, index = _inputs(1)
    expected = table.copy()
    expected[index[:, 0]] += values
    launch(scatter_kernel, table, values, index, order)
    np.testing.assert_array_equal(table, expected)


def test_gather_adds_rows() -> None:
    table, values, index = _inputs(2)
    np.testing.assert_array_equal(launch(gather_kernel, table, values, index), values + table[index[:, 0]])


@pytest.mark.parametrize("kernel", [scatter_kernel, gather_kernel])
def test_out_of_bounds_is_named(kernel: Any) -> None:
    table, values, index = _inputs(3)
    index[4] = ROWS
    with pytest.raises(OutOfBoundsError, match=rf"index {ROWS} at position 4 .* {ROWS} rows"):
        launch(kernel, table, values, index)


def test_skipped_rows_stay() -> None:
    table, values, index = _inputs(4)
    index[[4, 7]] = ROWS
    there = index[:, 0] < ROWS
    expected = values.copy()
    expected[there] += table[index[there, 0]]
    np.testing.assert_array_equal(launch(gather_kernel, table, values, index, nisa.oob_mode.skip), expected)
    scattered = table.copy()
    scattered[index[there, 0]] += values[there]
    launch(scatter_kernel, table, values, index, mode=nisa.oob_mode.skip)
    np.testing.assert_array_equal(table, scattered)


def test_equal_indices_are_refused() -> None:
    table, values, index = _inputs(5)
    launch(scatter_kernel, table.copy(), values, index)
    index[3] = index[9]
    with pytest.raises(ArgumentError, match=rf"index {index[9, 0]} occurs 2 times .* accepted: unique indices"):
        launch(scatter_kernel, table, values, index)


def test_unique_indices_must_be_said() -> None:
    table, values, index = _inputs(6)
    with pytest.raises(ArgumentError, match="unique_indices False with an index per row; accepted: True"):
        launch(scatter_kernel, table, values, index, unique=False)


def _three(table, values, index):
    view = table.vector_select(0, _tile(index))
    nisa.dma_compute(view, [view, _tile(values), _tile(values)], nl.add)


def _unrelated(table, values, index):
    nisa.dma_compute(table.vector_select(0, _tile(index)), [_tile(values), _tile(values)], nl.add)


def _other_index(table, values, index):
    nisa.dma_compute(
        table.vector_select(0, _tile(index)), [table.vector_select(0, _tile(index)), _tile(values)], nl.add
    )


def _from_hbm(table, values, index):
    view = table.vector_select(0, _tile(index))
    nisa.dma_compute(view, [view, values], nl.add)


def _into_hbm(table, values, index):
    nisa.dma_compute(values, [table.vector_select(0, _tile(index)), values], nl.add)


def _offset(table, values, index):
    nisa.dma_compute(table[0], [table[nisa.register_alloc(1)]], nl.add)


def _multiply(table, values, index):
    nisa.dma_compute(table, [table, table], nl.multiply)


def _scaled(table, values, index):
    nisa.dma_compute(table, [table, table], nl.add, scales=[1.0, 2.0])


def _sizes(table, values, index):
    nisa.dma_compute(table, [table, values], nl.add)


def _many(table, values, index):
    nisa.dma_compute(table, [table] * 17, nl.add)


def _alone(table, values, index):
    nisa.dma_compute(table, table, nl.add)


def _psum(table, values, index):
    nisa.dma_compute(nl.ndarray((20, COLUMNS), nl.float32, buffer=nl.psum), [values], nl.add)


@pytest.mark.parametrize(
    ("error", "words", "kernel"),
    [
        (ArgumentError, "3 sources with an index per row; accepted: 2", _three),
        (ArgumentError, "no source is the view that dst is", _unrelated),
        (ArgumentError, "no source is the view that dst is", _other_index),
        (WrongBufferError, "values lies in shared_hbm; accepted: sbuf", _from_hbm),
        (WrongBufferError, "accepted: sbuf, with rows of an HBM source", _into_hbm),
        (ArgumentError, r"srcs\[0\] has a dynamic offset", _offset),
        (ArgumentError, r"reduce_op is nl\.multiply; accepted: nl\.add", _multiply),
        (ArgumentError, r"scales \[1.0, 2.0\]; accepted: None or 1.0", _scaled),
        (ShapeError, r"srcs\[1\] \[20, 24\], dst \[37, 24\]; accepted: the same number", _sizes),
        (ArgumentError, "srcs 17; accepted: a list of 1 to 16", _many),
        (ArgumentError, "srcs NkiTensor; accepted: a list", _alone),
        (WrongBufferError, "dst psum_.* lies in psum", _psum),
    ],
)
def test_rules(error: type, words: str, kernel: Callable[..., None]) -> None:
    """The tests above are the counterparts."""
    with pytest.raises(error, match=words):
        launch(kernel, *_inputs(7))
