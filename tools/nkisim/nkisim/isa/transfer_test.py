"""Tests for `dma_copy` against numpy: shapes, casts, gathers, scatters, and each rule with its counterpart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki.isa
import nki.language
from nkisim import Options, run
from nkisim.errors import (
    ArgumentError,
    DtypeError,
    EngineError,
    OutOfBoundsError,
    OutputNotWrittenError,
    ShapeError,
    TargetError,
    UninitializedReadError,
    ViewError,
    WrongBufferError,
)
from nkisim.storage import IndexedRegion

nisa: Any = nki.isa  # kernels here break its types on purpose
nl: Any = nki.language
ROWS, COLUMNS = 37, 24


def launch(kernel: Callable[..., Any], *args: Any, target: str = "trn3", **kwargs: Any) -> Any:
    return run(kernel, *args, options=Options(target=target), **kwargs).outputs


def _table(rng: np.random.Generator, rows: int = ROWS, columns: int = COLUMNS) -> np.ndarray:
    return rng.standard_normal((rows, columns)).astype(np.float32)


def _load_index(index: Any) -> Any:
    tile = nl.ndarray(index.shape, index.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, index)
    return tile


def gather_kernel(table, index, count, columns, first_column=0, mode=nisa.oob_mode.error, **options):
    out = nl.ndarray((count, columns), table.dtype, buffer=nl.shared_hbm)
    found = nl.ndarray((count, columns), table.dtype, buffer=nl.sbuf)
    nisa.memset(found, -7.0)
    view = table.ap(
        [[table.shape[1], count], [1, columns]], offset=first_column, vector_offset=_load_index(index), indirect_dim=0
    )
    nisa.dma_copy(found, view, oob_mode=mode, **options)
    nisa.dma_copy(out, found)
    return out


@pytest.mark.parametrize("count", [1, 31, 128])
@pytest.mark.parametrize("kind", [np.int32, np.uint32])
def test_gather_takes_the_rows_that_the_index_names(count: int, kind: Any) -> None:
    rng = np.random.default_rng(count)
    table, index = _table(rng), rng.integers(0, ROWS, (count, 1)).astype(kind)
    np.testing.assert_array_equal(launch(gather_kernel, table, index, count, COLUMNS), table[index[:, 0]])


def test_gather_of_some_columns() -> None:
    rng = np.random.default_rng(1)
    table, index = _table(rng), rng.integers(0, ROWS, (20, 1)).astype(np.int32)
    np.testing.assert_array_equal(launch(gather_kernel, table, index, 20, 5, 7), table[index[:, 0], 7:12])


@pytest.mark.parametrize("kind", [np.int32, np.uint32])
def test_index_past_the_table_is_named(kind: Any) -> None:
    """Field report m9."""
    rng = np.random.default_rng(2)
    table, index = _table(rng), rng.integers(0, ROWS, (20, 1)).astype(kind)
    index[13] = ROWS
    with pytest.raises(OutOfBoundsError, match=rf"index {ROWS} at position 13 .*{ROWS} rows.*0 to {ROWS - 1}"):
        launch(gather_kernel, table, index, 20, COLUMNS)


@pytest.mark.parametrize("bad", [ROWS, 114514, 2147483647, -1, -123456, -(2**31)])
def test_skip_leaves_the_row_as_it_was(bad: int) -> None:
    """Field report m9."""
    rng = np.random.default_rng(3)
    table, index = _table(rng), rng.integers(0, ROWS, (20, 1)).astype(np.int32)
    index[[0, 13]] = bad
    expected = table[np.where(index[:, 0] == bad, 0, index[:, 0])]
    expected[[0, 13]] = -7.0
    found = launch(gather_kernel, table, index, 20, COLUMNS, mode=nisa.oob_mode.skip)
    np.testing.assert_array_equal(found, expected)


def test_row_skipped_into_unwritten_memory_stays_unwritten() -> None:
    def kernel(table, index):
        out = nl.ndarray((4, COLUMNS), table.dtype, buffer=nl.shared_hbm)
        found = nl.ndarray((4, COLUMNS), table.dtype, buffer=nl.sbuf)
        nisa.dma_copy(found, table.vector_select(0, _load_index(index)), oob_mode=nisa.oob_mode.skip)
        nisa.dma_copy(out, found)
        return out

    index = np.array([[3], [0], [ROWS], [1]], np.int32)
    with pytest.raises(OutputNotWrittenError, match=r"element \[2, 0\]"):
        launch(kernel, _table(np.random.default_rng(0)), index)
    index[2] = 5
    assert launch(kernel, _table(np.random.default_rng(0)), index).shape == (4, COLUMNS)


def test_batched_index_is_read_column_by_column() -> None:
    """Row i of the destination, walked partition by partition, takes index element [i % 128, i // 128]."""
    tiles = 3

    def kernel(table, index):
        out = nl.ndarray((128, tiles, COLUMNS), table.dtype, buffer=nl.shared_hbm)
        found = nl.ndarray((128, tiles, COLUMNS), table.dtype, buffer=nl.sbuf)
        view = table.ap([[COLUMNS, 128 * tiles], [1, COLUMNS]], vector_offset=_load_index(index), indirect_dim=0)
        nisa.dma_copy(found, view)
        nisa.dma_copy(out, found)
        return out

    rng = np.random.default_rng(4)
    table, index = _table(rng), rng.integers(0, ROWS, (128, tiles)).astype(np.int32)
    expected = np.empty((128, tiles, COLUMNS), np.float32)
    for i in range(128 * tiles):
        expected[i // tiles, i % tiles] = table[index[i % 128, i // 128]]
    np.testing.assert_array_equal(launch(kernel, table, index), expected)


def scatter_kernel(values, index, rows, mode=nisa.oob_mode.error):
    count, columns = values.shape
    out = nl.ndarray((rows, columns), values.dtype, buffer=nl.shared_hbm)
    zeros = nl.ndarray((rows, columns), values.dtype, buffer=nl.sbuf)
    nisa.memset(zeros, 0.0)
    nisa.dma_copy(out, zeros)
    tile = nl.ndarray((count, columns), values.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, values)
    target = out.ap([[columns, count], [1, columns]], vector_offset=_load_index(index), indirect_dim=0)
    nisa.dma_copy(target, tile, oob_mode=mode)
    return out


def test_scatter() -> None:
    rng = np.random.default_rng(5)
    values = _table(rng, 20)
    index = rng.permutation(ROWS)[:20].astype(np.int32)
    expected = np.zeros((ROWS, COLUMNS), np.float32)
    expected[index] = values
    np.testing.assert_array_equal(launch(scatter_kernel, values, index[:, None], ROWS), expected)


def test_scatter_out_of_bounds() -> None:
    rng = np.random.default_rng(6)
    values = _table(rng, 20)
    index = rng.permutation(ROWS)[:20].astype(np.int32)
    index[4] = ROWS
    with pytest.raises(OutOfBoundsError, match=rf"dst: index {ROWS} at position 4 "):
        launch(scatter_kernel, values, index[:, None], ROWS)
    expected = np.zeros((ROWS, COLUMNS), np.float32)
    kept = index < ROWS
    expected[index[kept]] = values[kept]
    found = launch(scatter_kernel, values, index[:, None], ROWS, nisa.oob_mode.skip)
    np.testing.assert_array_equal(found, expected)


def test_scatter_writes_the_callers_cache_once_the_run_succeeded() -> None:
    def kernel(cache, row, index):
        tile = nl.ndarray((1, COLUMNS), cache.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, row)
        nisa.dma_copy(cache.vector_select(0, _load_index(index)), tile)
        return cache

    rng = np.random.default_rng(7)
    cache, row = _table(rng), _table(rng, 1)
    expected = cache.copy()
    expected[11] = row
    launch(kernel, cache, row, np.array([[11]], np.int32))
    np.testing.assert_array_equal(cache, expected)


def test_overlapping_windows_scatter() -> None:
    """A window of 3 strided rows per index, as a transposed key cache has it: index and window share the dimension."""

    def kernel(values, index):
        count = values.shape[0]
        out = nl.ndarray((4 * 50,), values.dtype, buffer=nl.shared_hbm)
        zeros = nl.ndarray((1, 200), values.dtype, buffer=nl.sbuf)
        nisa.memset(zeros, 0.0)
        nisa.dma_copy(out, zeros)
        tile = nl.ndarray(values.shape, values.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, values)
        target = out.ap([[1, count], [50, 3], [1, 2]], offset=0, vector_offset=_load_index(index), indirect_dim=0)
        nisa.dma_copy(target, tile)
        return out

    values = np.arange(5 * 6, dtype=np.float32).reshape(5, 3, 2)
    index = np.array([[0], [7], [20], [31], [92]], np.int32)
    expected = np.zeros(200, np.float32)
    for row, start in enumerate(index[:, 0]):
        for j in range(3):
            expected[start + 50 * j : start + 50 * j + 2] = values[row, j]
    np.testing.assert_array_equal(launch(kernel, values, index), expected)
    index[4] = 99
    with pytest.raises(OutOfBoundsError, match=r"has 99 rows"):
        launch(kernel, values, index)


def scalar_kernel(table, start, mode=nisa.oob_mode.error, use_register=False, **options):
    out = nl.ndarray((8, COLUMNS), table.dtype, buffer=nl.shared_hbm)
    found = nl.ndarray((8, COLUMNS), table.dtype, buffer=nl.sbuf)
    nisa.memset(found, -7.0)
    where = _load_index(start)
    if use_register:
        register = nisa.register_alloc()
        nisa.register_load(register, where)
        where = register
    view = table.ap([[COLUMNS, 8], [1, COLUMNS]], scalar_offset=where, indirect_dim=0)
    nisa.dma_copy(found, view, oob_mode=mode, **options)
    nisa.dma_copy(out, found)
    return out


@pytest.mark.parametrize("use_register", [False, True])
@pytest.mark.parametrize("start", [0, 11, ROWS - 8])
def test_scalar_offset(start: int, use_register: bool) -> None:
    table = _table(np.random.default_rng(8))
    found = launch(scalar_kernel, table, np.array([[start]], np.int32), use_register=use_register)
    np.testing.assert_array_equal(found, table[start : start + 8])


def test_scalar_offset_out_of_bounds() -> None:
    table, start = _table(np.random.default_rng(9)), np.array([[ROWS - 7]], np.int32)
    with pytest.raises(OutOfBoundsError, match=rf"dynamic offset {ROWS - 7} .*0 to {ROWS - 8}"):
        launch(scalar_kernel, table, start)
    assert (launch(scalar_kernel, table, start, nisa.oob_mode.skip) == -7.0).all()


def test_dynamic_descriptors() -> None:
    table = _table(np.random.default_rng(10))
    start, index = np.array([[3]], np.int32), np.zeros((4, 1), np.int32)
    for mode in (nisa.dge_mode.swdge, nisa.dge_mode.hwdge, nisa.dge_mode.unknown):
        launch(scalar_kernel, table, start, dge_mode=mode)
    with pytest.raises(ArgumentError, match=r"dynamic offset with dge_mode\.none"):
        launch(scalar_kernel, table, start, dge_mode=nisa.dge_mode.none)
    launch(gather_kernel, table, index, 4, COLUMNS, dge_mode=nisa.dge_mode.swdge)
    for mode in (nisa.dge_mode.hwdge, nisa.dge_mode.none):
        with pytest.raises(ArgumentError, match="index per row with dge_mode"):
            launch(gather_kernel, table, index, 4, COLUMNS, dge_mode=mode)


def copy_kernel(x, shape=None, dtype=None, **options):
    out = nl.ndarray(shape or x.shape, dtype or x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, x, **options)
    return out


def test_hwdge_engines() -> None:
    x = _table(np.random.default_rng(11))
    for engine in (nisa.engine.sync, nisa.engine.scalar):
        launch(copy_kernel, x, dge_mode=nisa.dge_mode.hwdge, engine=engine)
    with pytest.raises(EngineError, match=r"engine\.vector"):
        launch(copy_kernel, x, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.vector)
    with pytest.raises(EngineError, match=r"dge_mode\.hwdge"):
        launch(copy_kernel, x, engine=nisa.engine.sync)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        pytest.param(nl.bfloat16, nl.float32, id="bf16_to_fp32"),
        pytest.param(nl.int32, nl.uint32, id="integers_of_one_size"),
        pytest.param(nl.float8_e4m3, nl.float8_e4m3fn, id="fp8_formats"),
        pytest.param(nl.float8_e4m3fn, nl.uint8, id="codes_as_bytes"),
    ],
)
def test_hwdge_casts_nothing(source: str, target: str) -> None:
    x = np.arange(8).reshape(2, 4).astype(source)
    accepted = "accepted: the same type .*, or dge_mode.swdge, none or unknown"
    with pytest.raises(DtypeError, match=rf"src x is {source}, dst .* is {target} with dge_mode\.hwdge.*{accepted}"):
        launch(copy_kernel, x, dtype=target, dge_mode=nisa.dge_mode.hwdge)
    for mode in (nisa.dge_mode.swdge, nisa.dge_mode.none, nisa.dge_mode.unknown):
        found = launch(copy_kernel, x, dtype=target, dge_mode=mode)
        np.testing.assert_array_equal(found.astype(np.float32), np.arange(8, dtype=np.float32).reshape(2, 4))


def view_kernel(x, dtype):
    out = nl.ndarray(x.view(dtype).shape, dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, x.view(dtype), dge_mode=nisa.dge_mode.hwdge)
    return out


@pytest.mark.parametrize("dtype", [nl.uint8, nl.int8, nl.float8_e4m3, nl.uint32])
def test_hwdge_moves_the_bytes_of_a_view(dtype: str) -> None:
    x = np.arange(0x30, 0x38, dtype=np.uint8).reshape(1, 8).view(ml_dtypes.float8_e4m3fn)
    assert launch(view_kernel, x, dtype=dtype).tobytes() == x.tobytes()


def test_priority() -> None:
    x = _table(np.random.default_rng(12))
    launch(copy_kernel, x, priority=3)
    with pytest.raises(ArgumentError, match="priority 4; accepted: 0 to 3"):
        launch(copy_kernel, x, priority=4)
    with pytest.raises(TargetError, match="priority: target trn2"):
        launch(copy_kernel, x, priority=0, target="trn2")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (np.float32, ml_dtypes.bfloat16),
        (np.float32, ml_dtypes.float8_e5m2),
        (ml_dtypes.bfloat16, np.float32),
        (ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16),
        (np.float16, np.float32),
        (np.int32, np.float32),
        (np.uint8, np.int32),
    ],
)
def test_casts_through_fp32(given: Any, wanted: Any) -> None:
    x = np.random.default_rng(13).integers(-100 if np.dtype(given).kind != "u" else 0, 100, (ROWS, COLUMNS))
    x = x.astype(np.float32).astype(given)
    found = launch(copy_kernel, x, dtype=np.dtype(wanted))
    np.testing.assert_array_equal(found, x.astype(np.float32).astype(wanted))


def test_any_shapes_with_as_many_elements() -> None:
    """Field report h7: dma_copy(A[:, m, :], B[m, :, :])."""

    def kernel(a, b):
        m = 2
        nisa.dma_copy(a[:, m, :], b[m, :, :])
        return a

    rng = np.random.default_rng(14)
    a, b = rng.standard_normal((6, 4, 10)), rng.standard_normal((5, 6, 10))
    a, b = a.astype(np.float32), b.astype(np.float32)
    expected = a.copy()
    expected[:, 2, :] = b[2]
    launch(kernel, a, b)
    np.testing.assert_array_equal(a, expected)


def test_element_counts_differ() -> None:
    x = _table(np.random.default_rng(15))
    assert launch(copy_kernel, x, shape=(COLUMNS, ROWS)).shape == (COLUMNS, ROWS)
    with pytest.raises(ShapeError, match=f"{ROWS * COLUMNS}; accepted: the same number"):
        launch(copy_kernel, x, shape=(COLUMNS, ROWS + 1))


def test_psum_is_out_of_reach() -> None:
    def kernel(x, buffer):
        tile = nl.ndarray(x.shape, x.dtype, buffer=buffer)
        nisa.dma_copy(tile, x)
        return x

    x = _table(np.random.default_rng(16))
    launch(kernel, x, nl.sbuf)
    with pytest.raises(WrongBufferError, match=r"dst psum_.* lies in psum; accepted"):
        launch(kernel, x, nl.psum)


def test_not_an_oob_mode() -> None:
    x = _table(np.random.default_rng(17))
    with pytest.raises(ArgumentError, match="oob_mode 'skip'; accepted: error, skip"):
        launch(copy_kernel, x, oob_mode="skip")


def _with_index(build: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def kernel(table, index):
        tile = nl.ndarray((4, COLUMNS), table.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, build(table, _load_index(index)))
        return table

    return kernel


@pytest.mark.parametrize(
    ("error", "words", "dtype", "build"),
    [
        (DtypeError, "is int16; accepted: int32 or uint32", np.int16, lambda t, i: t.vector_select(0, i)),
        (ViewError, "dimension 1; accepted: 0", np.int32, lambda t, i: t.vector_select(1, i)),
        (ShapeError, "8 rows in pattern", np.int32, lambda t, i: t.ap([[COLUMNS, 8], [1, 12]], vector_offset=i)),
        (
            ArgumentError,
            "at most one",
            np.int32,
            lambda t, i: t.ap([[COLUMNS, 4], [1, COLUMNS]], vector_offset=i, scalar_offset=i[0:1]),
        ),
        (
            OutOfBoundsError,
            "reaches element",
            np.int32,
            lambda t, i: t.ap([[COLUMNS, 4], [1, ROWS * COLUMNS + 1]], vector_offset=i),
        ),
        (ArgumentError, "both have an index per row", np.int32, None),
    ],
)
def test_faulty_gathers(error: type, words: str, dtype: Any, build: Any) -> None:
    table = _table(np.random.default_rng(18))
    index = np.array([[1], [2], [3], [0]], dtype)
    launch(_with_index(lambda t, i: t.vector_select(0, i)), table, index.astype(np.int32))

    def both(table, index):
        view = table.vector_select(0, _load_index(index))
        nisa.dma_copy(view, view)
        return table

    with pytest.raises(error, match=words):
        launch(both if build is None else _with_index(build), table, index)


def test_gather_needs_an_hbm_table() -> None:
    def kernel(table, index):
        tile = nl.ndarray(table.shape, table.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, table)
        tile.vector_select(0, _load_index(index))
        return table

    with pytest.raises(WrongBufferError, match="lies in sbuf; accepted: hbm"):
        launch(kernel, _table(np.random.default_rng(19)), np.zeros((4, 1), np.int32))


def test_index_lies_in_sbuf() -> None:
    def kernel(table, index):
        tile = nl.ndarray((4, COLUMNS), table.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, table.vector_select(0, index))
        return table

    with pytest.raises(WrongBufferError, match="index index lies in shared_hbm; accepted: sbuf"):
        launch(kernel, _table(np.random.default_rng(20)), np.zeros((4, 1), np.int32))


def test_unwritten_index_is_named() -> None:
    def kernel(table):
        index = nl.ndarray((4, 1), nl.int32, buffer=nl.sbuf, name="rows")
        nisa.memset(index[0:2], 0)
        tile = nl.ndarray((4, COLUMNS), table.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, table.vector_select(0, index))
        return table

    with pytest.raises(UninitializedReadError, match=r"element \[2, 0\] of index rows"):
        launch(kernel, _table(np.random.default_rng(21)))


def test_timing_only_run_records_the_same_stream() -> None:
    rng = np.random.default_rng(22)
    table, index = _table(rng), rng.integers(0, ROWS, (20, 1)).astype(np.int32)

    def strip(finished: Any) -> list[Any]:
        return [
            (r.op, r.engine, [w.shape for w in r.writes], [x[2:] for x in r.reads]) for r in finished.cores[0].stream
        ]

    full = run(gather_kernel, table, index, 20, COLUMNS)
    timing = run(gather_kernel, table, index, 20, COLUMNS, options=Options(numerics=False))
    assert strip(full) == strip(timing)
    gathered = full.cores[0].stream[-2].reads[0]
    assert gathered.size_bytes == 20 * COLUMNS * 4
    assert isinstance(gathered, IndexedRegion)
    assert gathered.chosen_by is not None
    assert gathered.chosen_by.shape == (20, 1)


@pytest.mark.parametrize(
    ("pattern", "words"), [([[24, 4], [1, 25]], "runs past a partition"), ([[24, 5], [1, 2]], "reaches")]
)
def test_pattern_outside_its_storage_fails_where_it_is_used(pattern: list[list[int]], words: str) -> None:
    def kernel(x, use):
        tile = nl.ndarray((4, COLUMNS), x.dtype, buffer=nl.sbuf)
        outside = tile.ap(pattern)[:, 0:2]
        if use:
            nisa.memset(outside, 0.0)
        return x

    x = _table(np.random.default_rng(23))
    launch(kernel, x, False)
    with pytest.raises(OutOfBoundsError, match=words):
        launch(kernel, x, True)


def test_modes_by_number() -> None:
    """Public kernels give descriptor modes as their numbers."""
    x = _table(np.random.default_rng(24))
    finished = run(copy_kernel, x, dge_mode=3)
    assert finished.cores[0].stream[0].detail is nisa.dge_mode.none
    with pytest.raises(ArgumentError, match="dge_mode 4; accepted: unknown, swdge, hwdge, none"):
        launch(copy_kernel, x, dge_mode=4)
