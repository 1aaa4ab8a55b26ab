"""Operands as boxes of bytes, against the bytes that numpy's own view of each region touches."""

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
import nkisim
from devicetime import operands
from nkisim.enums import MemoryRegion

OPTIONS = nkisim.Options(target="trn2", numerics=False)


def gathered(kernel, *arguments):
    (core,) = nkisim.run(kernel, *arguments, options=OPTIONS).cores
    ops, _, writes, reads, *_ = zip(*core.stream, strict=True)
    return core.stream, operands.gather(ops, reads, writes)


def touched(region):
    """(partition, byte) pairs, enumerated element by element."""
    allocation, size = region.allocation, region.dtype.itemsize
    elements = np.zeros(region.shape, np.int64) + region.offset
    for axis, stride in enumerate(region.strides):
        steps = np.arange(region.shape[axis]) * stride
        elements += steps.reshape([-1 if a == axis else 1 for a in range(len(region.shape))])
    first = elements.reshape(-1) * size
    every = (first[:, None] + np.arange(size)).reshape(-1)
    on_chip = allocation.buffer in (MemoryRegion.sbuf, MemoryRegion.psum)
    return set(zip(*(divmod(every, allocation.row_bytes) if on_chip else (every * 0, every)), strict=True))


def boxed(found, n):
    low, high, start, stop, period, width = (int(box[n]) for box in found.boxes)
    row = [b for b in range(start, stop) if not period or (b - start) % period < width]
    return {(p, b) for p in range(low, high) for b in row}


@nki.jit
def many_views(x):
    tile = nl.ndarray((64, 6, 8), dtype=nl.float32, buffer=nl.sbuf)
    narrow = nl.ndarray((32, 4, 8), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_copy(dst=narrow, src=tile[0:32, 1:5, :])
    nisa.tensor_copy(dst=narrow[:, :, 3], src=tile[32:64, 0:4, 7])
    nisa.tensor_copy(dst=narrow[:, 1:3, 0:8:2], src=tile[0:32, 2:4, 0:4])
    nisa.tensor_copy(dst=tile[0:32, 0:4, :], src=narrow)
    nisa.tensor_copy(dst=tile[32:64, :, 0:1], src=tile[32:64, :, 4:5])
    nisa.memset(dst=narrow.view(nl.uint8)[:, 2, :], value=0)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out[:, 2:4, :], src=tile[:, 0:2, :])
    return out


def test_boxes_are_the_bytes_of_regular_views():
    stream, found = gathered(many_views, np.zeros((64, 6, 8), np.float32))
    regions = [(n, r) for n, record in enumerate(stream) for r in (*record.reads, *record.writes)]
    assert found.record.tolist() == [n for n, _ in regions]
    for n, (_, region) in enumerate(regions):
        assert boxed(found, n) == touched(region), region
        assert found.allocations[found.allocation[n]] is region.allocation


def test_reads_come_before_writes():
    stream, found = gathered(many_views, np.zeros((64, 6, 8), np.float32))
    assert found.is_write.tolist() == [w for r in stream for w in [*[False] * len(r.reads), *[True] * len(r.writes)]]
    assert found.first_operand.tolist() == [*np.flatnonzero(np.diff(found.record, prepend=-1)), len(found.record)]


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((8,), (1,), (32, 0, 32)),
        ((4, 8), (8, 1), (128, 0, 128)),
        ((4, 8), (16, 1), (3 * 64 + 32, 64, 32)),
        ((3, 4, 2), (64, 16, 1), ((2 * 64 + 3 * 16 + 2) * 4, 64, 8)),
        ((3, 4, 2), (24, 16, 1), ((2 * 24 + 3 * 16 + 2) * 4, 32, 8)),
        ((5,), (3,), (52, 12, 4)),
        ((5, 2), (0, 1), (8, 0, 8)),
        ((1, 1), (7, 9), (4, 0, 4)),
        ((3, 4), (2, 1), (32, 0, 32)),
    ],
)
def test_runs(shape, strides, expected):
    assert operands._runs(shape, strides, 4) == expected


@nki.jit
def gather_rows(table, index):
    rows = nl.ndarray((32, 16), dtype=table.dtype, buffer=nl.sbuf)
    chosen = nl.ndarray((32, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=chosen, src=index)
    nisa.dma_copy(dst=rows, src=table.ap(pattern=[[16, 32], [1, 16]], vector_offset=chosen, indirect_dim=0))
    out = nl.ndarray((32, 16), dtype=table.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=rows)
    return out


def test_a_gather_reads_its_index_and_may_read_all_of_the_table():
    _, found = gathered(gather_rows, np.zeros((100, 16), np.float32), np.zeros((32, 1), np.int32))
    mine = np.flatnonzero((found.record == 1) & ~found.is_write)
    names = [found.allocations[found.allocation[n]].name for n in mine]
    table = mine[names.index("table")]
    assert sorted(found.allocations[found.allocation[n]].shape for n in mine) == [(32, 1), (100, 16)]
    assert boxed(found, table) == {(0, b) for b in range(100 * 64)}
