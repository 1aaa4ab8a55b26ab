"""Collectives on whole tensors, against numpy and torch."""

import ml_dtypes
import numpy as np
import pytest
import torch

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nkisim import Options, errors, run, run_ranks
from nkisim.record import hbm_traffic

BF16 = np.dtype(ml_dtypes.bfloat16)
PAIR = [[0, 1]]


def random(ranks, shape, dtype=np.float32, seed=0):
    return [a.astype(dtype) for a in np.random.default_rng(seed).standard_normal((ranks, *shape))]


def shared(x, name):
    source = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name=name)
    nisa.dma_copy(source, x)
    return source


def through_sbuf(x, out_shape, collective):
    """Loads x, applies a collective in SBUF and returns its result."""
    tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    result = nl.ndarray(out_shape, x.dtype, nl.sbuf)
    out = nl.ndarray(out_shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(tile, x)
    collective([tile], [result])
    nisa.dma_copy(out, result)
    return out


def through_hbm(x, out_shape, collective):
    source, out = shared(x, "source"), nl.ndarray(out_shape, x.dtype, nl.shared_hbm)
    collective([source], [out])
    return out


@nki.jit
def reduce_kernel(x, groups, op, on_chip):
    carry = through_sbuf if on_chip else through_hbm
    return carry(x, x.shape, lambda s, d: ncc.all_reduce(s, d, ncc.ReplicaGroup(groups), op))


@nki.jit
def gather_kernel(x, groups, dim, on_chip):
    carry, shape = through_sbuf if on_chip else through_hbm, list(x.shape)
    shape[dim] *= len(groups[0])
    return carry(x, tuple(shape), lambda s, d: ncc.all_gather(s, d, ncc.ReplicaGroup(groups), dim))


@nki.jit
def scatter_kernel(x, groups, op, on_chip):
    carry, shape = through_sbuf if on_chip else through_hbm, (x.shape[0] // len(groups[0]), *x.shape[1:])
    return carry(x, shape, lambda s, d: ncc.reduce_scatter(s, d, ncc.ReplicaGroup(groups), 0, op))


@nki.jit
def exchange_kernel(x, groups):
    return through_hbm(x, x.shape, lambda s, d: ncc.all_to_all(s, d, ncc.ReplicaGroup(groups), 0))


@nki.jit
def permute_kernel(x, pairs):
    source, out = shared(x, "source"), shared(x, "out")
    ncc.collective_permute([source], [out], pairs)
    return out


def outputs(kernel, inputs, *arguments, **options):
    return [r.outputs for r in run_ranks(kernel, [(x, *arguments) for x in inputs], **options)]


def summed(arrays):
    """fp32 sum in order, by torch."""
    total = torch.from_numpy(arrays[0].astype(np.float32))
    for array in arrays[1:]:
        total = total + torch.from_numpy(array.astype(np.float32))
    return total.numpy().astype(arrays[0].dtype)


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("on_chip", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16, ml_dtypes.float8_e4m3fn])
def test_all_reduce_adds_in_rank_order_and_rounds_once(lnc, on_chip, dtype):
    inputs = random(4, (77, 130), dtype)
    for output in outputs(reduce_kernel[lnc], inputs, [[0, 1, 2, 3]], nl.add, on_chip):
        assert output.dtype == dtype
        np.testing.assert_array_equal(output, summed(inputs))


def test_four_ranks_on_two_cores_each_get_the_sum():
    inputs = [np.full((128, 8), 2.0**rank, np.float32) for rank in range(4)]
    for output in outputs(reduce_kernel[2], inputs, [[0, 1, 2, 3]], nl.add, False):
        assert (output == 15).all()


@pytest.mark.parametrize(("op", "expected"), [(nl.minimum, np.minimum.reduce), (nl.maximum, np.maximum.reduce)])
def test_minimum_and_maximum(op, expected):
    inputs = random(3, (5, 9))
    for output in outputs(reduce_kernel, inputs, [[0, 1, 2]], op, False):
        np.testing.assert_array_equal(output, expected(inputs))


def test_groups_work_on_their_own_and_in_their_order():
    inputs = random(4, (4, 6))
    found = outputs(gather_kernel, inputs, ((2, 0), (1, 3)), 0, False)
    for rank, order in enumerate([(2, 0), (1, 3), (2, 0), (1, 3)]):
        np.testing.assert_array_equal(found[rank], np.concatenate([inputs[r] for r in order]))


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(("dim", "on_chip"), [(0, False), (0, True), (1, True)])
def test_all_gather(lnc, dim, on_chip):
    inputs = random(3, (33, 20), BF16)
    for output in outputs(gather_kernel[lnc], inputs, [[0, 1, 2]], dim, on_chip):
        np.testing.assert_array_equal(output, np.concatenate(inputs, dim))


@pytest.mark.parametrize("on_chip", [False, True])
def test_reduce_scatter(on_chip):
    inputs = random(4, (24, 10))
    found = outputs(scatter_kernel, inputs, [[0, 1, 2, 3]], nl.add, on_chip)
    np.testing.assert_array_equal(np.concatenate(found), summed(inputs))


def test_all_to_all():
    inputs = random(4, (8, 3, 5))
    found = outputs(exchange_kernel, inputs, [[0, 1, 2, 3]])
    expected = np.stack(inputs).reshape(4, 4, 2, 3, 5).swapaxes(0, 1).reshape(4, 8, 3, 5)
    np.testing.assert_array_equal(np.stack(found), expected)


@pytest.mark.parametrize("lnc", [1, 2])
def test_collective_permute_leaves_ranks_that_are_no_target(lnc):
    inputs = random(4, (3, 7))
    found = outputs(permute_kernel[lnc], inputs, [(0, 2), (2, 1)])
    for rank, source in enumerate([0, 2, 0, 3]):
        np.testing.assert_array_equal(found[rank], inputs[source])


def test_packed_words_travel_bit_for_bit():
    words = np.random.default_rng(1).integers(0, 1 << 32, (2, 4, 8), np.uint32)

    @nki.jit
    def kernel(x):
        source, out = shared(x, "source"), nl.ndarray((8, 8), x.dtype, nl.shared_hbm)
        packed = [t.view(nl.float8_e4m3fn_x4) for t in (source, out)]
        ncc.all_gather([packed[0]], [packed[1]], ncc.ReplicaGroup(PAIR), 0)
        return out

    for output in outputs(kernel, words):
        np.testing.assert_array_equal(output, words.reshape(8, 8))


def test_several_tensors_in_one_call():
    @nki.jit
    def kernel(x, y):
        sources = [shared(x, "a"), shared(y, "b")]
        outs = [nl.ndarray(t.shape, t.dtype, nl.shared_hbm) for t in (x, y)]
        ncc.all_reduce(sources, outs, ncc.ReplicaGroup(PAIR), nl.add)
        return outs

    a, b = random(2, (4, 4)), random(2, (5, 6), BF16, seed=1)
    for finished in run_ranks(kernel, [(a[0], b[0]), (a[1], b[1])]):
        np.testing.assert_array_equal(finished.outputs[0], summed(a))
        np.testing.assert_array_equal(finished.outputs[1], summed(b))
        assert [r.op for r in finished.cores[0].stream] == ["dma_copy", "dma_copy", "all_reduce"]


def test_source_and_destination_may_be_one_tensor():
    @nki.jit
    def kernel(x):
        tensor = shared(x, "t")
        ncc.collective_permute([tensor], [tensor], [(0, 1), (1, 0)])
        return tensor

    a, b = random(2, (4, 4))
    found = outputs(kernel, [a, b])
    np.testing.assert_array_equal(found[0], b)
    np.testing.assert_array_equal(found[1], a)


def test_one_rank_alone_is_a_group():
    x = random(1, (4, 4))[0]
    np.testing.assert_array_equal(run(reduce_kernel, x, [[0]], nl.add, False).outputs, x)


def test_one_record_per_core_also_without_numerics():
    inputs = random(2, (4, 6))
    arguments = [(x, PAIR, 0, False) for x in inputs]
    with_values = run_ranks(gather_kernel[2], arguments, options=Options())
    without = run_ranks(gather_kernel[2], arguments, options=Options(numerics=False))
    for finished in (*with_values, *without):
        for core in finished.cores:
            record = core.stream[-1]
            assert record.detail.cores == 2
            assert (record.op, record.engine.name, record.detail.groups) == ("all_gather", "dma", ((0, 1),))
            assert (record.reads[0].size_bytes, record.writes[0].size_bytes) == (96, 192)
            assert hbm_traffic(core.stream)["source"].read_bytes == 96
    assert without[0].outputs is None


def test_cores_of_a_rank_meet_before_shared_hbm_is_read():
    """Each core writes one half of the source; what core 1 writes must be there when core 0 has called."""

    @nki.jit
    def kernel(x):
        source = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        half, core = x.shape[0] // 2, nl.program_id(0)
        nisa.dma_copy(source[core * half : (core + 1) * half], x[core * half : (core + 1) * half])
        ncc.all_reduce([source], [out], ncc.ReplicaGroup(PAIR), nl.add)
        return out

    inputs = random(2, (8, 4))
    for output in outputs(kernel[2], inputs):
        np.testing.assert_array_equal(output, summed(inputs))


def test_cores_meet_their_own_number_in_sbuf():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        core = nl.program_id(0)
        tile = nl.ndarray((4, 5), x.dtype, nl.sbuf)
        nisa.dma_copy(tile, x[core])
        ncc.all_reduce([tile], [tile], ncc.ReplicaGroup(PAIR), nl.add)
        nisa.dma_copy(out[core], tile)
        return out

    inputs = random(2, (2, 4, 5))
    for output in outputs(kernel[2], inputs):
        np.testing.assert_array_equal(output, summed(inputs))


def faulty(**changed):
    """A kernel whose all_reduce, all_gather, ... has the arguments of a right one, save those changed."""

    @nki.jit
    def kernel(x):
        memory = changed.get("memory", nl.shared_hbm)
        make = lambda shape, where=memory, dtype=x.dtype: nl.ndarray(shape, dtype, where)  # noqa: E731
        collective, shapes = changed["call"], changed["shapes"]
        source, out = make(shapes[0]), make(shapes[1], changed.get("out_memory", memory), changed.get("dtype", x.dtype))
        if memory is not nl.psum:
            nisa.dma_copy(source, x.reshape(shapes[0]))
        arguments = {"srcs": [source], "dsts": [out], "replica_group": ncc.ReplicaGroup(PAIR)}
        arguments |= changed.get("arguments", {})
        times = changed.get("times", 1)
        collective(**{k: v * times if k in ("srcs", "dsts") else v for k, v in arguments.items()})

    return kernel


REDUCE = {"call": ncc.all_reduce, "shapes": [(4, 6), (4, 6)], "arguments": {"op": nl.add}}
GATHER = {"call": ncc.all_gather, "shapes": [(4, 6), (8, 6)], "arguments": {"collective_dim": 0}}
SCATTER = {"call": ncc.reduce_scatter, "shapes": [(4, 6), (2, 6)], "arguments": {"collective_dim": 0, "op": nl.add}}
EXCHANGE = {"call": ncc.all_to_all, "shapes": [(4, 6), (4, 6)], "arguments": {"collective_dim": 0}}


def changed(base, **change):
    return base | change | {"arguments": base["arguments"] | change.get("arguments", {})}


@pytest.mark.parametrize("right", [REDUCE, GATHER, SCATTER, EXCHANGE])
def test_the_unchanged_calls_run(right):
    run_ranks(faulty(**right), [(x,) for x in random(2, (4, 6))])


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (changed(REDUCE, shapes=[(4, 6), (6, 4)]), errors.ShapeError, "dsts[0] [6, 4], srcs[0] [4, 6]"),
        (changed(REDUCE, arguments={"op": nl.multiply}), errors.ArgumentError, "nl.multiply; accepted: add"),
        (changed(REDUCE, arguments={"op": max}), errors.ArgumentError, "an operator of nki.language"),
        (changed(REDUCE, dtype=nl.bfloat16), errors.DtypeError, "dsts[0] is bfloat16, srcs[0] is float32"),
        (changed(REDUCE, memory=nl.psum), errors.WrongBufferError, "lies in psum; accepted: private_hbm"),
        (changed(REDUCE, out_memory=nl.sbuf), errors.WrongBufferError, "shared_hbm, sbuf; accepted: all in one memory"),
        (changed(REDUCE, memory=nl.sbuf, times=2), errors.ArgumentError, "2 tensors in SBUF; accepted: one"),
        (changed(REDUCE, memory=nl.sbuf, shapes=[(4, 2, 3)] * 2), errors.ShapeError, "one free dimension"),
        (changed(REDUCE, arguments={"srcs": []}), errors.ArgumentError, "srcs is []; accepted: a non-empty list"),
        (changed(REDUCE, arguments={"priority": 4}), errors.ArgumentError, "priority 4; accepted: 0 to 3"),
        (changed(REDUCE, arguments={"replica_group": [[0, 1]]}), errors.ArgumentError, "ReplicaGroup"),
        (changed(GATHER, arguments={"collective_dim": 1}), errors.ArgumentError, "collective_dim 1; accepted: 0"),
        (
            changed(GATHER, memory=nl.sbuf, arguments={"collective_dim": 2}),
            errors.ArgumentError,
            "collective_dim 2; accepted: 0 or 1",
        ),
        (changed(GATHER, shapes=[(4, 6), (4, 6)]), errors.ShapeError, "along dimension 0; accepted: dsts[0] [8, 6]"),
        (changed(SCATTER, shapes=[(4, 6), (4, 6)]), errors.ShapeError, "accepted: srcs[0] [8, 6]"),
        (changed(SCATTER, arguments={"collective_dim": 1}), errors.ArgumentError, "collective_dim 1; accepted: 0"),
        (changed(EXCHANGE, memory=nl.sbuf), errors.WrongBufferError, "lies in sbuf; accepted: private_hbm or shared"),
        (changed(EXCHANGE, shapes=[(3, 8), (3, 8)]), errors.ShapeError, "2 divides dimension 0"),
        (changed(EXCHANGE, arguments={"collective_dim": 1}), errors.ArgumentError, "collective_dim 1; accepted: 0"),
        (changed(EXCHANGE, arguments={"collective_dim": [0]}), errors.ArgumentError, "collective_dim [0]"),
    ],
)
def test_faults(fault, error, words):
    with pytest.raises(error) as caught:
        run_ranks(faulty(**fault), [(x,) for x in random(2, (4, 6))])
    assert words in str(caught.value)
    assert type(caught.value) is error


def test_lists_of_unequal_length():
    @nki.jit
    def kernel(x):
        source = shared(x, "s")
        ncc.all_reduce([source], [source, source], ncc.ReplicaGroup(PAIR), nl.add)

    with pytest.raises(errors.ArgumentError, match="1 srcs and 2 dsts; accepted: the same number"):
        run_ranks(kernel, [(x,) for x in random(2, (4, 6))])


def test_priority_needs_trn3():
    kernel = faulty(**changed(REDUCE, arguments={"priority": 1}))
    inputs = [(x,) for x in random(2, (4, 6))]
    run_ranks(kernel, inputs, options=Options(target="trn3"))
    with pytest.raises(errors.TargetError, match="priority"):
        run_ranks(kernel, inputs, options=Options(target="trn2"))


def test_unwritten_sources_are_refused():
    @nki.jit
    def kernel(x, whole):
        source, out = (nl.ndarray((4, 4), nl.float32, nl.shared_hbm) for _ in range(2))
        rows = 4 if whole else 3
        nisa.dma_copy(source[0:rows], x[0:rows])
        ncc.all_reduce([source], [out], ncc.ReplicaGroup(PAIR), nl.add)

    inputs = random(2, (4, 4))
    run_ranks(kernel, [(x, True) for x in inputs])
    with pytest.raises(errors.UninitializedReadError, match=r"srcs\[0\]: element \[3, 0\]") as caught:
        run_ranks(kernel, [(inputs[0], True), (inputs[1], False)])
    assert caught.value.__notes__ == ["in rank 1"]


def test_packed_types_are_not_reduced():
    @nki.jit
    def kernel(x):
        source = shared(x, "s").view(nl.float8_e4m3fn_x4)
        ncc.all_reduce([source], [source], ncc.ReplicaGroup([[0]]), nl.add)

    with pytest.raises(errors.DtypeError, match="types that can be reduced"):
        run(kernel, np.zeros((4, 4), np.uint32))


def test_private_and_shared_hbm_on_two_cores():
    @nki.jit
    def kernel(x):
        source, out = nl.ndarray(x.shape, x.dtype, nl.private_hbm), nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(source, x)
        ncc.all_reduce([source], [out], ncc.ReplicaGroup([[0]]), nl.add)
        return out

    x = random(1, (4, 4))[0]
    np.testing.assert_array_equal(run(kernel, x).outputs, x)
    with pytest.raises(errors.WrongBufferError, match="private_hbm, shared_hbm; accepted: all in one memory"):
        run(kernel[2], x)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([(0, 1), (0, 0)], "rank 0 is a source twice"),
        ([(0, 1), (1, 1)], "rank 1 is a target twice"),
        ([(0, 2)], "names rank 2; accepted: 0 to 1"),
        ([(0, 1, 1)], "accepted: a list of (source, target) ranks"),
        ([(0, -1)], "rank -1; accepted: integers from 0"),
        (None, "accepted: a list of (source, target) ranks"),
    ],
)
def test_pairs_that_are_none(pairs, words):
    with pytest.raises(errors.ArgumentError) as caught:
        outputs(permute_kernel, random(2, (4, 4)), pairs)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([[0, 1], [1]], "rank 1 occurs twice; accepted: no overlap"),
        ([0, 1], "accepted: a list of non-empty lists of ranks"),
        ([], "accepted: a list of non-empty lists"),
        ([[0], []], "accepted: a list of non-empty lists"),
        ([[0, "1"]], "rank '1'; accepted: integers from 0"),
        ([[0, True]], "rank True; accepted: integers from 0"),
        ([[0, 2]], "names rank 2; accepted: 0 to 1, the run has 2"),
        ([[0]], "leaves out rank 1"),
    ],
)
def test_groups_that_are_none(groups, words):
    with pytest.raises(errors.ArgumentError) as caught:
        outputs(reduce_kernel, random(2, (4, 4)), groups, nl.add, False)
    assert words in str(caught.value)


def test_outside_a_kernel():
    with pytest.raises(errors.LaunchError, match=r"ncc\.all_reduce is called outside a kernel"):
        ncc.all_reduce([], [], ncc.ReplicaGroup(PAIR), nl.add)
