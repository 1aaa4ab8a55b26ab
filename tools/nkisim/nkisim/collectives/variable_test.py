"""Collectives of variable length, against a description in numpy."""

import numpy as np
import pytest

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nkisim import Options, errors, run_ranks

CHIP = [[0, 1, 2, 3]]
TWO_CHIPS = [[0, 1, 2, 3, 4, 5, 6, 7]]
FILL = -7.0


@nki.jit
def kernel(call, x, filled, rows, groups, on_chip, known=False, displaced=False):
    """Returns what arrived and the metadata afterwards."""
    source = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="source")
    result = nl.ndarray(filled.shape, x.dtype, nl.shared_hbm, name="result")
    counts = nl.ndarray(rows.shape, rows.dtype, nl.shared_hbm)
    nisa.dma_copy(source, x)
    nisa.dma_copy(result, filled)
    where = nl.sbuf if on_chip else nl.shared_hbm
    metadata = nl.ndarray((1, *rows.shape) if on_chip else rows.shape, rows.dtype, where)
    nisa.dma_copy(metadata, rows)
    call([source], [result], ncc.ReplicaGroup(groups), metadata, recv_counts_known=known, has_rdispls=displaced)
    nisa.dma_copy(counts, metadata)
    return result, counts


def ragged(ranks, *, same, slot=6, seed=0):
    """Sources, filled results and metadata rows for each rank; `same`: every destination is sent the same."""
    rng = np.random.default_rng(seed)
    sources = rng.standard_normal((ranks, 40)).astype(np.float32)
    sizes = rng.integers(0, slot + 1, (ranks, ranks)).astype(np.uint32)
    starts = rng.integers(0, 40 - slot, (ranks, ranks)).astype(np.uint32)
    if same:
        sizes[:], starts[:] = sizes[:, :1], starts[:, :1]
    rows = np.stack([sizes, starts, np.full_like(sizes, 99)], axis=1)
    return sources, np.full((ranks, ranks * slot), FILL, np.float32), rows


def expected(sources, results, rows, groups, slot=6, displacements=None):
    """What each rank should hold, and what row 2 should say."""
    results, received = results.copy(), rows[:, 2].copy()
    for group in groups:
        for column, receiver in enumerate(group):
            for n, sender in enumerate(group):
                size, start = rows[sender, 0, column], rows[sender, 1, column]
                place = n * slot if displacements is None else displacements[receiver, n]
                results[receiver, place : place + size] = sources[sender, start : start + size]
                received[receiver, n] = size
    return results, received


def start(call, data, groups, *options, lnc=2, target="trn3", **kwargs):
    sources, results, rows = data
    arguments = [(call, s, d, r, groups, *options) for s, d, r in zip(sources, results, rows, strict=True)]
    return run_ranks(kernel[lnc], arguments, Options(target=target, **kwargs))


@pytest.mark.parametrize("on_chip", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_all_gather_v(on_chip, known):
    data = ragged(4, same=True)
    sources, results, rows = data
    results, received = expected(sources, results, rows, CHIP)
    for rank, finished in enumerate(start(ncc.all_gather_v, data, CHIP, on_chip, known)):
        np.testing.assert_array_equal(finished.outputs[0], results[rank])
        np.testing.assert_array_equal(finished.outputs[1][2], 99 if known else received[rank])


def test_all_gather_v_reads_the_first_column_only():
    sources, results, rows = ragged(4, same=True)
    wanted, _ = expected(sources, results, rows, CHIP)
    rows[:, :2, 1:] = 1 << 20
    for rank, finished in enumerate(start(ncc.all_gather_v, (sources, results, rows), CHIP, False)):
        np.testing.assert_array_equal(finished.outputs[0], wanted[rank])


@pytest.mark.parametrize("on_chip", [False, True])
@pytest.mark.parametrize("groups", [TWO_CHIPS, [[4, 5, 6, 7], [0, 1, 2, 3]]])
def test_all_to_all_v(on_chip, groups):
    sources, results, rows = ragged(8, same=False)
    rows, results = rows[:, :, : len(groups[0])].copy(), results[:, : 6 * len(groups[0])].copy()
    wanted, received = expected(sources, results, rows, groups)
    for rank, finished in enumerate(start(ncc.all_to_all_v, (sources, results, rows), groups, on_chip)):
        np.testing.assert_array_equal(finished.outputs[0], wanted[rank])
        np.testing.assert_array_equal(finished.outputs[1][2], received[rank])
        record = next(r for r in finished.cores[1].stream if r.op == "all_to_all_v")
        assert len(record.writes) == 2


def test_all_to_all_v_with_displacements():
    sources, results, rows = ragged(8, same=False)
    places = np.stack([np.random.default_rng(r).permutation(8) * 6 for r in range(8)]).astype(np.uint32)
    with_places = np.concatenate([rows, places[:, None]], axis=1)
    wanted, _ = expected(sources, results, rows, TWO_CHIPS, displacements=places)
    for rank, finished in enumerate(
        start(ncc.all_to_all_v, (sources, results, with_places), TWO_CHIPS, True, False, True)
    ):
        np.testing.assert_array_equal(finished.outputs[0], wanted[rank])


@pytest.mark.parametrize("lnc", [1, 2])
def test_all_to_all_v_across_nodes_on_trn2(lnc):
    ranks = 16 // lnc
    groups = [[n, n + ranks // 2] for n in range(ranks // 2)]
    sources, results, rows = ragged(ranks, same=False)
    data = sources, results[:, :12].copy(), rows[:, :, :2].copy()
    wanted, _ = expected(*data, groups=groups)
    for rank, finished in enumerate(start(ncc.all_to_all_v, data, groups, False, lnc=lnc, target="trn2")):
        np.testing.assert_array_equal(finished.outputs[0], wanted[rank])


def test_timing_only_runs_need_no_counts():
    runs = [start(ncc.all_gather_v, ragged(4, same=True), CHIP, False, numerics=numerics) for numerics in (True, False)]
    assert [r.op for r in runs[0][3].cores[1].stream] == [r.op for r in runs[1][3].cores[1].stream]


@pytest.mark.parametrize(
    ("change", "options", "error", "words"),
    [
        ({}, {"lnc": 1}, errors.LaunchError, "runs on one core; accepted: kernel[2]"),
        ({"groups": [[0, 1], [2, 3]]}, {}, errors.ArgumentError, "group [0, 1] of replica_group; accepted: 4 ranks"),
        ({"displaced": True}, {}, errors.ArgumentError, "has_rdispls True; accepted: False"),
        ({"known": 1}, {}, errors.ArgumentError, "recv_counts_known 1; accepted: True or False"),
        ({"rows": np.zeros((4, 2, 4), np.uint32)}, {}, errors.ShapeError, "metadata_tensor [2, 4] in shared_hbm"),
        ({"rows": np.zeros((4, 3, 4), np.int32)}, {}, errors.DtypeError, "metadata_tensor is int32; accepted: uint32"),
        ({"results": np.zeros((4, 10), np.float32)}, {}, errors.ShapeError, "10 elements; accepted: a multiple of 4"),
        ({"row": (0, 41)}, {}, errors.OutOfBoundsError, "sends elements 0 to 41; accepted: srcs[0] has 40"),
        ({"row": (7, 7)}, {}, errors.OutOfBoundsError, "7 elements from rank 0 go to 0 to 7 of dsts[0]"),
    ],
)
def test_all_gather_v_faults(change, options, error, words):
    sources, results, rows = ragged(4, same=True)
    start(ncc.all_gather_v, (sources, results, rows), CHIP, False)
    if "row" in change:
        begin, end = change["row"]
        rows[0, 0], rows[0, 1] = end - (begin if begin != end else 0), 0
    data = sources, change.get("results", results), change.get("rows", rows)
    groups, flags = change.get("groups", CHIP), (change.get("known", False), change.get("displaced", False))
    with pytest.raises(error) as caught:
        start(ncc.all_gather_v, data, groups, False, *flags, **options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("groups", "options", "error", "words"),
    [
        (CHIP * 1, {}, errors.ArgumentError, "ranks of one chip; accepted: of more than one"),
        ([[0, 2], [1, 3]], {}, errors.ArgumentError, "group [0, 2] of replica_group; accepted: consecutive ranks"),
        ([[1, 2, 3], [0]], {}, errors.ArgumentError, "group [1, 2, 3] of replica_group"),
        (CHIP, {"lnc": 1}, errors.LaunchError, "kernel[2]"),
        (CHIP, {"target": "trn2"}, errors.ArgumentError, "same-numbered ranks of different nodes"),
    ],
)
def test_all_to_all_v_groups(groups, options, error, words):
    with pytest.raises(error) as caught:
        start(ncc.all_to_all_v, ragged(4, same=False), groups, False, **options)
    assert words in str(caught.value)


def test_displacements_exist_from_trn3_on():
    sources, results, rows = ragged(2, same=False)
    rows = np.concatenate([rows, np.zeros_like(rows[:, :1])], axis=1)
    with pytest.raises(errors.TargetError, match="has_rdispls"):
        start(ncc.all_to_all_v, (sources, results, rows), [[0], [1]], False, False, True, target="trn2")


def test_runs_that_overlap_where_they_arrive():
    sources, results, rows = ragged(8, same=False)
    rows[:, 0] = 3
    rows = np.concatenate([rows, np.full_like(rows[:, :1], 5)], axis=1)
    with pytest.raises(errors.OverlapError, match="overlap in dsts"):
        start(ncc.all_to_all_v, (sources, results, rows), TWO_CHIPS, False, False, True)


def test_views_that_are_not_dense():
    @nki.jit
    def strided(x, rows):
        source, result = (nl.ndarray((40, 2), x.dtype, nl.shared_hbm) for _ in range(2))
        nisa.dma_copy(source[:, 0], x)
        ncc.all_gather_v([source[:, 0]], [result], ncc.ReplicaGroup(CHIP), rows)

    sources, _, rows = ragged(4, same=True)
    with pytest.raises(errors.ViewError, match=r"srcs\[0\] .* not a dense view"):
        run_ranks(strided[2], list(zip(sources, rows, strict=True)))


def test_cores_with_different_metadata():
    @nki.jit
    def torn(x, rows):
        source, result = (nl.ndarray((40,), x.dtype, nl.shared_hbm) for _ in range(2))
        nisa.dma_copy(source, x)
        metadata = nl.ndarray((1, 3, 4), nl.uint32, nl.sbuf)
        nisa.dma_copy(metadata, rows[nl.program_id(0)])
        ncc.all_gather_v([source], [result], ncc.ReplicaGroup(CHIP), metadata)

    sources, _, rows = ragged(4, same=True)
    run_ranks(torn[2], [(s, np.stack([r, r])) for s, r in zip(sources, rows, strict=True)])
    with pytest.raises(errors.DivergenceError, match=r"core 0 calls .* core 1 .*; accepted: the same on every core"):
        run_ranks(torn[2], [(s, np.stack([r, r + np.uint32(1)])) for s, r in zip(sources, rows, strict=True)])
