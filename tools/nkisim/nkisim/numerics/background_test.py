"""Products on other threads: the same bits, in order, there when somebody looks."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import nki.isa
import nki.language
from nkisim import Options, dtypes, run
from nkisim.errors import PartitionError
from nkisim.numerics import background, bf16_product
from nkisim.numerics.background import Products

nisa: Any = nki.isa
nl: Any = nki.language
with_bf16 = pytest.mark.skipif(not bf16_product.available(), reason="this CPU has no bf16 dot products")


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


class Append:
    """Stands for a product: `digit` becomes the last digit of each element, so that the order shows."""

    def __init__(self, digit: int, seconds: float = 0.0) -> None:
        self.digit, self.seconds, self.by = digit, seconds, set[str]()

    def __call__(self, target: np.ndarray, onto: bool, part: slice) -> None:
        time.sleep(self.seconds)
        self.by.add(threading.current_thread().name)
        target[:, part] = (10 * target[:, part] if onto else 0) + self.digit


@pytest.mark.parametrize("columns", [1, 31, 64, 77, 512])
def test_products_of_a_tile_stay_in_order(threads: int, columns: int) -> None:
    target, products = np.full((3, columns), np.nan), Products((0, columns, 1))
    for digit in range(1, 6):
        products.add(Append(digit, 0.001 * (digit % 2)), target, digit != 1)
    products.finish()
    assert (target == 12345).all()
    for digit in range(6, 8):
        products.add(Append(digit), target, True)
    products.finish()
    assert (target == 1234567).all()


def test_other_threads_take_part(threads: int) -> None:
    work = [Append(1, 0.05) for _ in range(4)]
    for each in work:
        products = Products((0, 128, 1))
        products.add(each, np.zeros((1, 128)), False)
    products.finish()
    deadline = time.monotonic() + 10
    while threads > 1 and not all(each.by for each in work) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert all(each.by for each in work)
    assert ("nkisim products" in set().union(*(each.by for each in work))) == (threads > 1)


def _one_more(target: np.ndarray, onto: bool, part: slice) -> None:
    target[:, part] += 1


def test_many_products_of_one_tile(threads: int) -> None:
    count = 3 * background._MOST_PER_TILE + 1
    target, products = np.zeros((1, 128)), Products((0, 128, 1))
    for _ in range(count):
        products.add(_one_more, target, True)
    products.finish()
    assert (target == count).all()


def test_a_child_process_has_threads_of_its_own(threads: int) -> None:
    products = Products((0, 128, 1))
    products.add(Append(1), np.zeros((1, 128)), False)
    products.finish()
    child = os.fork()
    if child == 0:
        target, products = np.zeros((1, 128)), Products((0, 128, 1))
        products.add(Append(7, 0.01), target, False)
        products.finish()
        os._exit(int(not (target == 7).all()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@with_bf16
@pytest.mark.parametrize(("rows", "columns", "partitions"), [(128, 512, 128), (2, 1, 32), (34, 77, 96), (50, 1000, 64)])
@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_blocks_of_columns_have_the_bits_of_the_whole(rows: int, columns: int, partitions: int, blocks: int) -> None:
    random, kind = np.random.default_rng(rows), dtypes.float8_e4m3fn_x4
    words = [random.standard_normal((partitions, 4 * n)).astype(ml_dtypes.float8_e4m3fn) for n in (rows, columns)]
    scales = [random.integers(110, 140, (partitions // 8, n)).astype(np.uint8) for n in (rows, columns)]
    left = bf16_product.stationary(words[0].view(np.uint32), kind, scales[0])
    right = bf16_product.moving(words[1].view(np.uint32), kind, scales[1])
    whole = random.standard_normal((rows, columns)).astype(np.float32)
    pieces = whole.copy()
    for onto in (True, True, False):
        bf16_product.accumulate(left, right, whole, onto)
        edges = sorted({columns * block // blocks for block in range(blocks + 1)})
        for start, stop in itertools.pairwise(edges):
            bf16_product.accumulate(left, right, pieces, onto, slice(start, stop))
        np.testing.assert_array_equal(pieces, whole)


def _kernel(x: Any, scale: Any, order: tuple[int, ...]) -> Any:
    """Products into one PSUM tile, of which each goes to all its columns or to half of them, as `order` says."""
    data, scales = nl.ndarray((32, 128), nl.float8_e4m3fn_x4), nl.ndarray((32, 128), nl.uint8)
    nisa.dma_copy(data, x.view(nl.float8_e4m3fn_x4))
    nisa.dma_copy(scales[0:4], scale)
    psum = nl.ndarray((128, 128), nl.float32, buffer=nl.psum)
    nisa.nc_matmul_mx(psum, data, data, scales, scales)
    for part in order:
        columns = slice(None) if part == 2 else slice(64 * part, 64 * part + 64)
        nisa.nc_matmul_mx(psum[:, columns], data, data[:, columns], scales, scales[:, columns])
        if part == 2:
            nisa.memset(data, 0)
            nisa.dma_copy(data, x.view(nl.float8_e4m3fn_x4))
    tile, out = nl.ndarray((128, 128), nl.float32), nl.ndarray((128, 128), nl.float32, buffer=nl.shared_hbm)
    nisa.tensor_copy(tile, psum)
    nisa.nc_matmul_mx(psum, data, data, scales, scales)
    nisa.dma_copy(out, tile)
    return out


def test_a_kernel_gives_the_same_bits_whatever_the_threads(threads: int) -> None:
    """Products of other columns of the tile, and operands overwritten before anybody looked, change nothing."""
    random = np.random.default_rng(1)
    x = random.standard_normal((32, 512)).astype(ml_dtypes.float8_e4m3fn).view(np.uint32)
    scale = random.integers(110, 140, (4, 128)).astype(np.uint8)
    order = tuple(int(n) for n in random.integers(0, 3, 40))
    found = run(_kernel, x, scale, order, options=Options(target="trn3")).outputs
    torch.set_num_threads(1)
    np.testing.assert_array_equal(found, run(_kernel, x, scale, order, options=Options(target="trn3")).outputs)


def test_after_a_run_the_rest_is_computed_and_can_still_be_looked_at(threads: int) -> None:
    kept = []

    def failing(x: Any, scale: Any) -> None:
        data, scales = nl.ndarray((32, 128), nl.float8_e4m3fn_x4), nl.ndarray((32, 128), nl.uint8)
        nisa.dma_copy(data, x.view(nl.float8_e4m3fn_x4))
        nisa.dma_copy(scales[0:4], scale)
        kept.append(nl.ndarray((128, 128), nl.float32, buffer=nl.psum))
        for _ in range(20):
            nisa.nc_matmul_mx(kept[0], data, data, scales, scales)
        nisa.memset(nl.ndarray((8, 8), nl.float32)[3:5], 0)

    x = np.full((32, 128), 0x38383838, np.uint32)  # ones
    with pytest.raises(PartitionError):
        run(failing, x, np.full((4, 128), 127, np.uint8), options=Options(target="trn3"))
    assert (kept[0].array() == 20 * 128).all()
    deadline = time.monotonic() + 10
    while background._unfinished and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not background._unfinished
