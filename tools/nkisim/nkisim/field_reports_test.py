"""The cases of the field reports by id (table in the root README), with the outcomes given there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nki
import nki.isa
import nki.language
from nkisim import run
from nkisim.errors import (
    CapacityError,
    OutOfBoundsError,
    OutputNotWrittenError,
    PartitionError,
    UninitializedReadError,
)

nisa: Any = nki.isa  # kernels here break its types on purpose
nl: Any = nki.language


def launch(kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return nki.simulate(kernel)(*args, **kwargs)


def _ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


# h1


def test_h1_address_past_the_end_of_sbuf() -> None:
    def kernel(x, address):
        tile = nl.ndarray((128, 1000), nl.float32, buffer=nl.sbuf, name="kv", address=(0, address))
        nisa.dma_copy(tile, x)
        return x

    launch(kernel, _ones(128, 1000), 4000)
    with pytest.raises(CapacityError, match=r"tensor kv \[128, 1000\] takes 4000 bytes .* byte 400000 .* usable bytes"):
        launch(kernel, _ones(128, 1000), 400000)


# h2


def _accumulators(x, count):
    tiles = [nl.ndarray((128, 512), nl.float32, buffer=nl.psum, name=f"acc{i}") for i in range(count)]
    for tile in tiles:
        nisa.memset(tile, 0.0, engine=nisa.engine.vector)
    total = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
    for tile in tiles:
        nisa.tensor_copy(total, tile)
    nisa.dma_copy(x, total)
    return x


@pytest.mark.parametrize("count", [1, 4, 8])
def test_h2_accumulators_take_a_bank_each(count: int) -> None:
    assert run(_accumulators, _ones(128, 512), count).cores[0].memory.psum_peak_banks == count


def test_h2_ninth_accumulator_is_refused() -> None:
    with pytest.raises(CapacityError, match="PSUM: 9 banks live at once; accepted: at most 8") as caught:
        launch(_accumulators, _ones(128, 512), 9)
    assert all(f"acc{i} (float32[128, 512])" in str(caught.value) for i in range(9))


# h3


def test_h3_psum() -> None:
    def without(x):
        tile = nl.ndarray((128, 8), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(tile, x)
        nisa.dma_copy(x, tile)
        return x

    def unwritten(x):
        acc = nl.ndarray((128, 8), nl.float32, buffer=nl.psum, name="acc")
        tile = nl.ndarray((128, 8), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(tile, acc)
        return x

    assert run(without, _ones(128, 8)).cores[0].memory.psum_peak_banks == 0
    with pytest.raises(UninitializedReadError, match=r"src: element \[0, 0\] of this view of acc \[128, 8\]"):
        launch(unwritten, _ones(128, 8))


# h4


def test_h4_start_partition() -> None:
    def kernel(x, start):
        tile = nl.ndarray((128, 8), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(tile, x)
        nisa.tensor_copy(tile[start : start + 32], tile[0:32])
        return x

    launch(kernel, _ones(128, 8), 32)
    with pytest.raises(PartitionError, match="start partition 1; accepted: 0, 32, 64, 96"):
        launch(kernel, _ones(128, 8), 1)


# h7


def test_h7_slices_of_different_ranks() -> None:
    def kernel(a, b, m):
        nisa.dma_copy(a[:, m, :], b[m, :, :])
        return a

    a, b = _ones(6, 4, 10), np.random.default_rng(0).standard_normal((4, 6, 10)).astype(np.float32)
    launch(kernel, a, b, 3)
    np.testing.assert_array_equal(a[:, 3], b[3])
    assert (a[:, :3] == 1).all()


# h11


def test_h11_output_never_written() -> None:
    def kernel(x, rows):
        out = nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm, name="out")
        nisa.dma_copy(out[0:rows], x[0:rows])
        return out

    np.testing.assert_array_equal(launch(kernel, _ones(4, 8), 4), _ones(4, 8))
    with pytest.raises(OutputNotWrittenError, match=r"output out \[4, 8\]: element \[3, 0\] was never written"):
        launch(kernel, _ones(4, 8), 3)


def test_h11_unknown_keyword() -> None:
    def kernel(x):
        nisa.dma_copy(x, x, prioritee=1)
        return x

    with pytest.raises(TypeError, match="prioritee"):
        launch(kernel, _ones(4, 8))
    with pytest.raises(TypeError, match="rowz"):
        launch(kernel, _ones(4, 8), rowz=3)


# h12


@pytest.mark.parametrize("rows", [127, 128, 129, 255, 257])
def test_h12_ragged_rows(rows: int) -> None:
    def kernel(x, read_all):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        for start in range(0, rows, 128):
            here = min(128, rows - start)
            tile = nl.ndarray((128, 8), x.dtype, buffer=nl.sbuf, name="tile")
            nisa.dma_copy(tile[0:here], x[start : start + here])
            doubled = nl.ndarray((128, 8), x.dtype, buffer=nl.sbuf)
            used = 128 if read_all else here
            nisa.tensor_scalar(doubled[0:used], tile[0:used], nl.multiply, 2.0)
            nisa.dma_copy(out[start : start + here], doubled[0:here])
        return out

    x = np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)
    np.testing.assert_array_equal(launch(kernel, x, False), 2 * x)
    if rows % 128:
        with pytest.raises(UninitializedReadError, match=rf"data: element \[{rows % 128}, 0\] of this view of tile"):
            launch(kernel, x, True)


# m9


def _gather(table, index, mode):
    out = nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm)
    rows = nl.ndarray((4, 1), nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(rows, index)
    found = nl.ndarray((4, 8), nl.float32, buffer=nl.sbuf)
    nisa.memset(found, -7.0)
    nisa.dma_copy(found, table.vector_select(0, rows), oob_mode=mode)
    nisa.dma_copy(out, found)
    return out


def test_m9_index_one_past_the_table() -> None:
    table = np.random.default_rng(1).standard_normal((50, 8)).astype(np.float32)
    index = np.array([[3], [0], [50], [49]], np.int32)
    with pytest.raises(OutOfBoundsError, match=r"index 50 at position 2 .* on table, which has 50 rows"):
        launch(_gather, table, index, nisa.oob_mode.error)
    found = launch(_gather, table, index, nisa.oob_mode.skip)
    np.testing.assert_array_equal(found[[0, 1, 3]], table[[3, 0, 49]])
    assert (found[2] == -7.0).all()
