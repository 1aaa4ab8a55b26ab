"""Tests for loops, registers and the order of instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nki
import nki.isa
import nki.language
from nkisim import Options, run
from nkisim.errors import (
    ArgumentError,
    DependencyError,
    DtypeError,
    LoopError,
    OutOfBoundsError,
    RegisterError,
    ShapeError,
    ViewError,
)

nisa: Any = nki.isa  # kernels here break its types on purpose
nl: Any = nki.language


def launch(kernel: Callable[..., Any], *args: Any) -> Any:
    return run(kernel, *args).outputs


def inside(body: Callable[[], Any]) -> Any:
    """What `body` returns when a kernel calls it."""
    found = []
    launch(lambda: found.append(body()))
    return found[0]


def test_unrolled_ranges_are_pythons_and_deprecated() -> None:
    for loop in (nl.affine_range, nl.sequential_range, nl.static_range):
        with pytest.warns(DeprecationWarning, match=rf"nl\.{loop.__name__} is deprecated; use range"):
            assert list(loop(4)) == [0, 1, 2, 3]
        with pytest.warns(DeprecationWarning, match="deprecated"):
            assert list(loop(2, 9, 3)) == [2, 5, 8]
        with pytest.warns(DeprecationWarning, match="deprecated"), pytest.raises(ArgumentError, match=r"start 1\.5"):
            loop(1.5)


def loaded_register(tensor):
    tile = nl.ndarray((1, 1), tensor.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, tensor)
    register = nisa.register_alloc()
    nisa.register_load(register, tile)
    return register


def dynamic_range_kernel(x, count):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    zeros = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.memset(zeros, 0.0)
    nisa.dma_copy(out, zeros)
    for i in nl.dynamic_range(1, loaded_register(count), 2):
        tile = nl.ndarray((1, x.shape[1]), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, x.ap([[x.shape[1], 1], [1, x.shape[1]]], scalar_offset=i))
        nisa.dma_copy(out[i], tile)
    return out


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8])
def test_dynamic_range_to_a_bound_from_memory(count: int) -> None:
    x = np.random.default_rng(count).standard_normal((8, 5)).astype(np.float32)
    expected = np.zeros_like(x)
    expected[1:count:2] = x[1:count:2]
    np.testing.assert_array_equal(launch(dynamic_range_kernel, x, np.array([[count]], np.int32)), expected)


def fori_kernel(data, count):
    out = nl.ndarray(data.shape, data.dtype, buffer=nl.shared_hbm)
    zeros = nl.ndarray(data.shape, data.dtype, buffer=nl.sbuf)
    nisa.memset(zeros, 0.0)
    nisa.dma_copy(out, zeros)
    tile = nl.ndarray((1, 1), data.dtype, buffer=nl.sbuf)

    def body(i):
        nisa.dma_copy(tile, data.ap([[1, 1], [1, 1]], scalar_offset=i, indirect_dim=1))
        nisa.dma_copy(out.ap([[1, 1], [1, 1]], scalar_offset=i, indirect_dim=1), tile)

    nl.fori_loop(0, loaded_register(count), body)
    return out


@pytest.mark.parametrize("count", [0, 3, 9])
def test_fori_loop(count: int) -> None:
    data = np.random.default_rng(0).standard_normal((1, 9)).astype(np.float32)
    expected = np.where(np.arange(9) < count, data, 0)
    np.testing.assert_array_equal(launch(fori_kernel, data, np.array([[count]], np.int32)), expected)


def test_fori_loop_past_the_tensor() -> None:
    data = np.zeros((1, 9), np.float32)
    with pytest.raises(OutOfBoundsError, match="dynamic offset 9 on data; accepted: 0 to 8"):
        launch(fori_kernel, data, np.array([[10]], np.int32))


def while_kernel(value, count, bare):
    out = nl.ndarray((1, 1), nl.float32, buffer=nl.shared_hbm)
    step, total, left, one = (nl.ndarray((1, 1), d, buffer=nl.sbuf) for d in ("float32", "float32", "int32", "int32"))
    nisa.dma_copy(step, value)
    nisa.dma_copy(left, count)
    nisa.memset(total, 0.0)
    nisa.memset(one, 1)
    register = nisa.register_alloc()
    nisa.register_load(register, left)

    def body(r):
        nisa.tensor_tensor(total, total, step, nl.add)
        nisa.tensor_tensor(left, left, one, nl.subtract)
        nisa.register_load(r, left)
        return r

    if bare:
        while register:
            body(register)
    else:
        nl.while_loop(register, body)
    nisa.dma_copy(out, total)
    return out


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_while(count: int, bare: bool) -> None:
    found = launch(while_kernel, np.full((1, 1), 2.5, np.float32), np.array([[count]], np.int32), bare)
    assert found[0, 0] == 2.5 * count


def test_dynamic_entries_of_an_index() -> None:
    def kernel(x):
        out = nl.ndarray((3, 6), x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((3, 16), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, x[nisa.register_alloc(2), :, :])
        nisa.dma_copy(out, tile[:, nl.ds(nisa.register_alloc(7), 6)])
        return out

    x = np.random.default_rng(1).standard_normal((4, 3, 16)).astype(np.float32)
    np.testing.assert_array_equal(launch(kernel, x), x[2, :, 7:13])


@pytest.mark.parametrize(("start", "good"), [(10, True), (11, False), (-1, False)])
def test_dynamic_slice_stays_within_its_dimension(start: int, good: bool) -> None:
    def kernel(x):
        tile = nl.ndarray((3, 6), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, x[:, nl.ds(nisa.register_alloc(start), 6)])
        return x

    x = np.zeros((3, 16), np.float32)
    if good:
        launch(kernel, x)
    else:
        with pytest.raises(OutOfBoundsError, match=f"dynamic offset {start} on x; accepted: 0 to 10"):
            launch(kernel, x)


def _tile(shape=(4, 8), dtype="float32"):
    return nl.ndarray(shape, dtype, buffer=nl.sbuf)


@pytest.mark.parametrize(
    ("error", "words", "body"),
    [
        (LoopError, r"within nl\.no_reorder", lambda: _within_order(lambda: nl.dynamic_range(3))),
        (LoopError, r"within nl\.no_reorder", lambda: _within_order(lambda: nl.fori_loop(0, 2, lambda i: None))),
        (LoopError, r"within nl\.no_reorder", lambda: _within_order(lambda: nl.while_loop(unset(), None))),
        (ArgumentError, "step 0; accepted: a positive integer", lambda: nl.fori_loop(0, 4, lambda i: None, 0)),
        (ArgumentError, "step <register", lambda: nl.dynamic_range(0, 4, nisa.register_alloc(1))),
        (ArgumentError, "lower bound 0.5", lambda: nl.dynamic_range(0.5, 4)),
        (RegisterError, "upper bound: the register's value is not known", lambda: nl.dynamic_range(unset())),
        (ArgumentError, "body_fun returned 1; accepted: None", lambda: nl.fori_loop(0, 2, lambda i: 1)),
        (ArgumentError, "body_fun is 3", lambda: nl.fori_loop(0, 2, 3)),
        (ArgumentError, "init is 1; accepted: a register", lambda: nl.while_loop(1, lambda r: r)),
        (ArgumentError, "returned is None", lambda: nl.while_loop(nisa.register_alloc(1), lambda r: None)),
        (RegisterError, "variable of a dynamic loop", lambda: nl.fori_loop(0, 2, lambda i: nisa.register_move(i, 3))),
        (RegisterError, "only the device knows", lambda: range(nisa.register_alloc(3))),
        (RegisterError, "only the device knows", lambda: int(nisa.register_alloc(3))),
        (RegisterError, "Python arithmetic", lambda: nisa.register_alloc(3) * 128),
        (RegisterError, "Python arithmetic", lambda: nisa.register_alloc(3) == 3),
        (RegisterError, "not known", lambda: bool(unset())),
        (ArgumentError, "x is 'a'", lambda: nisa.register_alloc("a")),
        (ArgumentError, "src is 4294967296", lambda: nisa.register_move(unset(), 1 << 32)),
        (ArgumentError, "dst is 3", lambda: nisa.register_move(3, 4)),
        (ShapeError, "accepted: one element", lambda: nisa.register_load(unset(), _tile())),
        (DtypeError, "numbers of up to 32 bits", lambda: nisa.register_load(unset(), _tile((1, 1), "float8_e5m2_x4"))),
        (ArgumentError, "dst is None", lambda: nisa.register_load(None, _tile((1, 1)))),
        (ArgumentError, "src is 3; accepted: a register", lambda: nisa.register_store(_tile((1, 1)), 3)),
        (ViewError, "dimension 0 of .* partition dimension", lambda: _tile()[nisa.register_alloc(0)]),
        (ViewError, "2 dynamic entries", lambda: _tile((4, 8, 8))[:, unset(), unset()]),
        (ArgumentError, "slice start", lambda: _tile()[:, nisa.register_alloc(0) :]),
    ],
)  # fmt: skip
def test_faults(error: type, words: str, body: Callable[[], Any]) -> None:
    with pytest.raises(error, match=words):
        inside(body)


def unset() -> Any:
    return nisa.register_alloc()


def _within_order(body: Callable[[], Any]) -> None:
    with nl.no_reorder():
        body()


def test_registers() -> None:
    def kernel(x):
        out = nl.ndarray((1, 4), nl.int32, buffer=nl.shared_hbm)
        tile = _tile((1, 4), "int32")
        first, second = nisa.register_alloc(-5), nisa.register_alloc()
        nisa.register_move(second, first)
        nisa.register_move(first, 7)
        third = nisa.register_alloc(x[0:1])
        nisa.register_store(tile[:, 0:1], first)
        nisa.register_store(tile[:, 1:2], second)
        nisa.register_store(tile[:, 2:3], third)
        nisa.register_store(x[1:2], third)
        nisa.register_load(third, x[2:3])
        nisa.register_store(tile[:, 3:4], third)
        nisa.dma_copy(out, tile)
        return out

    x = np.array([2**31 - 1, 0, 3], np.int32)
    assert launch(kernel, x).tolist() == [[7, -5, 2**31 - 1, 3]]
    assert x.tolist() == [2**31 - 1, 2**31 - 1, 3]


def test_versions() -> None:
    def kernel():
        assert nisa.get_nc_version() >= nisa.nc_version.gen3
        return nisa.get_nc_version(), nisa.get_nc_sub_version()

    assert run(kernel, options=Options(target="trn2")).outputs == (nisa.nc_version.gen3, 0)
    assert run(kernel, options=Options(target="trn3")).outputs == (nisa.nc_version.gen4, 0)


def test_tensors_end_with_the_body_that_made_them() -> None:
    def kernel(x, outside):
        kept = [_tile()] if outside else []

        def body(i):
            if not outside:
                kept.append(_tile())
            nisa.dma_copy(kept[0], x)

        nl.fori_loop(0, 1, body)
        nisa.dma_copy(x, kept[0])
        return x

    x = np.zeros((4, 8), np.float32)
    launch(kernel, x, True)
    with pytest.raises(LoopError, match=r"was made in the body of a dynamic loop .* used after it by dma_copy"):
        launch(kernel, x, False)


def test_order_is_kept_in_blocks() -> None:
    def kernel(x):
        tile = _tile()
        with nl.no_reorder():
            nisa.dma_copy(tile, x)
            nisa.dma_copy(x, tile)
        return x

    assert run(kernel, np.zeros((4, 8), np.float32)).cores[0].ordered == [(0, 2)]


def test_dependencies_by_name() -> None:
    def kernel(x):
        tile = _tile()
        nisa.dma_copy(tile, x, name="load")
        for i in range(3):
            nisa.tensor_copy(_tile(), tile, name=f"copy{i}")
            nisa.tensor_copy(_tile(), tile, name="twice")
        return x

    x = np.zeros((4, 8), np.float32)
    scheduled = nki.jit(kernel).with_schedule([("copy2", "copy0"), ("copy1", ["load", "copy2"])])
    assert run(scheduled, x).cores[0].dependencies == {5: [1], 3: [0, 5]}
    for edges, error, words in (
        ([("copy9", "load")], DependencyError, "0 instructions are called 'copy9'"),
        ([("load", "twice")], DependencyError, "3 instructions are called 'twice'"),
        ([("copy1", "copy0"), ("copy0", "copy1")], DependencyError, "wait for each other"),
        ("copy1", ArgumentError, "accepted: a list of pairs"),
        ([("copy1",)], ArgumentError, "accepted: a pair"),
    ):
        with pytest.raises(error, match=words):
            run(nki.jit(kernel).with_schedule(edges), x)


def test_dependencies() -> None:
    def kernel(x):
        tile = _tile()
        a = nisa.dma_copy(tile, x, name="load")
        b = nisa.tensor_copy(_tile(), tile)
        c = nisa.tensor_copy(_tile(), tile)
        assert c.depends_on(b, a) is c
        handles = []
        nl.fori_loop(0, 2, lambda i: handles.append(nisa.tensor_copy(_tile(), tile).depends_on(a)))
        with pytest.raises(DependencyError, match="dynamic loop that"):
            c.depends_on(handles[0])
        with pytest.raises(DependencyError, match="wait for each other"):
            a.depends_on(c)
        with pytest.raises(DependencyError, match="wait for each other"):
            a.depends_on(a)
        with pytest.raises(ArgumentError, match=r"accepted: what a nki\.isa instruction returned"):
            a.depends_on("load")
        assert repr(a) == "<load, instruction 0>"
        return x

    launch(kernel, np.zeros((4, 8), np.float32))


def test_dependencies_between_loops() -> None:
    def kernel(x):
        tile, made = _tile(), []
        nisa.dma_copy(tile, x)

        def body(i):
            first = nisa.tensor_copy(_tile(), tile)
            made.append(nisa.tensor_copy(_tile(), tile).depends_on(first))

        nl.fori_loop(0, 2, body)
        nl.fori_loop(0, 1, lambda i: made.append(nisa.tensor_copy(_tile(), tile)))
        with pytest.raises(DependencyError, match="dynamic loop that"):
            made[-1].depends_on(made[0])
        return x

    launch(kernel, np.zeros((4, 8), np.float32))
