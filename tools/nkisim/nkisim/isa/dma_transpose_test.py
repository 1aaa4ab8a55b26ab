"""Tests for `dma_transpose` against numpy, and each rule with its counterpart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki.isa
import nki.language
from nkisim import Options, run
from nkisim.errors import ArgumentError, DtypeError, OutOfBoundsError, ShapeError, TargetError, WrongBufferError

nisa: Any = nki.isa  # kernels here break its types on purpose
nl: Any = nki.language

BF16 = np.dtype(ml_dtypes.bfloat16)
PERMUTATIONS = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def launch(kernel: Callable[..., Any], *args: Any, target: str = "trn3", **kwargs: Any) -> Any:
    return run(kernel, *args, options=Options(target=target), **kwargs).outputs


def direct_kernel(x, shape=None, from_sbuf=False, buffer=nl.sbuf, dtype=None, **options):
    shape = shape or tuple(x.shape[a] for a in PERMUTATIONS[x.ndim])
    out = nl.ndarray(shape, dtype or x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(shape, dtype or x.dtype, buffer=buffer)
    source = x
    if from_sbuf:
        source = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(source, x)
    nisa.dma_transpose(tile, source, **options)
    nisa.dma_copy(out, tile)
    return out


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.uint8])
@pytest.mark.parametrize("shape", [(70, 33), (5, 7, 9), (6, 3, 4, 128)])
@pytest.mark.parametrize("from_sbuf", [False, True])
def test_direct(shape: tuple[int, ...], dtype: Any, from_sbuf: bool) -> None:
    x = np.random.default_rng(0).integers(0, 200, shape).astype(np.float32).astype(dtype)
    axes = PERMUTATIONS[len(shape)]
    np.testing.assert_array_equal(launch(direct_kernel, x, from_sbuf=from_sbuf), x.transpose(axes))
    np.testing.assert_array_equal(launch(direct_kernel, x, from_sbuf=from_sbuf, axes=axes), x.transpose(axes))


def _ones(*shape: int, dtype: Any = BF16) -> np.ndarray:
    return np.ones(shape, dtype)


HWDGE = {"dge_mode": nki.isa.dge_mode.hwdge}
SWDGE = {"dge_mode": nki.isa.dge_mode.swdge}
NO_DGE = {"dge_mode": nki.isa.dge_mode.none}
SKIP = {"oob_mode": nki.isa.oob_mode.skip}


def test_rows_of_two_bytes_begin_at_multiples_of_32_bytes():
    x, rows = np.arange(16 * 12).reshape(16, 12).astype(BF16), np.arange(32, dtype=np.uint32).reshape(32, 1) % 16

    def kernel(x: Any, rows: Any, *, start: int, gap: int, address: int) -> Any:
        index = nl.ndarray(rows.shape, rows.dtype)
        nisa.dma_copy(index, rows)
        tile = nl.ndarray((4, 512), x.dtype, address=(0, address))[:, start:]
        nisa.dma_transpose(tile[:, 0:16], x[:, 0:4])
        chunks = tile[:, 0 : 3 * (32 + gap)].reshape_dim(1, (3, 1, 32 + gap))[:, :, :, 0:32]
        nisa.dma_transpose(chunks, x.reshape((16, 3, 1, 4)).vector_select(0, index))
        out = nl.ndarray(chunks.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, chunks)
        return out

    expected = x[rows[:, 0]].reshape(32, 3, 1, 4).transpose(3, 1, 2, 0)
    accepted: list[dict[str, Any]] = [{"start": 16, "gap": 16, "address": 0}, {"start": 8, "gap": 0, "address": 16}]
    for placed in accepted:
        np.testing.assert_array_equal(launch(kernel, x, rows, **placed), expected)
    refused: list[tuple[str, dict[str, Any]]] = [
        ("row 0 of dst .* begins at byte 2 ", {"start": 1, "gap": 16, "address": 0}),
        ("row 0 of dst .* begins at byte 16 ", {"start": 0, "gap": 16, "address": 16}),
        ("row 1 of dst .* begins at byte 80 .*; accepted: a multiple of 32", {"start": 0, "gap": 8, "address": 0}),
    ]
    for words, placed in refused:
        with pytest.raises(ShapeError, match=words):
            launch(kernel, x, rows, **placed)


@pytest.mark.parametrize(
    ("error", "words", "bad", "good"),
    [
        (ArgumentError, r"axes \(0, 1\)", (_ones(8, 8), {"axes": (0, 1)}), (_ones(8, 8), {"axes": (1, 0)})),
        (ShapeError, "5 dimensions; accepted: 2, 3 or 4", (_ones(2, 1, 1, 1, 2), {"shape": (2, 2)}), None),
        (ShapeError, r"accepted: \[6, 8\]", (_ones(8, 6), {"shape": (8, 6)}), (_ones(8, 6), {"shape": (6, 2, 4)})),
        (WrongBufferError, "lies in psum", (_ones(8, 6), {"buffer": nki.language.psum}), (_ones(8, 6), {})),
        (DtypeError, "accepted: the same type", (_ones(8, 6), {"dtype": "float32"}), (_ones(8, 6), {})),
        (ArgumentError, r"dge_mode\.swdge for a src with no index", (_ones(8, 6), SWDGE), None),
        (ArgumentError, r"dge_mode\.none for a src with no index", (_ones(8, 6), NO_DGE), None),
        (ArgumentError, "without a dynamic index", (_ones(8, 6), SKIP), (_ones(8, 6), {})),
        (ArgumentError, "priority 9", (_ones(8, 6), {"priority": 9}), (_ones(8, 6), {"priority": 3})),
        (ShapeError, "has 8 rows with hwdge; accepted: 16", (_ones(8, 6), HWDGE), (_ones(16, 6), HWDGE)),
        (DtypeError, "accepted: 2-byte types", (_ones(16, 6, dtype=np.float32), HWDGE), (_ones(16, 6), HWDGE)),
        (ShapeError, "129 columns", (_ones(16, 129), HWDGE | {"shape": (128, 129, 1)}), (_ones(16, 128), HWDGE)),
        (ShapeError, "multiple of 16", (_ones(4, 6, 8), HWDGE), (_ones(4, 4, 8), HWDGE)),
        (ShapeError, "1, 2, 4, 8 or 16 rows", (_ones(32, 4, 8), HWDGE), (_ones(8, 3, 2, 8), HWDGE)),
    ],
)  # fmt: skip
def test_direct_rules(error: type, words: str, bad: Any, good: Any) -> None:
    with pytest.raises(error, match=words):
        launch(direct_kernel, bad[0], **bad[1])
    if good is not None:
        launch(direct_kernel, good[0], **good[1])


def test_priority_needs_trn3() -> None:
    launch(direct_kernel, _ones(8, 6), priority=1)
    with pytest.raises(TargetError, match="priority: target trn2"):
        launch(direct_kernel, _ones(8, 6), priority=1, target="trn2")


def gather_kernel(table, index, rows, **options):
    columns = table.shape[-1]
    inner = tuple(table.shape[1:-1])
    shape = tuple((rows, *inner, columns)[a] for a in PERMUTATIONS[table.ndim])
    out = nl.ndarray(shape, table.dtype, buffer=nl.shared_hbm)
    where = nl.ndarray(index.shape, index.dtype, buffer=nl.sbuf)
    nisa.dma_copy(where, index)
    tile = nl.ndarray(shape, table.dtype, buffer=nl.sbuf)
    nisa.memset(tile, -7.0)
    pattern = [[stride, count] for stride, count in zip(table.strides, (rows, *table.shape[1:]), strict=True)]
    nisa.dma_transpose(tile, table.ap(pattern, vector_offset=where, indirect_dim=0), **options)
    nisa.dma_copy(out, tile)
    return out


def _bf16(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32).astype(BF16)


@pytest.mark.parametrize(
    ("inner", "index_shape", "rows"),
    [
        ((), (128, 1), 128),
        ((), (64, 1), 48),
        ((), (128, 3), 384),
        ((), (128, 2), 144),
        ((1, 5), (128, 2), 256),
        ((4, 1), (32, 1), 16),
    ],
)
def test_gather(inner: tuple[int, ...], index_shape: tuple[int, int], rows: int) -> None:
    rng = np.random.default_rng(1)
    table = _bf16(rng, 50, *inner, 24)
    index = rng.integers(0, 50, index_shape).astype(np.uint32)
    flat = index.T.flatten()[:rows]
    expected = table[flat].transpose(PERMUTATIONS[table.ndim])
    np.testing.assert_array_equal(launch(gather_kernel, table, index, rows), expected)
    np.testing.assert_array_equal(launch(gather_kernel, table, index, rows, dge_mode=nisa.dge_mode.swdge), expected)


def test_gather_out_of_bounds() -> None:
    rng = np.random.default_rng(2)
    table, index = _bf16(rng, 50, 24), rng.integers(0, 50, (128, 2)).astype(np.uint32)
    index[5, 1], index[9, 0] = 50, 0xFFFFFFFF
    with pytest.raises(OutOfBoundsError, match=r"index 4294967295 at position 9 \(element \[9, 0\].*has 50 rows"):
        launch(gather_kernel, table, index, 256)
    expected = table[np.where(index < 50, index, 0).T.flatten()].T
    expected[:, [9, 128 + 5]] = -7.0
    found = launch(gather_kernel, table, index, 256, oob_mode=nisa.oob_mode.skip)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("error", "words", "table", "index", "rows", "options"),
    [
        (DtypeError, "is int32; accepted: uint32", (50, 24), ((128, 1), np.int32), 128, {}),
        (ShapeError, "has 24 rows; accepted: a multiple of 16", (50, 24), ((128, 1), np.uint32), 24, {}),
        (ShapeError, "128 partitions where it has several", (50, 24), ((64, 2), np.uint32), 128, {}),
        (ShapeError, "16 to 128 partitions", (50, 24), ((24, 1), np.uint32), 16, {}),
        (ShapeError, "dimension 1 or 2 of size 1", (50, 2, 3, 24), ((128, 1), np.uint32), 128, {}),
        (ShapeError, "144 rows in pattern", (50, 24), ((128, 1), np.uint32), 144, {}),
        (ArgumentError, "index per row with dge_mode", (50, 24), ((128, 1), np.uint32), 128, HWDGE),
        (ArgumentError, "priority 9", (50, 24), ((128, 1), np.uint32), 128, {"priority": 9}),
    ],
)  # fmt: skip
def test_gather_rules(error: type, words: str, table: Any, index: Any, rows: int, options: Any) -> None:
    launch(gather_kernel, _ones(50, 24), np.zeros((128, 1), np.uint32), 128)
    with pytest.raises(error, match=words):
        launch(gather_kernel, _ones(*table), np.zeros(index[0], index[1]), rows, **options)


def test_gather_takes_two_byte_types() -> None:
    index = np.zeros((128, 1), np.uint32)
    launch(gather_kernel, np.ones((50, 24), np.float16), index, 128)
    with pytest.raises(DtypeError, match="accepted: 2-byte types"):
        launch(gather_kernel, np.ones((50, 24), np.float32), index, 128)
