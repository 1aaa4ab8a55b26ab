"""Rings and ranks in registers, against what each rank should have received."""

import ml_dtypes
import numpy as np
import pytest

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nkisim import Options, errors, run_ranks

BF16 = np.dtype(ml_dtypes.bfloat16)
ALL = [[0, 1, 2, 3]]


def random(ranks, shape, dtype=np.float32, seed=0):
    return [a.astype(dtype) for a in np.random.default_rng(seed).standard_normal((ranks, *shape))]


@nki.jit
def ring_kernel(x, groups, steps, channels, memory):
    """Gathers round a ring into slot `rank id` of the result; x: [channels, rows, columns]."""
    group = ncc.ReplicaGroup(groups)
    _, rows, columns = x.shape
    out = nl.ndarray((nl.num_programs(0), 8, channels, rows, columns), x.dtype, nl.shared_hbm)
    buffers = [[nl.ndarray((rows, columns), x.dtype, memory) for _ in range(channels)] for _ in range(2)]
    zero = nl.ndarray((rows, columns), x.dtype, nl.sbuf)
    nisa.memset(zero, 0)
    for channel in range(channels):
        nisa.dma_copy(buffers[0][channel], x[channel])
        for slot in range(8):
            nisa.dma_copy(out[nl.program_id(0), slot, channel], zero)
    ids = []
    for step in range(steps):
        mine, other = buffers[step % 2], buffers[(step + 1) % 2]
        for channel in range(channels):
            held = ncc.collective_permute_implicit_current_processing_rank_id(step, group, channel)
            place = out.ap(
                [[columns, rows], [1, columns]],
                offset=(nl.program_id(0) * 8 * channels + channel) * rows * columns,
                scalar_offset=held,
                indirect_dim=1,
            )
            nisa.dma_copy(place, mine[channel])
            ids.append(held)
        ncc.collective_permute_implicit(
            [[m] for m in mine], [[o] for o in other], group, channel_ids=list(range(channels))
        )
    return out


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("memory", [nl.shared_hbm, nl.private_hbm, nl.sbuf])
def test_a_ring_gathers_every_rank(lnc, channels, memory):
    inputs = random(4, (channels, 5, 6))
    for finished in run_ranks(ring_kernel[lnc], [(x, [[0, 2], [3, 1]], 2, channels, memory) for x in inputs]):
        assert finished.outputs.shape[0] == lnc
    found = [r.outputs for r in run_ranks(ring_kernel[lnc], [(x, ALL, 4, channels, memory) for x in inputs])]
    for output in found:
        for core in range(lnc):
            np.testing.assert_array_equal(output[core, :4], np.stack(inputs))


def test_the_ring_runs_in_the_groups_order():
    inputs = random(4, (1, 5, 6))
    found = run_ranks(ring_kernel, [(x, [[0, 2], [3, 1]], 2, 1, nl.sbuf) for x in inputs])
    for rank, other in enumerate([2, 3, 0, 1]):
        output = found[rank].outputs[0]
        for slot in range(4):
            expected = inputs[slot] if slot in (rank, other) else np.zeros_like(inputs[0])
            np.testing.assert_array_equal(output[slot], expected)


def test_successor_receives():
    @nki.jit
    def kernel(x):
        tile, out = nl.ndarray(x.shape, x.dtype, nl.sbuf), nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(tile, x)
        ncc.collective_permute_implicit([[tile]], [[tile]], ncc.ReplicaGroup([[0, 1, 2]]))
        nisa.dma_copy(out, tile)
        return out

    inputs = random(3, (4, 4))
    for rank, finished in enumerate(run_ranks(kernel, [(x,) for x in inputs])):
        np.testing.assert_array_equal(finished.outputs, inputs[rank - 1])


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_reduce_then_send(dtype):
    @nki.jit
    def kernel(x, y):
        sources = [nl.ndarray(x.shape, x.dtype, nl.sbuf) for _ in range(2)]
        result, out = nl.ndarray(x.shape, x.dtype, nl.sbuf), nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(sources[0], x)
        nisa.dma_copy(sources[1], y)
        ncc.collective_permute_implicit_reduce(
            [[sources[0]]], [[sources[1]]], [[result]], ncc.ReplicaGroup([[0, 1, 2]]), nl.add
        )
        nisa.dma_copy(out, result)
        return out

    a, b = random(3, (7, 9), dtype), random(3, (7, 9), dtype, seed=1)
    for rank, finished in enumerate(run_ranks(kernel, list(zip(a, b, strict=True)))):
        expected = (a[rank - 1].astype(np.float32) + b[rank - 1].astype(np.float32)).astype(dtype)
        np.testing.assert_array_equal(finished.outputs, expected)
        record = next(r for r in finished.cores[0].stream if r.op == "collective_permute_implicit_reduce")
        assert (len(record.reads), record.detail.op) == (2, "add")


@nki.jit
def rank_kernel(x):
    rows, columns = x.shape[1:]
    out = nl.ndarray((rows, columns), x.dtype, nl.shared_hbm)
    nisa.dma_copy(out, x.ap([[columns, rows], [1, columns]], scalar_offset=ncc.rank_id(name="me"), indirect_dim=0))
    return out


@pytest.mark.parametrize("lnc", [1, 2])
def test_rank_id_addresses_a_slice(lnc):
    (x,) = random(1, (3, 5, 6))
    for rank, finished in enumerate(run_ranks(rank_kernel[lnc], [(x,)] * 3)):
        np.testing.assert_array_equal(finished.outputs, x[rank])
        record = finished.cores[0].stream[0]
        assert (record.op, record.name, record.writes) == ("rank_id", "me", ())


def test_rank_id_steers_no_python():
    @nki.jit
    def kernel(x):
        return x if ncc.rank_id() == 0 else None

    with pytest.raises(errors.RegisterError):
        run_ranks(kernel, [(np.zeros((4, 4), np.float32),)] * 2)


def permute(**changed):
    @nki.jit
    def kernel(x):
        tiles = [nl.ndarray(x.shape, x.dtype, changed.get("memory", nl.sbuf)) for _ in range(4)]
        for tile in tiles:
            if tile.buffer is not nl.psum:
                nisa.dma_copy(tile, x)
        ncc.collective_permute_implicit(
            changed.get("srcs", [[t] for t in tiles[:2]]),
            [[t] for t in tiles[2:]],
            ncc.ReplicaGroup(changed.get("groups", [[0, 1]])),
            changed.get("channel_ids", [0, 1]),
        )

    return kernel


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"channel_ids": [0]}, "accepted: a list of tensors for each of 1 channels"),
        ({"channel_ids": [1, 0]}, "channel_ids [1, 0]; accepted: consecutive integers from 0"),
        ({"channel_ids": []}, "accepted: 1 to 4 channels"),
        ({"channel_ids": [0, 1, 2, 3, 4]}, "accepted: 1 to 4 channels for this group"),
        ({"channel_ids": [0, 1, 2], "groups": [[0], [1]]}, "accepted: 1 to 2 channels for this group"),
        ({"channel_ids": None}, "channel_ids None"),
        ({"srcs": [[], []]}, "srcs_by_channel[0] is []"),
        ({"srcs": 3}, "srcs_by_channel is 3"),
    ],
)
def test_channels(fault, words):
    inputs = [(x,) for x in random(2, (4, 4))]
    run_ranks(permute(), inputs)
    with pytest.raises(errors.ArgumentError) as caught:
        run_ranks(permute(**fault), inputs)
    assert words in str(caught.value)


def test_psum_is_out_of_reach():
    with pytest.raises(errors.WrongBufferError, match="lies in psum"):
        run_ranks(permute(memory=nl.psum), [(x,) for x in random(2, (4, 4))])


@pytest.mark.parametrize(("iteration", "channel"), [(-1, 0), ("0", 0), (None, 0), (0, 4), (0, -1)])
def test_iterations_and_channels_that_are_none(iteration, channel):
    @nki.jit
    def kernel(x):
        ncc.collective_permute_implicit_current_processing_rank_id(iteration, ncc.ReplicaGroup([[0]]), channel)

    with pytest.raises(errors.ArgumentError, match=r"iteration_id|channel_id"):
        run_ranks(kernel, [(np.zeros((4, 4), np.float32),)])


def test_timing_only_runs_record_the_same():
    inputs = [(x, ALL, 4, 2, nl.sbuf) for x in random(4, (2, 5, 6))]
    runs = [run_ranks(ring_kernel[2], inputs, Options(numerics=numerics)) for numerics in (True, False)]
    ops = [[[r.op for r in core.stream] for finished in ranks for core in finished.cores] for ranks in runs]
    assert ops[0] == ops[1]
