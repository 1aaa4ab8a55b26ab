"""What is read off a stream of records, against counts made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki
import nki.isa
import nki.language
from nkisim import Options, run
from nkisim.enums import MemoryRegion
from nkisim.record import HbmTraffic, Record, count_by_engine, hbm_traffic, is_hbm

nisa: Any = nki.isa
nl: Any = nki.language


def mover(x, y):
    """Every pair of memories once or more, with sizes that add up to distinct sums."""
    out = nl.ndarray((8, 16), nl.float32, buffer=nl.shared_hbm, name="out")
    scratch = nl.ndarray((8, 16), nl.float32, buffer=nl.private_hbm, name="scratch")
    tile = nl.ndarray((8, 16), nl.float32, buffer=nl.sbuf)
    narrow = nl.ndarray((4, 6), nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(tile, 0.0)
    nisa.dma_copy(tile, x)  # 8 x 16 x 4 = 512 bytes
    nisa.dma_copy(narrow, y)  # 4 x 6 x 2 = 48 bytes
    nisa.dma_copy(tile[0:4, 0:3], x[4:8, 5:8])  # 4 x 3 x 4 = 48 bytes
    nisa.dma_copy(tile[4:8, :], tile[0:4, :])  # 4 x 16 x 4 = 256 bytes
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nisa.tensor_copy(tile[0:2, 0:2], tile[0:2, 2:4], engine=nisa.engine.vector)
    nisa.dma_copy(scratch, tile)  # 512 bytes
    nisa.dma_copy(scratch[0:2, 0:16], x[0:2, 0:16])  # 2 x 16 x 4 = 128 bytes
    nisa.dma_copy(out, scratch)  # 512 bytes
    nisa.dma_copy(out[0:1, 0:7], tile[0:1, 0:7])  # 7 x 4 = 28 bytes
    return out


def stream_of(kernel: Callable[..., Any], *arguments: np.ndarray) -> list[Record]:
    (core,) = run(kernel, *arguments, options=Options(target="trn3")).cores
    return core.stream


@pytest.fixture(scope="module")
def stream() -> list[Record]:
    return stream_of(mover, np.ones((8, 16), np.float32), np.ones((4, 6), ml_dtypes.bfloat16))


def test_what_a_cast_moves_is_what_it_reads() -> None:
    def widening(y):
        out = nl.ndarray((4, 6), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, y)
        return out

    found = stream_of(widening, np.ones((4, 6), ml_dtypes.bfloat16))
    assert sorted(hbm_traffic(found).values()) == [HbmTraffic(0, 4 * 6 * 4), HbmTraffic(4 * 6 * 2, 0)]


def test_counts_per_engine_and_call(stream: list[Record]) -> None:
    counts = count_by_engine(stream)
    assert counts["dma"] == {"dma_copy": 8}
    assert counts["vector"]["tensor_copy"] == 1
    others = {op: number for name, calls in counts.items() if name != "dma" for op, number in calls.items()}
    assert others == {"memset": 1, "tensor_scalar": 1, "tensor_copy": 1}


def test_traffic_per_hbm_tensor(stream: list[Record]) -> None:
    assert hbm_traffic(stream) == {
        "out": HbmTraffic(read_bytes=0, written_bytes=512 + 28),
        "scratch": HbmTraffic(read_bytes=512, written_bytes=512 + 128),
        "x": HbmTraffic(read_bytes=512 + 48 + 128, written_bytes=0),
        "y": HbmTraffic(read_bytes=48, written_bytes=0),
    }


def test_a_barrier_moves_nothing() -> None:
    def kernel(x: Any) -> Any:
        out = nl.ndarray((2, 16), nl.float32, buffer=nl.shared_hbm, name="out")
        mine = nl.program_id(0)
        nisa.dma_copy(out[mine : mine + 1], x[mine : mine + 1])
        nisa.core_barrier(out, (0, 1))
        return out

    finished = run(nki.jit(kernel)[2], np.ones((2, 16), np.float32), options=Options(numerics=False))
    for core in finished.cores:
        assert hbm_traffic(core.stream)["out"] == HbmTraffic(read_bytes=0, written_bytes=64)


def test_nothing_recorded() -> None:
    assert (count_by_engine([]), hbm_traffic([])) == ({}, {})


def test_a_record_describes_its_first_result(stream: list[Record]) -> None:
    narrow = next(record for record in stream if record.reads and record.reads[0].allocation.name == "y")
    assert (narrow.elements, narrow.size_bytes, narrow.dtype.itemsize) == (24, 48, 2)
    assert [is_hbm(region) for region in (*narrow.reads, *narrow.writes)] == [True, False]
    assert narrow.writes[0].allocation.buffer is MemoryRegion.sbuf
