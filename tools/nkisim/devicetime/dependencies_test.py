"""Edges against a plain byte-by-byte account of who wrote and read what, on random kernels."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
import nkisim
from common import hardware
from devicetime import allocator, operands
from devicetime.dependencies import DEPENDENCY, ORDER, REUSE, link

OPTIONS = nkisim.Options(target="trn2", numerics=False)
ROWS, COLUMNS = 64, 12


def linked(kernel, *arguments):
    (core,) = nkisim.run(kernel, *arguments, options=OPTIONS).cores
    ops, engines, writes, reads, *_ = zip(*core.stream, strict=True)
    found = operands.gather(ops, reads, writes)
    partition, byte = allocator.place(found, hardware.TRN2)
    on = np.array([engine.value for engine in engines])
    return core.stream, found, link(found, partition, byte, core, on)


def reachable(edges, records):
    """[after, before]: whether a chain of edges leads from one record to a later one."""
    total = records + edges.joins
    direct = np.zeros((total, total), bool)
    direct[edges.after, edges.before] = True
    reach = direct.copy()
    for middle in range(total):
        reach |= reach[:, middle : middle + 1] & reach[middle : middle + 1, :]
    return reach[:records, :records]


def true_conflicts(stream, written):
    """Pairs (after, before) that touch a byte in common, at least one of them writing it."""
    pairs = set()
    touched = [
        ([mask(r) for r in record.reads if r.allocation.name in written], [mask(r) for r in record.writes])
        for record in stream
    ]
    for after, (reads, writes) in enumerate(touched):
        for before in range(after):
            earlier_reads, earlier_writes = touched[before]
            both = [(w, x) for w in earlier_writes for x in (*reads, *writes)]
            both += [(r, w) for r in earlier_reads for w in writes]
            if any(a[0] is b[0] and (a[1] & b[1]).any() for a, b in both):
                pairs.add((after, before))
    return pairs


def mask(region):
    size = region.dtype.itemsize
    flags = np.zeros(region.allocation.partitions * region.allocation.row_bytes, bool)
    view = np.lib.stride_tricks.as_strided(
        flags[region.offset * size :], (*region.shape, size), (*[s * size for s in region.strides], 1)
    )
    view[...] = True
    return region.allocation, flags


half = st.sampled_from([(0, 32), (32, 64), (0, 64)])


@st.composite
def columns(draw):
    start = draw(st.integers(0, COLUMNS - 1))
    stop = draw(st.integers(start + 1, COLUMNS))
    return start, stop, draw(st.sampled_from([1, 1, 2, 3]))


steps = st.lists(st.tuples(st.integers(0, 2), half, columns(), st.integers(0, 2), half, columns()), max_size=14)


@given(steps)
@settings(max_examples=120, deadline=None)
def test_every_conflict_is_a_chain_of_edges_and_every_edge_of_dense_boxes_a_conflict(program):
    @nki.jit
    def kernel(x):
        tiles = [nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.sbuf, name=f"t{n}") for n in range(3)]
        for tile in tiles:
            nisa.memset(dst=tile, value=0.0)
        for to, (low, high), (start, stop, step), source, (from_low, _), (from_start, _, _) in program:
            rows, width = high - low, len(range(start, stop, step))
            first = from_low if rows <= 32 or from_low == 0 else 0
            begin = min(from_start, COLUMNS - width)
            nisa.tensor_copy(
                dst=tiles[to][low:high, start:stop:step], src=tiles[source][first : first + rows, begin : begin + width]
            )
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tiles[0])
        return out

    stream, _, edges = linked(kernel, np.zeros((ROWS, COLUMNS), np.float32))
    conflicts = true_conflicts(stream, {"t0", "t1", "t2"})
    reach = reachable(edges, len(stream))
    assert all(reach[pair] for pair in conflicts)
    dense = [all(r.strides[-1] == 1 or r.shape[-1] == 1 for r in (*s.reads, *s.writes)) for s in stream]
    for before, after in zip(edges.before.tolist(), edges.after.tolist(), strict=True):
        if max(before, after) < len(stream) and dense[before] and dense[after]:
            assert (after, before) in conflicts


@nki.jit
def tokens_side_by_side(x):
    """Four writers of one column each of [rows, part, token], as the decode kernel's latent features."""
    spread = nl.ndarray((128, 3, 4), dtype=nl.float32, buffer=nl.sbuf)
    for token in range(4):
        source = nl.ndarray((128, 3), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=source, value=1.0)
        nisa.tensor_copy(dst=spread[:, :, token], src=source)
    out = nl.ndarray((128, 3, 4), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=spread)
    return out


def test_interleaved_columns_do_not_wait_for_each_other():
    _, _, edges = linked(tokens_side_by_side, np.zeros((1, 1), np.float32))
    pairs = set(zip(edges.before.tolist(), edges.after.tolist(), strict=True))
    assert pairs == {(0, 1), (2, 3), (4, 5), (6, 7), (1, 8), (3, 8), (5, 8), (7, 8)}


@nki.jit
def banks_in_turn(x):
    """Two tensors at the same address of PSUM, one after the other."""
    a = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x)
    out = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.shared_hbm)
    for n in range(2):
        bank = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum, address=(0, 2048))
        kept = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
        nisa.nc_matmul(dst=bank, stationary=a, moving=a)
        nisa.tensor_copy(dst=kept, src=bank)
        nisa.dma_copy(dst=out[:, n * 128 : (n + 1) * 128], src=kept)
    return out


def test_an_address_is_reused_only_after_its_last_reader():
    _, _, edges = linked(banks_in_turn, np.zeros((128, 128), np.float32))
    found = set(zip(edges.before.tolist(), edges.after.tolist(), edges.kind.tolist(), strict=True))
    assert found == {
        (0, 1, DEPENDENCY),
        (1, 2, DEPENDENCY),
        (2, 3, DEPENDENCY),
        (0, 4, DEPENDENCY),
        (2, 4, REUSE),
        (4, 5, DEPENDENCY),
        (5, 6, DEPENDENCY),
    }


@nki.jit
def many_readers(x):
    """A tile that many read whole and that is then overwritten column by column."""
    tile = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    for _ in range(20):
        copy = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=copy, src=tile)
    for n in range(8):
        nisa.memset(dst=tile[:, n : n + 1], value=1.0)
    out = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_edges_of_many_readers_and_many_writers_do_not_multiply():
    stream, _, edges = linked(many_readers, np.zeros((1, 1), np.float32))
    assert len(edges.before) < 3 * len(stream)
    reach = reachable(edges, len(stream))
    assert all(reach[writer, reader] for writer in range(21, 29) for reader in range(1, 21))


@nki.jit
def asked_for(x):
    tiles = [nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf) for _ in range(4)]
    first = nisa.memset(dst=tiles[0], value=0.0, engine=nisa.engine.vector)
    second = nisa.memset(dst=tiles[1], value=0.0, engine=nisa.engine.gpsimd)
    first.depends_on(second)
    with nl.no_reorder():
        nisa.memset(dst=tiles[2], value=0.0, engine=nisa.engine.vector)
        nisa.memset(dst=tiles[3], value=0.0, engine=nisa.engine.vector)
    out = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.shared_hbm)
    for n in range(4):
        nisa.dma_copy(dst=out, src=tiles[n])
    return out


def test_asked_for_order():
    _, _, edges = linked(asked_for, np.zeros((1, 1), np.float32))
    asked = edges.kind == ORDER
    assert list(zip(edges.before[asked].tolist(), edges.after[asked].tolist(), strict=True)) == [(1, 0), (2, 3)]


@nki.jit
def sums_of_squares(x):
    """Two instructions that fill the reduce registers, each read out."""
    tile = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    out = nl.ndarray((2, 128, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    for n in range(2):
        squares = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(
            dst=squares,
            op=nl.square,
            data=tile,
            reduce_op=nl.add,
            reduce_res=total,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )
        nisa.dma_copy(dst=out[n], src=total)
    return out


def test_reduce_registers_are_read_before_they_are_filled_again():
    stream, _, edges = linked(sums_of_squares, np.zeros((128, 8), np.float32))
    assert [record.op for record in stream[1:6]] == [
        *("activation", "read_reduce_registers", "dma_copy"),
        *("activation", "read_reduce_registers"),
    ]
    asked = edges.kind == ORDER
    assert set(zip(edges.before[asked].tolist(), edges.after[asked].tolist(), strict=True)) == {(1, 2), (2, 4), (4, 5)}


def pairs_of(body):
    """Edges of a kernel that ends with a store of the tile that `body` returns."""

    @nki.jit
    def kernel(x):
        tile = body()
        out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    _, _, edges = linked(kernel, np.zeros((1, 1), np.float32))
    return set(zip(edges.before.tolist(), edges.after.tolist(), strict=True))


def test_the_same_bytes_of_other_partitions_or_memories_are_others():
    def body():
        for address, buffer in (((0, 0), nl.psum), ((0, 0), nl.sbuf), ((64, 0), nl.sbuf)):
            tile = nl.ndarray((32, 8), dtype=nl.float32, buffer=buffer, address=address)
            nisa.memset(dst=tile, value=0.0, engine=nisa.engine.vector)
        return tile

    assert pairs_of(body) == {(2, 3)}


def test_a_write_in_steps_leaves_what_it_skips():
    """Odd columns are still those of the first write."""

    def body():
        tile = nl.ndarray((32, 9), dtype=nl.float32, buffer=nl.sbuf)
        kept = nl.ndarray((32, 4), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=tile, value=0.0, engine=nisa.engine.vector)
        nisa.memset(dst=tile[:, 0:9:2], value=1.0, engine=nisa.engine.vector)
        nisa.tensor_copy(dst=kept, src=tile[:, 1:9:2], engine=nisa.engine.vector)
        return kept

    assert pairs_of(body) == {(0, 1), (0, 2), (2, 3)}


def test_ordered_instructions_of_an_engine_follow_each_other():
    def body():
        tiles = [nl.ndarray((32, 8), dtype=nl.float32, buffer=nl.sbuf) for _ in range(3)]
        with nl.no_reorder():
            for tile in tiles:
                nisa.memset(dst=tile, value=0.0, engine=nisa.engine.vector)
        return tiles[2]

    assert pairs_of(body) == {(0, 1), (1, 2), (2, 3)}
