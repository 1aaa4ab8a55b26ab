"""GpSimd gathers and searches against plain loops written from the documentation's text."""

import ml_dtypes
import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim.errors import (
    ArgumentError,
    DtypeError,
    OutOfBoundsError,
    ShapeError,
    UninitializedReadError,
    WrongBufferError,
)
from nkisim.isa.testing import Given, Tile, compute, values

_RNG = np.random.default_rng(21)
BF16 = ml_dtypes.bfloat16


def _random(*shape):
    return _RNG.standard_normal(shape).astype(np.float32)


def _indices(limit, *shape, dtype=np.uint32):
    return _RNG.integers(0, limit, shape).astype(dtype)


class TestNcNGather:
    @pytest.mark.parametrize("dtype", [np.float32, BF16, np.int8])
    def test_values(self, dtype):
        data, indices = (_random(90, 5, 30) * 50).astype(dtype), _indices(150, 90, 2, 11)
        kind = getattr(nl, np.dtype(dtype).name)
        result = values(lambda out, d, i: nisa.nc_n_gather(out, d, i), [data, indices], Tile((90, 22), kind))
        np.testing.assert_array_equal(result, np.take_along_axis(data.reshape(90, 150), indices.reshape(90, 22), 1))

    def test_views(self):
        data, indices = _random(30, 40), _indices(20, 30, 6)
        result = values(
            lambda out, d, i: nisa.nc_n_gather(out, d[:, 1::2], i),
            [Given(data, start=32), Given(indices, start=64)],
            Tile((30, 6), start=96),
        )
        np.testing.assert_array_equal(result, np.take_along_axis(data[:, 1::2], indices.astype(np.int64), 1))

    def test_only_what_is_gathered_must_be_written(self):
        def body(out, data, indices):
            partly = nl.ndarray((20, 16), nl.float32)
            nisa.tensor_copy(partly[:, :8], data)
            nisa.nc_n_gather(out, partly, indices)

        inputs = [_random(20, 8), _indices(8, 20, 5)]
        values(body, inputs, Tile((20, 5)))
        inputs[1][3, 2] = 8
        with pytest.raises(UninitializedReadError, match=r"nisa.nc_n_gather: data: element \[3, 8\]"):
            values(body, inputs, Tile((20, 5)))

    def test_record(self):
        inputs = [_random(20, 8), _indices(8, 20, 5)]
        for numerics in (True, False):
            (record,) = compute(nisa.nc_n_gather, inputs, [Tile((20, 5))], numerics=numerics).stream
            assert record.engine is nisa.engine.gpsimd
            assert [r.shape for r in record.reads] == [(20, 8), (20, 5)]

    @pytest.mark.parametrize(
        ("inputs", "out", "error", "words"),
        [
            ([_random(8, 4), _indices(4, 8, 3, dtype=np.int32)], Tile((8, 3)), DtypeError, "accepted: uint32"),
            ([_random(8, 4), _indices(4, 8, 3)], Tile((8, 3), nl.bfloat16), DtypeError, "accepted: the same type"),
            ([_random(8, 4), _indices(4, 8, 3)], Tile((8, 4)), ShapeError, "accepted: the same number"),
            ([_random(9, 4), _indices(4, 8, 3)], Tile((8, 3)), ShapeError, "data has 9 partitions"),
            ([Given(_random(8, 4), nl.psum), _indices(4, 8, 3)], Tile((8, 3)), WrongBufferError, "accepted: sbuf"),
            (
                [_random(8, 4), _indices(4, 8, 3) * 0 + 4],
                Tile((8, 3)),
                OutOfBoundsError,
                "4 at partition 0, position 0",
            ),
        ],
    )
    def test_refused(self, inputs, out, error, words):
        with pytest.raises(error, match=words):
            compute(nisa.nc_n_gather, inputs, [out])


def _local_gather(src, index, run, count):
    """The operation by one element at a time."""
    partitions = src.shape[0]
    flat = src.reshape(partitions, -1)
    out = np.empty((partitions, count, run), src.dtype)
    for p in range(partitions):
        group = p - p % 16
        for i in range(count):
            start = index[group + i % 16, i // 16]
            out[p, i] = flat[p, start : start + run]
    return out


class TestLocalGather:
    @pytest.mark.parametrize("run", [1, 2, 4, 8, 16, 32])
    @pytest.mark.parametrize("count", [None, 37])
    def test_values(self, run, count):
        src, index = _random(128, 20, 4), _indices(80 - run, 128, 4, dtype=np.uint16)
        out = Tile((128, (count or 64) * run))
        result = values(
            lambda o, s, i: nisa.local_gather(o, s, i, num_elem_per_idx=run, num_valid_indices=count), [src, index], out
        )
        expected = _local_gather(src, index, run, count or 64).reshape(128, -1)
        np.testing.assert_array_equal(result, expected)

    def test_indices_that_do_not_count_need_not_be_written(self):
        src, index = _random(32, 10), _indices(10, 32, 2, dtype=np.uint16)

        def body(out, s, i, extra=0):
            wide = nl.ndarray((32, 3), nl.uint16)
            nisa.tensor_copy(wide[:, :2], i)
            nisa.local_gather(out, s, wide, num_valid_indices=32 + extra)

        np.testing.assert_array_equal(
            values(body, [src, index], Tile((32, 32))), _local_gather(src, index, 1, 32)[:, :, 0]
        )
        with pytest.raises(UninitializedReadError, match=r"index: element \[0, 2\]"):
            values(lambda o, s, i: body(o, s, i, 1), [src, index], Tile((32, 33)))

    @pytest.mark.parametrize(
        ("changed", "error", "words"),
        [
            ({"num_elem_per_idx": 3}, ArgumentError, "num_elem_per_idx 3; accepted: 1, 2, 4, 8, 16, 32"),
            ({"num_valid_indices": 33}, ArgumentError, "num_valid_indices 33; accepted: 1 to 32"),
            ({"num_valid_indices": 0}, ArgumentError, "num_valid_indices 0"),
            ({"index": _indices(4, 32, 2)}, DtypeError, "accepted: uint16"),
            ({"src": _random(24, 8), "index": _indices(4, 24, 2, dtype=np.uint16)}, ShapeError, "a multiple of 16"),
            ({"src": _random(16, 8)}, ShapeError, "index has 32 partitions, src_buffer 16"),
            ({"out": Tile((32, 31))}, ShapeError, "accepted: 32, num_valid_indices"),
            ({"out": Tile((32, 32), nl.bfloat16)}, DtypeError, "accepted: the same type"),
            ({"out": Tile((32, 32), buffer=nl.psum)}, WrongBufferError, "accepted: sbuf"),
            ({"index": _indices(1, 32, 2, dtype=np.uint16) + 8}, OutOfBoundsError, "accepted: below 8"),
        ],
    )  # fmt: skip
    def test_refused(self, changed, error, words):
        src, index = changed.pop("src", _random(32, 8)), changed.pop("index", _indices(8, 32, 2, dtype=np.uint16))
        out = changed.pop("out", Tile((32, 32)))
        with pytest.raises(error, match=words):
            compute(lambda o, s, i: nisa.local_gather(o, s, i, **changed), [src, index], [out])

    def test_at_most_4096_indices(self):
        src = _random(16, 8)
        index = _indices(8, 16, 257, dtype=np.uint16)
        values(lambda o, s, i: nisa.local_gather(o, s, i, 1, 4096), [src, index], Tile((16, 4096)))
        with pytest.raises(ArgumentError, match="num_valid_indices 4112; accepted: 1 to 4096"):
            values(lambda o, s, i: nisa.local_gather(o, s, i), [src, index], Tile((16, 4112)))


class TestNonzeroWithCount:
    @pytest.mark.parametrize("dtype", [np.float32, np.int32])
    def test_values(self, dtype):
        src = (_RNG.integers(0, 3, (128, 50)) * _RNG.integers(0, 2, (128, 50))).astype(dtype)
        src[16] = 0

        def body(out, s):
            nisa.memset(out, 77)
            nisa.nonzero_with_count(out, s, index_offset=100, padding_val=-5)

        result = values(body, [src], Tile((128, 51), nl.int32))
        expected = np.full((128, 51), 77)
        for p in range(0, 128, 16):
            found = [i + 100 for i in range(50) if src[p, i] != 0]
            expected[p] = found + [-5] * (50 - len(found)) + [len(found)]
        np.testing.assert_array_equal(result, expected)

    def test_other_partitions_are_neither_read_nor_written(self):
        def body(out, s):
            src = nl.ndarray((40, 6), nl.float32)
            for p in (0, 16, 32):
                nisa.dma_copy(src[p : p + 1], s[0:1])
            dst = nl.ndarray((40, 7), nl.int32)
            nisa.nonzero_with_count(dst, src)
            for row, p in enumerate((0, 16, 32)):
                nisa.dma_copy(out[row : row + 1], dst[p : p + 1])
            with pytest.raises(UninitializedReadError):
                nl.add(dst, 0)

        result = values(body, [np.array([[0, 1, 1, 0, 0, 1]], np.float32)], Tile((3, 7), nl.int32))
        np.testing.assert_array_equal(result, [[1, 2, 5, -1, -1, -1, 3]] * 3)

    @pytest.mark.parametrize(
        ("src", "out", "options", "error", "words"),
        [
            (_random(16, 5), Tile((16, 5), nl.int32), {}, ShapeError, "one element per partition more"),
            (_random(16, 5), Tile((8, 6), nl.int32), {}, ShapeError, "dst has 8 partitions"),
            (_random(16, 5), Tile((16, 6)), {}, DtypeError, "accepted: int32"),
            (_random(16, 5).astype(BF16), Tile((16, 6), nl.int32), {}, DtypeError, "accepted: float32, int32"),
            (_random(16, 5), Tile((16, 6), nl.int32, nl.psum), {}, WrongBufferError, "accepted: sbuf"),
            (_random(16, 5), Tile((16, 6), nl.int32), {"index_offset": 1.5}, ArgumentError, "index_offset 1.5"),
            (_random(16, 5), Tile((16, 6), nl.int32), {"padding_val": 2**31}, ArgumentError, "padding_val 2147483648"),
        ],
    )  # fmt: skip
    def test_refused(self, src, out, options, error, words):
        with pytest.raises(error, match=words):
            compute(lambda o, s: nisa.nonzero_with_count(o, s, **options), [src], [out])


class TestTopk:
    @pytest.mark.parametrize(("n", "k"), [(42, 8), (48, 48), (8, 1), (33, 20)])
    def test_values(self, n, k):
        src = _random(64, 3).astype(BF16)
        val, idx = values(
            lambda v, i, s: nisa.topk(v, i, s, n), [src], Tile((64, k), nl.bfloat16), Tile((64, k), nl.uint32)
        )
        for p in range(64):
            group = src[p - p % 16 : p - p % 16 + 16]
            snake = np.array([group[j % 16, j // 16] for j in range(n)])
            np.testing.assert_array_equal(val[p], np.sort(snake.astype(np.float32))[-k:].astype(BF16))
            np.testing.assert_array_equal(snake[idx[p]], val[p])
            assert len(set(idx[p])) == k

    @pytest.mark.parametrize(
        ("n", "k", "changed", "error", "words"),
        [
            (7, 4, {}, ArgumentError, "n 7; accepted: 8 to 65535"),
            (49, 4, {}, ShapeError, r"n 49 values in src \[32, 3\]; accepted: up to 48"),
            (20, 21, {}, ShapeError, "K is 21, from val_dst; accepted: 1 to 20"),
            (20, 4, {"src": _random(32, 3)}, DtypeError, "src .* accepted: bfloat16"),
            (20, 4, {"src": _random(24, 3).astype(BF16)}, ShapeError, "partitions"),
            (20, 4, {"val": Tile((32, 4))}, DtypeError, "val_dst .* accepted: bfloat16"),
            (20, 4, {"idx": Tile((32, 4), nl.int32)}, DtypeError, "idx_dst .* accepted: uint32"),
            (20, 4, {"idx": Tile((32, 5), nl.uint32)}, ShapeError, "idx_dst"),
            (20, 4, {"val": Tile((32, 4), nl.bfloat16, nl.psum)}, WrongBufferError, "accepted: sbuf"),
        ],
    )  # fmt: skip
    def test_refused(self, n, k, changed, error, words):
        src = changed.get("src", _random(32, 3).astype(BF16))
        tiles = [changed.get("val", Tile((32, k), nl.bfloat16)), changed.get("idx", Tile((32, k), nl.uint32))]
        with pytest.raises(error, match=words):
            compute(lambda v, i, s: nisa.topk(v, i, s, n), [src], tiles)


class TestSequenceBounds:
    def test_the_documented_example(self):
        ids = np.array([[0, 1, 1, 2, 2, 2, 0, 3, 3]], np.int32)
        result = values(nisa.sequence_bounds, [ids], Tile((1, 2, 9), nl.int32))
        np.testing.assert_array_equal(result[0], [[9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]])

    @pytest.mark.parametrize("dtype", [np.float32, np.int32])
    def test_values(self, dtype):
        ids = np.sort(_RNG.integers(0, 20, (1, 200))).astype(dtype)
        result = values(nisa.sequence_bounds, [ids], Tile((1, 2, 200)))[0]
        for i, segment in enumerate(ids[0]):
            members = np.flatnonzero(ids[0] == segment)
            expected = (200, -1) if segment == 0 else (members[0], members[-1] + 1)
            assert tuple(result[:, i]) == expected

    @pytest.mark.parametrize(
        ("ids", "out", "error", "words"),
        [
            (np.ones((2, 8), np.int32), Tile((2, 2, 8), nl.int32), ShapeError, "2 partitions; accepted: 1"),
            (np.ones((1, 8), np.int32), Tile((1, 16), nl.int32), ShapeError, r"accepted: \(1, 2, 8\)"),
            (np.ones((1, 8), np.uint32), Tile((1, 2, 8), nl.int32), DtypeError, "accepted: float32, int32"),
            (np.ones((1, 8), np.int32), Tile((1, 2, 8), nl.bfloat16), DtypeError, "accepted: float32, int32"),
            (-np.ones((1, 8), np.int32), Tile((1, 2, 8)), ArgumentError, "-1 at position 0; accepted: whole numbers"),
            (np.full((1, 8), 1.5, np.float32), Tile((1, 2, 8)), ArgumentError, "1.5 at position 0"),
            (Given(np.ones((1, 8), np.int32), nl.psum), Tile((1, 2, 8)), WrongBufferError, "accepted: sbuf"),
        ],
    )  # fmt: skip
    def test_refused(self, ids, out, error, words):
        with pytest.raises(error, match=words):
            compute(nisa.sequence_bounds, [ids], [out])


def test_searches_run_on_trn2():
    values(nisa.sequence_bounds, [np.ones((1, 8), np.int32)], Tile((1, 2, 8)), target="trn2")
    compute(lambda s: nisa.nonzero_with_count(nl.ndarray((16, 6), nl.int32), s), [_random(16, 5)], [], target="trn2")
