"""Whole predictions: small kernels whose schedules are worked out by hand, and what holds for every timeline."""

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
import nkisim
from devicetime import constants
from devicetime.predict import explain, predict
from devicetime.timeline import Cause

C = constants.TRN2
OPTIONS = nkisim.Options(target="trn2", numerics=False)


@nki.jit
def load_and_scale(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


def run(kernel, *arguments):
    return nkisim.run(kernel, *arguments, options=OPTIONS)


def test_load_scale_store_by_hand():
    """Each step waits for the one before: descriptors, bytes, semaphore, cycles, semaphore, descriptors, bytes."""
    timeline = predict(run(load_and_scale, np.zeros((128, 512), np.float32)))
    descriptors = C.software_dge_ns + 128 * C.software_dge_descriptor_ns
    row = C.dma_descriptor_ns + 2048 / C.dma_engine_bytes_per_ns
    first_byte = C.software_dge_ns + 8 * C.software_dge_descriptor_ns + C.dma_fetch_ns
    last_byte = first_byte + 15 * 8 * C.software_dge_descriptor_ns + 8 * row
    scaled = last_byte + C.dma_completion_ns + (512 / 2 + C.vector_latency_cycles) / 0.96
    assert timeline.events == 5
    kinds = [timeline.tracks[track].short_name for track in timeline.track]
    assert kinds == ["GpSimd", "DMA 0", "Vector", "GpSimd", "DMA 0"]
    assert timeline.end_ns[0] == pytest.approx(descriptors)
    assert timeline.start_ns[1] == pytest.approx(first_byte)
    assert timeline.end_ns[1] == pytest.approx(last_byte)
    assert timeline.start_ns[2] == pytest.approx(last_byte + C.dma_completion_ns)
    assert timeline.visible_ns[2] == pytest.approx(scaled)
    assert timeline.start_ns[3] == pytest.approx(scaled + C.semaphore_ns)
    assert timeline.total_ns == pytest.approx(scaled + C.semaphore_ns + last_byte)
    assert timeline.cause.tolist() == [Cause.none, Cause.queue, Cause.dependency, Cause.dependency, Cause.queue]
    assert timeline.blocker.tolist() == [-1, 0, 1, 2, 3]
    assert timeline.edges.tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]
    # The tile is in use until its last byte has left.
    assert timeline.sbuf_bytes[0].tolist() == [[0, 2048], [timeline.total_ns, 0]]


@nki.jit
def two_results_of_one_engine(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    one, other, total = (nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf) for _ in range(3))
    nisa.memset(dst=one, value=1.0, engine=nisa.engine.vector)
    nisa.memset(dst=other, value=1.0, engine=nisa.engine.vector)
    nisa.tensor_tensor(dst=total, data1=other, data2=one, op=nl.add, engine=nisa.engine.gpsimd)
    nisa.dma_copy(dst=out, src=total)
    return out


def test_of_several_results_of_one_engine_the_last_is_the_dependency():
    timeline = predict(run(two_results_of_one_engine, np.zeros((128, 8), np.float32)))
    assert [timeline.record_of(event).op for event in range(3)] == ["memset", "memset", "tensor_tensor"]
    assert timeline.edges.tolist() == [[1, 2], [2, 3], [3, 4]]


def test_unknown_target():
    with pytest.raises(ValueError, match="trn1"):
        predict(run(load_and_scale, np.zeros((128, 8), np.float32)), "trn1")


@nki.jit
def swapped_operands_and_partitions(x):
    """Two products of the same tiles the other way round, two loads of the same size to other partitions."""
    wide, narrow = (nl.ndarray((128, n), dtype=nl.bfloat16, buffer=nl.sbuf) for n in (128, 64))
    for tile in (wide, narrow):
        nisa.memset(dst=tile, value=1.0, engine=nisa.engine.vector)
    for left, right in ((wide, narrow), (narrow, wide)):
        bank = nl.ndarray((left.shape[1], right.shape[1]), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(bank, left, right)
    for first in (0, 64):
        tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf, address=(first, 4096))
        nisa.dma_copy(dst=tile, src=x)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_records_that_differ_in_order_or_place_of_operands_have_costs_of_their_own():
    nodes = explain(run(swapped_operands_and_partitions, np.zeros((16, 64), np.float32))).work.nodes
    held = nodes["hold_ns"][2:4]
    assert held == pytest.approx([64 / 2.4 + C.tensor_issue_ns, 128 / 2.4 + C.tensor_issue_ns])
    moved = nodes[nodes["engines"] > 0]
    assert moved["first_engine"].tolist() == [0, 8, 8]
