"""Tests for views with a dynamic index: their values in instructions, and what no view may do with them."""

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
    NotSimulatedError,
    OutOfBoundsError,
    PartitionError,
    ShapeError,
    TargetError,
    UninitializedReadError,
    ViewError,
    WrongBufferError,
)

nisa: Any = nki.isa  # kernels here break its types on purpose
nl: Any = nki.language

BF16 = np.dtype(ml_dtypes.bfloat16)
GPSIMD = nki.isa.engine.gpsimd


def launch(kernel: Callable[..., Any], *args: Any, target: str = "trn3") -> Any:
    return run(kernel, *args, options=Options(target=target)).outputs


def inside(body: Callable[[], Any], target: str = "trn3") -> Any:
    """What `body` returns when a kernel calls it."""
    found = []
    launch(lambda: found.append(body()), target=target)
    return found[0]


def load(array, address=None, buffer=None):
    tile = nl.ndarray(array.shape, array.dtype, buffer=nl.sbuf, address=address)
    nisa.dma_copy(tile, array)
    if buffer is not None:
        moved = nl.ndarray(array.shape, array.dtype, buffer=buffer)
        nisa.tensor_copy(moved, tile)
        return moved
    return tile


def store(tile):
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


def _random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def index_of(values: np.ndarray, partitions: int, group: int) -> np.ndarray:
    """The index tile that holds `values` in a snake over each group of partitions."""
    columns = -(-len(values) // group)
    padded = np.zeros(columns * group, np.int32)
    padded[: len(values)] = values
    return np.tile(padded.reshape(columns, group).T, (partitions // group, 1)).copy()


# Dynamic offsets


@pytest.mark.parametrize("position", [0, 3, 6])
def test_select_on_chip_and_off(position: int) -> None:
    def kernel(x, where):
        index = load(where)
        tile = load(x)
        found = nl.ndarray((5, 2, 9), x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(found[:, 0, :], tile.select(1, index))
        nisa.dma_copy(found[:, 1, :], x.select(1, index))
        return store(found)

    x = _random(0, 5, 7, 9)
    found = launch(kernel, x, np.array([[position]], np.int32))
    np.testing.assert_array_equal(found, np.stack([x[:, position]] * 2, 1))


def test_dynamic_destinations_of_engines() -> None:
    def kernel(x, where):
        index, tile = load(where), load(x)
        total = nl.ndarray((4, 8), nl.float32, buffer=nl.sbuf)
        nisa.memset(total, 0.0)
        register = nisa.register_alloc(index)
        nisa.tensor_scalar(total[:, nl.ds(register, 3)], tile, nl.multiply, 2.0)
        nisa.activation(total.ap([[8, 4], [1, 3]], scalar_offset=index, indirect_dim=1), nl.copy, tile, scale=3.0)
        nisa.memset(total[:, register], 7.0)
        return store(total)

    x = _random(1, 4, 3)
    expected = np.zeros((4, 8), np.float32)
    expected[:, 2:5] = 3 * x
    expected[:, 2] = 7.0
    np.testing.assert_array_equal(launch(kernel, x, np.array([[2]], np.int32)), expected)


def test_matmul_of_a_dynamic_operand_follows_its_index() -> None:
    """What was decoded for one value of the index is not what another value names."""

    def kernel(x, w):
        stationary, moving = load(x), load(w)
        out = nl.ndarray((2, 16, 8), nl.float32, buffer=nl.shared_hbm)
        for i in nl.dynamic_range(2):
            total = nl.ndarray((16, 8), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(total, stationary[:, i, :], moving)
            result = nl.ndarray((16, 8), nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(result, total)
            nisa.dma_copy(out[i], result)
        return out

    x, w = _random(2, 32, 2, 16).astype(BF16), _random(3, 32, 8).astype(BF16)
    expected = np.stack([x[:, i].astype(np.float32).T @ w.astype(np.float32) for i in range(2)])
    np.testing.assert_allclose(launch(kernel, x, w), expected, rtol=1e-5, atol=1e-5)


def test_index_is_read_when_the_instruction_runs() -> None:
    def kernel(x):
        index = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
        view = x.select(0, index)
        found = nl.ndarray((1, 2), x.dtype, buffer=nl.sbuf)
        for position in range(2):
            nisa.memset(index, position * 2)
            nisa.dma_copy(found[:, position : position + 1], view)
        return store(found)

    assert launch(kernel, np.array([[4], [5], [6]], np.float32)).tolist() == [[4, 6]]


def test_unwritten_index_of_an_offset() -> None:
    def kernel(x):
        found = nl.ndarray((1, 1), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(found, x.select(0, nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf, name="where")))
        return x

    with pytest.raises(UninitializedReadError, match=r"element \[0, 0\] of index where"):
        launch(kernel, np.ones((3, 1), np.float32))


# Columns


@pytest.mark.parametrize("engine", [nki.isa.engine.vector, nki.isa.engine.scalar])
@pytest.mark.parametrize("count", [1, 16, 37])
@pytest.mark.parametrize("partitions", [32, 128])
def test_gather_and_scatter_of_columns(engine: Any, count: int, partitions: int) -> None:
    def kernel(x, index, scattered):
        tile, chosen = load(x), load(index)
        found = nl.ndarray((partitions, count), x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(found, tile.indirect(chosen, count), engine=engine)
        back = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
        nisa.memset(back, 0.0)
        nisa.tensor_copy(back.indirect(load(scattered), count), found, engine=engine)
        return store(found), store(back)

    rng = np.random.default_rng(count)
    x = _random(4, partitions, 50)
    columns, others = rng.integers(0, 50, count), rng.permutation(50)[:count]
    found, back = launch(kernel, x, index_of(columns, partitions, 16), index_of(others, partitions, 16))
    np.testing.assert_array_equal(found, x[:, columns])
    expected = np.zeros_like(x)
    expected[:, others] = x[:, columns]
    np.testing.assert_array_equal(back, expected)


def test_columns_of_a_matmul_in_groups_of_32() -> None:
    def kernel(x, w, left, right, into):
        stationary, moving = load(x), load(w)
        total = nl.ndarray((16, 40), nl.float32, buffer=nl.psum)
        nisa.memset(total, 0.0)
        target = total.indirect(load(into)[0:16], 12)
        nisa.nc_matmul(target, stationary.indirect(load(left), 16), moving.indirect(load(right), 12), accumulate=False)
        result = nl.ndarray((16, 40), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(result, total)
        return store(result)

    rng = np.random.default_rng(5)
    x, w = _random(6, 64, 30).astype(BF16), _random(7, 64, 20).astype(BF16)
    left, right, into = rng.integers(0, 30, 16), rng.integers(0, 20, 12), rng.permutation(40)[:12]
    found = launch(kernel, x, w, index_of(left, 64, 32), index_of(right, 64, 32), index_of(into, 32, 16))
    expected = np.zeros((16, 40), np.float32)
    expected[:, into] = x.astype(np.float32)[:, left].T @ w.astype(np.float32)[:, right]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "instruction",
    [
        lambda dst, src: nisa.tensor_scalar(dst, src, nl.add, 0.0),
        lambda dst, src: nisa.tensor_tensor(dst, src, _zeros(dst.shape), nl.add),
        lambda dst, src: nisa.activation(dst, nl.copy, src),
        lambda dst, src: nisa.tensor_copy_predicated(dst, _same(src), _ones_of(src)),
    ],
)
def test_instructions_that_take_chosen_columns(instruction: Callable[[Any, Any], Any]) -> None:
    def kernel(x, index):
        tile, chosen = load(x), load(index)
        found = nl.ndarray((32, 20), x.dtype, buffer=nl.sbuf)
        nisa.memset(found, 0.0)
        instruction(found.indirect(chosen, 9), tile)
        return store(found)

    x, columns = _random(8, 32, 9), np.random.default_rng(9).permutation(20)[:9]
    expected = np.zeros((32, 20), np.float32)
    expected[:, columns] = x
    np.testing.assert_array_equal(launch(kernel, x, index_of(columns, 32, 16)), expected)


def _zeros(shape):
    tile = nl.ndarray(shape, nl.float32, buffer=nl.sbuf)
    nisa.memset(tile, 0.0)
    return tile


def _same(tile):
    copy = nl.ndarray(tile.shape, tile.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(copy, tile)
    return copy


def _ones_of(tile):
    ones = nl.ndarray(tile.shape, nl.uint8, buffer=nl.sbuf)
    nisa.memset(ones, 1)
    return ones


def column_kernel(x, index, build):
    build(load(x), load(index))
    return x


def _into(tile, count=4):
    return nl.ndarray((tile.shape[0], count), tile.dtype, buffer=nl.sbuf)


def _copy(tile, view, count=4, **options):
    nisa.tensor_copy(_into(tile, count), view, **options)


def _add(tile, left, right):
    nisa.tensor_tensor(_into(tile), left, right, nl.add)


@pytest.mark.parametrize(
    ("error", "words", "build"),
    [
        (EngineError, "engine gpsimd with an indirect", lambda t, i: _copy(t, t.indirect(i, 4), engine=GPSIMD)),
        (OutOfBoundsError, r"index 10 at position 2 .*10 columns", lambda t, i: _copy(t, t[:, 0:10].indirect(i, 4))),
        (ArgumentError, "num_elem 0; accepted: 1 to 64", lambda t, i: t.indirect(i, 0)),
        (ArgumentError, "up to 32, 16 partitions by 2 columns", lambda t, i: _copy(t, t.indirect(i, 40), 40)),
        (ShapeError, "as many partitions", lambda t, i: t.indirect(i[0:16])),
        (ViewError, "which is final", lambda t, i: t.indirect(i, 4).permute((0, 1))),
        (ViewError, "chosen by an index", lambda t, i: t.indirect(i, 4)[:, 0:2]),
        (ViewError, "already has a dynamic index", lambda t, i: t.indirect(i, 4).indirect(i, 4)),
        (ArgumentError, "no operand of this", lambda t, i: nisa.dma_copy(_into(t), t.indirect(i, 4))),
        (ArgumentError, "accepted: only dst, data1", lambda t, i: _add(t, t[:, 0:4], t.indirect(i, 4))),
        (ArgumentError, "no operand of this", lambda t, i: nisa.reciprocal(_into(t), t.indirect(i, 4))),
    ],
)  # fmt: skip
def test_faulty_columns(error: type, words: str, build: Callable[[Any, Any], None]) -> None:
    x, index = _random(10, 32, 20), index_of(np.array([1, 3, 10, 4]), 32, 16)
    index = np.concatenate([index, np.zeros_like(index)], 1)
    launch(column_kernel, x, index, lambda t, i: _copy(t, t.indirect(i, 4)))
    with pytest.raises(error, match=words):
        launch(column_kernel, x, index, build)


def test_columns_need_trn3() -> None:
    x, index = _random(11, 32, 20), index_of(np.arange(4), 32, 16)
    with pytest.raises(TargetError, match="indirect: target trn2; accepted: trn3"):
        launch(column_kernel, x, index, lambda t, i: t.indirect(i, 4), target="trn2")


def test_groups_that_differ_are_refused() -> None:
    x, index = _random(12, 32, 20), index_of(np.arange(4), 32, 16)
    index[16, 0] = 7
    with pytest.raises(NotSimulatedError, match="differs between groups of 16 partitions"):
        launch(column_kernel, x, index, lambda t, i: _copy(t, t.indirect(i, 4)))


@pytest.mark.parametrize(("source_at", "index_at"), [(64, 32), (96, 0)])
def test_index_starts_where_its_source_does(source_at: int, index_at: int) -> None:
    def kernel(x, index, at):
        tile, chosen = load(x, (source_at, 0)), load(index, (at, 4096))
        _copy(tile, tile.indirect(chosen, 4))
        return x

    x, index = _random(13, 32, 20), index_of(np.arange(4), 32, 16)
    launch(kernel, x, index, source_at)
    with pytest.raises(PartitionError, match=f"starts at partition {index_at}, src at {source_at}; accepted: the same"):
        launch(kernel, x, index, index_at)


def test_index_of_a_destination_starts_where_the_source_does() -> None:
    def kernel(x, index, at):
        tile, chosen = load(x, (32, 0)), load(index, (at, 4096))
        nisa.tensor_copy(nl.ndarray((32, 40), x.dtype, buffer=nl.sbuf).indirect(chosen, 20), tile)
        return x

    x, index = _random(14, 32, 20), index_of(np.arange(20), 32, 16)
    launch(kernel, x, index, 32)
    with pytest.raises(PartitionError, match=r"the index of dst .* starts at partition 64, src at 32"):
        launch(kernel, x, index, 64)


def test_scalar_engine_does_not_scatter_into_psum() -> None:
    def kernel(x, index, engine):
        target = nl.ndarray((32, 40), x.dtype, buffer=nl.psum).indirect(load(index), 20)
        nisa.tensor_copy(target, load(x), engine=engine)
        return x

    x, index = _random(15, 32, 20), index_of(np.arange(20), 32, 16)
    launch(kernel, x, index, nisa.engine.vector)
    with pytest.raises(WrongBufferError, match="scattered into psum by engine scalar"):
        launch(kernel, x, index, nisa.engine.scalar)


# Views of views


def _hbm(*shape):
    return nl.ndarray(shape, nl.float32, buffer=nl.shared_hbm)


def _index(*shape, dtype="int32"):
    return nl.ndarray(shape, dtype, buffer=nl.sbuf)


def _rows():
    return _hbm(50, 6, 8).vector_select(0, _index(20, 1))


def _offset():
    return _hbm(50, 6, 8).ap([[48, 20], [8, 6], [1, 8]], scalar_offset=_index(1, 1), indirect_dim=0)


@pytest.mark.parametrize(
    "build", [_rows, _offset, lambda: _rows().permute((0, 2, 1)), lambda: _hbm(4, 2).select(0, _index(1, 1))]
)
def test_dynamic_views_say_so(build: Callable[[], Any]) -> None:
    assert inside(lambda: build().is_indirect()) is True
    assert inside(lambda: _hbm(4, 2)[0:2].is_indirect()) is False


@pytest.mark.parametrize(
    ("view", "shape"),
    [
        (lambda: _rows()[:, 2], (20, 8)),
        (lambda: _rows()[:, 1:3, nl.ds(2, 4)], (20, 2, 4)),
        (lambda: _rows()[0:20, ...], (20, 6, 8)),
        (lambda: _rows().permute((0, 2, 1)), (20, 8, 6)),
        (lambda: _rows().expand_dim(1), (20, 1, 6, 8)),
        (lambda: _rows().expand_dim(1).squeeze_dim(1), (20, 6, 8)),
        (lambda: _rows().expand_dim(1).broadcast(1, 3), (20, 3, 6, 8)),
        (lambda: _rows().reshape_dim(1, (2, 3)), (20, 2, 3, 8)),
        (lambda: _rows().flatten_dims(1, 2), (20, 48)),
        (lambda: _rows().reshape((20, 4, 12)), (20, 4, 12)),
        (lambda: _rows().rearrange(("r", "a", "b"), ("r", ("a", "b"))), (20, 48)),
        (lambda: _rows().slice(1, 1, 4), (20, 3, 8)),
        (lambda: _rows().select(2, 3), (20, 6)),
        (lambda: _offset()[:, 2].permute((1, 0)).permute((1, 0))[:, 0:3], (20, 3)),
        (lambda: _offset().permute((1, 0, 2))[2], (20, 8)),
        (lambda: _hbm(50, 6, 8).select(1, _index(1, 1))[3:9, 2:4], (6, 2)),
        (lambda: _hbm(50, 6, 8).select(1, _index(1, 1)).reshape((5, 10, 8)), (5, 10, 8)),
    ],
)  # fmt: skip
def test_views_of_dynamic_views(view: Callable[[], Any], shape: tuple[int, ...]) -> None:
    def shaped():
        made = view()
        assert made.is_indirect()
        return made.shape

    assert inside(shaped) == shape


@pytest.mark.parametrize(
    ("words", "view"),
    [
        ("already has a dynamic index", lambda: _rows().vector_select(0, _index(4, 1))),
        ("already has a dynamic index", lambda: _rows().select(1, _index(1, 1))),
        ("already has a dynamic index", lambda: _rows()[:, nisa.register_alloc(0)]),
        ("already has a dynamic index", lambda: _rows().ap([[48, 4], [1, 8]], scalar_offset=_index(1, 1))),
        ("not supported on .* with a dynamic index", lambda: _rows().ap([[48, 4], [1, 8]])),
        ("already has a dynamic index", lambda: _rows().view("bfloat16")),
        ("already has a dynamic index", lambda: _offset().view("int32")),
        ("dimension 0 .* is chosen by an index", lambda: _rows()[0:4]),
        ("dimension 0 .* is chosen by an index", lambda: _rows()[3]),
        ("dimension 0 .* is chosen by an index", lambda: _rows().slice(0, 0, 4)),
        ("dimension 0 .* is chosen by an index", lambda: _offset()[0:4]),
        ("dimension 1 .* is chosen by an index", lambda: _offset().permute((1, 0, 2))[:, 0:4]),
        ("accepted: 0 first", lambda: _rows().permute((1, 0, 2))),
        ("accepted: 1 and up", lambda: _rows().expand_dim(0)),
        ("dimension 0 .* is chosen by an index", lambda: _rows().reshape_dim(0, (4, 5))),
        ("dimension 0 .* is chosen by an index", lambda: _rows().flatten_dims(0, 1)),
        (r"accepted: \(20,\) first", lambda: _rows().reshape((40, 3, 8))),
        ("partition dimension", lambda: _index(4, 8).select(0, _index(1, 1))),
        ("is broadcast", lambda: _hbm(1, 8).broadcast(0, 4).select(0, _index(1, 1))),
    ],
)  # fmt: skip
def test_views_that_dynamic_views_refuse(words: str, view: Callable[[], Any]) -> None:
    with pytest.raises(ViewError, match=words):
        inside(view)


def test_chain_of_views_gathers_the_right_elements() -> None:
    def kernel(x, index):
        found = nl.ndarray((20, 4, 3), x.dtype, buffer=nl.sbuf)
        view = x[:, 1:5, :].vector_select(0, load(index)).permute((0, 2, 1))[:, 2:5, :].permute((0, 2, 1))
        nisa.dma_copy(found, view)
        return store(found)

    x = _random(16, 50, 6, 8)
    index = np.random.default_rng(17).integers(0, 50, (20, 1)).astype(np.int32)
    np.testing.assert_array_equal(launch(kernel, x, index), x[index[:, 0], 1:5, 2:5])


def test_rows_of_a_strided_table() -> None:
    """Every second row of the table is a table of its own, with as many rows as it shows."""

    def kernel(x, index):
        found = nl.ndarray((4, 8), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(found, x[1:20:2].vector_select(0, load(index)))
        return store(found)

    x = _random(18, 50, 8)
    index = np.array([[9], [0], [4], [4]], np.int32)
    np.testing.assert_array_equal(launch(kernel, x, index), x[1:20:2][index[:, 0]])
    index[2] = 10
    with pytest.raises(OutOfBoundsError, match=r"index 10 at position 2 .* has 10 rows"):
        launch(kernel, x, index)


def test_pattern_offset_that_reads_two_ways_is_refused() -> None:
    def pattern_of(build):
        made = build(nl.ndarray((4, 8), nl.float32, buffer=nl.sbuf))
        return made.offset, made.shape

    assert inside(lambda: pattern_of(lambda t: t[0:2].ap([[8, 2], [1, 3]], offset=5))) == (5, (2, 3))
    assert inside(lambda: pattern_of(lambda t: t[:, 2:].ap([[8, 2], [1, 3]]))) == (2, (2, 3))
    with pytest.raises(ViewError, match=r"offset 5 on a view of .* that starts at byte 8"):
        inside(lambda: pattern_of(lambda t: t[:, 2:].ap([[8, 2], [1, 3]], offset=5)))


def test_scalar_operands_chosen_by_a_register_are_recorded_and_checked_one_by_one():
    x = np.arange(32, dtype=np.float32).reshape(4, 8)

    def kernel(x: Any) -> Any:
        tile, out = load(x), nl.ndarray((4, 8), nl.float32)
        chosen = nisa.register_alloc(2)
        nisa.tensor_scalar(out, tile, nl.multiply, tile[:, nl.ds(chosen, 1)])
        with pytest.raises(ShapeError, match="one element per partition"):
            nisa.tensor_scalar(out, tile, nl.multiply, tile[:, nl.ds(chosen, 2)])
        return store(out)

    finished = run(kernel, x, options=Options(target="trn3"))
    np.testing.assert_array_equal(finished.outputs, x * x[:, 2:3])
    (record,) = [r for r in finished.cores[0].stream if r.op == "tensor_scalar"]
    assert [region.shape for region in record.reads] == [(4, 8), (4, 1)]


@pytest.mark.parametrize(("source", "target"), [("int32", "uint32"), ("int32", "float32"), ("int16", "int32")])
def test_addresses_are_not_calculated_by_index(source: str, target: str) -> None:
    def build(tile: Any, index: Any) -> None:
        integers, out = nl.ndarray(tile.shape, source), nl.ndarray((tile.shape[0], 4), target)
        nisa.memset(integers, 3)
        nisa.tensor_scalar(out, integers.indirect(index, 4), nl.multiply, 2.0)

    x, index = _random(10, 32, 20), index_of(np.array([1, 3, 10, 4]), 32, 16)
    if (source, target) == ("int32", "uint32"):
        with pytest.raises(DtypeError, match="address arithmetic takes no index"):
            launch(column_kernel, x, index, build)
    else:
        launch(column_kernel, x, index, build)
