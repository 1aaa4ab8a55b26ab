"""Tests of SBUF and PSUM over time, against counting instruction by instruction and byte by byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki.isa
import nki.language
from common import hardware
from common.budget import SBUF_ALIGNMENT_BYTES
from nkisim import Options, capacity, dtypes, run
from nkisim.enums import MemoryRegion, engine
from nkisim.errors import CapacityError, OverlapError
from nkisim.record import Record, accesses
from nkisim.storage import Allocation, IndexedRegion, Region

nisa: Any = nki.isa
nl: Any = nki.language
CHIP = hardware.get("trn3")
SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum
CODE = (lambda: None).__code__


def allocation(
    number: int,
    row_bytes: int,
    buffer: MemoryRegion = SBUF,
    address: tuple[int, int] | None = None,
    partitions: int = 4,
) -> Allocation:
    shape = (partitions, row_bytes)
    return Allocation(number, f"t{number}", buffer, shape, dtypes.uint8, partitions, row_bytes, address, None)


def region(made: Allocation) -> Region:
    return Region(made, made.dtype, 0, made.shape, (made.row_bytes, 1))


def record(writes: list[Allocation], reads: list[Allocation]) -> Record:
    return Record("test", engine.vector, tuple(map(region, writes)), tuple(map(region, reads)), CODE, 0)


def measured(stream: list[Record]) -> capacity.MemoryReport:
    return capacity.measure(stream, accesses(stream), CHIP)


def counted(stream: list[Record], memory: MemoryRegion, granule: int) -> tuple[int, bool]:
    """Peak in bytes, and whether two fixed tensors overlap while both are live: one instruction at a time."""
    touched = [{r.allocation for r in (*item.writes, *item.reads)} for item in stream]
    live = [
        {
            a
            for a in set().union(*touched)
            if any(a in t for t in touched[: now + 1]) and any(a in t for t in touched[now:])
        }
        for now in range(len(stream))
    ]
    here = [{a for a in now if a.buffer is memory} for now in live]
    fixed = {a for now in here for a in now if a.address}
    granules = {g for a in fixed for g in range(_bytes(a).start // granule, -(-_bytes(a).stop // granule))}
    free = [sum(-(-a.row_bytes // granule) * granule for a in now if not a.address) for now in here]
    clash = any(
        {(p, b) for p in _partitions(a) for b in _bytes(a)} & {(p, b) for p in _partitions(b2) for b in _bytes(b2)}
        for now in here
        for a in now
        for b2 in now
        if a.number < b2.number and a.address and b2.address
    )
    return len(granules) * granule + max(free, default=0), clash


def _partitions(a: Allocation) -> range:
    assert a.address
    return range(a.address[0], a.address[0] + a.partitions)


def _bytes(a: Allocation) -> range:
    assert a.address
    return range(a.address[1], a.address[1] + a.row_bytes)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_peaks_and_overlaps_agree_with_counting(data: st.DataObject) -> None:
    tensors = []
    for number in range(data.draw(st.integers(1, 7))):
        buffer = data.draw(st.sampled_from((SBUF, PSUM, MemoryRegion.private_hbm)))
        address = None
        if buffer is not MemoryRegion.private_hbm and data.draw(st.booleans()):
            address = (data.draw(st.sampled_from((0, 32))), data.draw(st.integers(0, 200)))
        tensors.append(
            allocation(number, data.draw(st.integers(1, 90)), buffer, address, data.draw(st.sampled_from((4, 40))))
        )
    picked = st.lists(st.sampled_from(tensors), max_size=3)
    stream = [record(data.draw(picked), data.draw(picked)) for _ in range(data.draw(st.integers(1, 8)))]
    sbuf, sbuf_clash = counted(stream, SBUF, SBUF_ALIGNMENT_BYTES)
    psum, psum_clash = counted(stream, PSUM, CHIP.psum_bank_bytes)
    if sbuf_clash or psum_clash:
        with pytest.raises(OverlapError, match="still used"):
            measured(stream)
    else:
        report = measured(stream)
        assert (report.sbuf_peak_bytes, report.psum_peak_banks * CHIP.psum_bank_bytes) == (sbuf, psum)


def test_tensors_that_are_not_live_together_share_memory() -> None:
    third = CHIP.sbuf_usable_bytes_per_partition // 3
    tensors = [allocation(n, third, partitions=128) for n in range(6)]
    passing = [record([tensors[n]], [tensors[n - 1]] if n else []) for n in range(6)]
    assert measured(passing).sbuf_peak_bytes < 3 * third
    kept = [*passing, record([], [tensors[0], tensors[1], tensors[2], tensors[5]])]
    with pytest.raises(CapacityError):
        measured(kept)


def test_an_index_is_live_while_it_chooses() -> None:
    index, table, other = allocation(0, 64), allocation(1, 64, MemoryRegion.private_hbm), allocation(2, 64)
    chosen = IndexedRegion(table, table.dtype, 0, (4, 64), (64, 1))
    chosen.chosen_by = region(index)
    stream = [record([index], []), record([other], []), Record("t", engine.dma, (), (chosen,), CODE, 0)]
    assert measured(stream).sbuf_peak_bytes == 128


def test_the_error_lists_what_is_live_at_the_peak() -> None:
    def kernel(x):
        tiles = []
        for step, size in enumerate((100_000, 80_000, 70_000)):
            tiles.append(nl.ndarray((128, size), nl.uint8, name=f"tile_{step}"))
            nisa.memset(tiles[-1], 0)
        early = nl.ndarray((128, 5), nl.uint8, name="early")
        nisa.memset(early, 0)
        fixed = nl.ndarray((128, 64), nl.uint8, name="fixed", address=(0, 1024))
        nisa.memset(fixed, 0)
        for tile in tiles:
            nisa.tensor_copy(fixed[:, 0:1], tile[:, 0:1])

    with pytest.raises(CapacityError) as caught:
        run(kernel, np.zeros((1, 1), np.float32), options=Options(numerics=False))
    lines = str(caught.value).splitlines()
    limit = CHIP.sbuf_usable_bytes_per_partition
    assert lines[0] == f"SBUF: 250072 bytes per partition live at once; accepted: at most {limit}. Live at the peak:"
    assert [line.split()[0] for line in lines[1:6]] == ["64", "100000", "80000", "70000", "8"]
    assert lines[1].endswith("at fixed addresses")
    assert "tile_0 (uint8[128, 100000]), created at" in lines[2]
    assert "nl.ndarray((128, size)" in lines[2]
    assert "early" in lines[5]


def test_psum_is_counted_in_banks() -> None:
    def kernel(x, count):
        tiles = [nl.ndarray((128, 1), nl.float32, buffer=nl.psum, name=f"bank_{n}") for n in range(count)]
        for tile in tiles:
            nisa.memset(tile, 0)
        for tile in tiles:
            nisa.tensor_copy(tiles[0], tile)

    x = np.zeros((1, 1), np.float32)
    assert run(kernel, x, 8).cores[0].memory.psum_peak_banks == 8
    with pytest.raises(CapacityError, match="PSUM: 9 banks live at once; accepted: at most 8"):
        run(kernel, x, 9)


@pytest.mark.parametrize(("second", "clash"), [((0, 100), True), ((0, 256), False), ((32, 100), False)])
def test_fixed_tensors_that_overlap(second: tuple[int, int], clash: bool) -> None:
    def kernel(x):
        first = nl.ndarray((32, 64), nl.float32, name="first", address=(0, 0))
        other = nl.ndarray((32, 64), nl.float32, name="other", address=second)
        nisa.memset(first, 0)
        nisa.memset(other, 0)
        nisa.tensor_copy(other, first)

    x = np.zeros((1, 1), np.float32)
    if clash:
        with pytest.raises(OverlapError, match=r"first .* at address \(0, 0\).* and other .* at address \(0, 100\)"):
            run(kernel, x)
    else:
        run(kernel, x)


def test_fixed_tensors_may_follow_each_other_at_one_address() -> None:
    def kernel(x):
        for _ in range(3):
            tile = nl.ndarray((128, 64), nl.float32, address=(0, 0))
            nisa.memset(tile, 0)
            nisa.tensor_copy(tile, tile)

    assert run(kernel, np.zeros((1, 1), np.float32)).cores[0].memory.sbuf_peak_bytes == 256
