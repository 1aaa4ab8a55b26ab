"""Tensors without an address side by side: placed as the partition rules allow, and counted partition by partition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki.isa
import nki.language
from common import hardware
from nkisim import Options, dtypes, placement, run
from nkisim.enums import MemoryRegion, engine
from nkisim.errors import CapacityError
from nkisim.placement import Placed
from nkisim.record import Record
from nkisim.storage import Allocation, Region

nisa: Any = nki.isa
nl: Any = nki.language
LIMIT = hardware.get("trn3").sbuf_usable_bytes_per_partition
THIRD = LIMIT // 3 // 64 * 64
X = np.zeros((128, 1), np.uint8)


def peak(kernel: Any, *arguments: Any) -> int:
    return run(kernel, X, *arguments, options=Options(target="trn3", numerics=False)).cores[0].memory.sbuf_peak_bytes


def filled(partitions: int, size: int = THIRD, **where: Any) -> Any:
    tile = nl.ndarray((partitions, size), nl.uint8, **where)
    nisa.memset(tile, 0)
    return tile


def keep(*tiles: Any) -> None:
    """All are live until here."""
    for tile in tiles:
        nisa.tensor_copy(tile[:, 0:1], tile[:, 1:2])


@pytest.mark.parametrize(
    ("heights", "stacked"),
    [((32,) * 12, 3), ((64,) * 6, 3), ((32, 32, 64, 128, 128), 3), ((64, 32, 32, 32, 32), 2), ((40, 1, 5, 90, 90), 3)],
)
def test_small_tensors_lie_side_by_side(heights: tuple[int, ...], stacked: int) -> None:
    def kernel(x: Any) -> None:
        keep(*[filled(height) for height in heights])

    assert len(heights) * THIRD > LIMIT
    assert peak(kernel) == stacked * THIRD


@pytest.mark.parametrize("heights", [(65, 65, 128, 100), (32,) * 13, (64,) * 7, (33, 64, 64, 32, 128, 128)])
def test_what_fits_in_no_place_is_refused(heights: tuple[int, ...]) -> None:
    def kernel(x: Any) -> None:
        keep(*[filled(height) for height in heights])

    with pytest.raises(CapacityError, match=f"SBUF: {4 * THIRD} bytes per partition live at once") as caught:
        peak(kernel)
    assert sum(line.split()[0] == str(THIRD) for line in str(caught.value).splitlines()) == 4


def test_what_fits_from_partition_0_on_stays_there() -> None:
    def kernel(x: Any) -> None:
        keep(filled(32), filled(32))

    assert peak(kernel) == 2 * THIRD


def test_tensors_with_an_address_hold_their_quadrants() -> None:
    def kernel(x: Any, rows: int) -> None:
        fixed = filled(rows, 3 * THIRD, address=(0, 0))
        keep(fixed, *[filled(32) for _ in range(6)])

    assert peak(kernel, 64) == 3 * THIRD
    with pytest.raises(CapacityError, match="at fixed addresses"):
        peak(kernel, 128)


def product(stationary: Any, moving: Any) -> None:
    psum = nl.ndarray((2, 8), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(psum, stationary[:, 0:4].view(nl.bfloat16), moving[:, 0:16].view(nl.bfloat16))


def test_operands_of_a_product_lie_in_the_same_partitions() -> None:
    def kernel(x: Any, together: bool) -> None:
        tiles = [filled(1) for _ in range(4)]
        keep(*tiles)
        if together:
            for moving in tiles[1:]:
                product(tiles[0], moving)

    assert peak(kernel, False) == THIRD
    with pytest.raises(CapacityError, match=f"SBUF: {4 * THIRD} bytes"):
        peak(kernel, True)


def test_beside_an_operand_with_an_address_is_partition_0() -> None:
    def kernel(x: Any, together: bool) -> None:
        fixed = filled(32, 2 * THIRD, address=(0, 0))
        tiles = [filled(32), filled(32)]
        keep(fixed, *tiles)
        if together:
            for moving in tiles:
                product(fixed, moving)

    assert peak(kernel, False) == 2 * THIRD
    with pytest.raises(CapacityError, match=f"SBUF: {4 * THIRD} bytes"):
        peak(kernel, True)


def _whole(number: int, partitions: int) -> Region:
    made = Allocation(number, "", MemoryRegion.sbuf, (partitions, 64), dtypes.uint8, partitions, 64, None, None)
    return Region(made, dtypes.uint8, 0, made.shape, (64, 1))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_every_start_is_one_that_the_height_allows_and_products_agree(data: st.DataObject) -> None:
    heights = data.draw(st.lists(st.integers(1, 128), min_size=1, max_size=9))
    made = [_whole(n, height) for n, height in enumerate(heights)]
    picked = st.lists(st.sampled_from(made), min_size=1, max_size=3)
    stream: list[Record] = []
    for _ in range(data.draw(st.integers(1, 6))):
        op = data.draw(st.sampled_from(("nc_matmul", "other")))
        writes, reads = tuple(data.draw(picked)), tuple(data.draw(picked))
        stream.append(Record(op, engine.tensor, writes, reads, (lambda: None).__code__, 0))
    touched = [{r.allocation.number for r in (*item.writes, *item.reads)} for item in stream]
    tensors = [
        Placed(n, min(at), max(at), heights[n], 64)
        for n in range(len(made))
        if (at := [i for i, numbers in enumerate(touched) if n in numbers])
    ]
    starts = placement.spread(tensors, stream, [0] * 4)
    for tensor in tensors:
        height = tensor.partitions
        first = 32 * starts[tensor.number]
        assert first in ((0, 32, 64, 96) if height <= 32 else (0, 64) if height <= 64 else (0,))
        assert set(tensor.quadrants(starts[tensor.number])) == {p // 32 for p in range(first, first + height)}
    for item, numbers in zip(stream, touched, strict=True):
        if item.op == "nc_matmul":
            assert len({starts[n] for n in numbers}) == 1
