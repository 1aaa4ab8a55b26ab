"""Heads split over ranks: one all-reduce makes every rank's norm that of the whole."""

import dataclasses

import pytest
import torch

import nkisim
from kernels.qkv_cte import NormType, QKNormConfig, row_mx_qkv_proj_ranks
from kernels.qkv_cte.device.kernel import row_mx_projection
from kernels.qkv_cte.oracle import cases, compare, reference
from kernels.qkv_cte.oracle.cases import Case
from kernels.qkv_cte.oracle.norm_rope_cases import NormRopeCase, early, normal_operands

ACROSS_HEADS = NormType.RMS_NORM_ACROSS_HEADS
OPTIONS = nkisim.Options(target="trn3")
WHOLE = NormRopeCase(Case("whole", 258, 256, 8, "full", num_kv_heads=8, head_dim=32, lnc=2))


def split(call, ranks, groups):
    """The call of one of `ranks` ranks."""
    heads = {"num_heads": call.case.num_heads // ranks, "num_kv_heads": call.case.num_kv_heads // ranks}
    return dataclasses.replace(call, case=dataclasses.replace(call.case, **heads), groups=groups)


def part_of(call, operands, rank, ranks):
    """One rank's operands: its heads of Q, K and V, and of the gammas; the same tokens and caches."""

    def heads(tensor, dim=-1):
        return tensor.chunk(ranks, dim)[rank]

    q, kv = call.case.num_heads * call.case.head_dim, call.case.num_kv_heads * call.case.head_dim

    def fused(tensor):
        return torch.cat([heads(part, 1) for part in tensor.split([q, kv, kv], 1)], 1)

    hidden, weight, scales, bias = operands.projection.tensors
    weight = fused(weight.view(torch.uint8)).view(weight.dtype)
    return dataclasses.replace(
        operands,
        projection=cases.Operands(hidden, weight, fused(scales), fused(bias)),
        q_gamma=None if operands.q_gamma is None else heads(operands.q_gamma),
        k_gamma=None if operands.k_gamma is None else heads(operands.k_gamma),
    )


def run_ranks(calls, operands):
    """Runs of all ranks."""
    arguments = [given.arguments(call.plan) for call, given in zip(calls, operands, strict=True)]
    return nkisim.run_ranks(row_mx_projection[calls[0].case.lnc], arguments, OPTIONS)


def run_split(call, operands, ranks):
    """Runs of `ranks` ranks in one group that share the heads of a call."""
    mine = split(call, ranks, (tuple(range(ranks)),))
    return run_ranks([mine] * ranks, [part_of(call, operands, rank, ranks) for rank in range(ranks)])


def joined(call, outputs):
    """[B, S, I] of all ranks as one: all Q heads, all K heads, all V heads."""
    parts = [output.chunk(3, -1) for output in outputs]
    return torch.cat([part[segment] for segment in range(3) for part in parts], -1)


def exact(call, operands):
    """The whole call in fp64, and the sum of the magnitudes of each output's terms, of which RoPE makes two."""
    q, k, v = reference.row_mx_qkv_proj(*operands.projection.tensors).chunk(3, -1)
    q, k = (reference.rms_norm(x, g, call.eps) for x, g in ((q, operands.q_gamma), (k, operands.k_gamma)))
    terms = [q.abs(), k.abs(), v.abs()]
    if operands.cos is not None:
        ones = torch.ones_like(operands.cos)
        signs = torch.cat([-ones.chunk(2, -1)[0], ones.chunk(2, -1)[1]], -1)
        terms[:2] = [reference.rope(x, ones, signs) for x in terms[:2]]
        q, k = (reference.rope(x, operands.cos, operands.sin) for x in (q, k))
    return torch.cat([q, k, v], -1), torch.cat(terms, -1)


@pytest.mark.parametrize("kept_tiles", [None, 1], ids=["late", "early"])
@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_split_heads_equal_the_whole(ranks, lnc, rope, kept_tiles):
    """A rank's sums are added in another order than those of one rank: an inv_rms may differ in its last bits.

    That moves an output by a few 2**-24 of its terms and, where it lay between two bf16 numbers, by an ulp.
    """
    call = dataclasses.replace(WHOLE, case=dataclasses.replace(WHOLE.case, lnc=lnc), rope=rope)
    if kept_tiles is not None:
        call = early(call, kept_tiles)
    operands = normal_operands(call)
    (whole,) = run_ranks([call], [operands])
    runs = run_split(call, operands, ranks)
    result = joined(call, [run.outputs for run in runs])
    expected, terms = exact(call, operands)
    apart = (result.double() - whole.outputs.double()).abs()
    assert (apart <= compare.bf16_ulp(whole.outputs.double()) + 2.0**-21 * terms).all()
    changed = float((apart > 0).double().mean())
    print(f"TP{ranks} lnc {lnc} rope {rope}: {changed:.2e} of the outputs differ")
    assert changed < 1e-3
    assert torch.equal(result.chunk(3, -1)[2], whole.outputs.chunk(3, -1)[2])
    # Two roundings of up to 2**-9 each.
    assert (result.double() - expected).norm() < 2.0**-8 * expected.norm()


@pytest.mark.parametrize("kept_tiles", [None, 1], ids=["late", "early"])
def test_eps_is_added_once_and_not_by_each_rank(kept_tiles):
    """An eps as large as the mean square, which counts ranks as the sums do not."""
    call = dataclasses.replace(WHOLE, eps=1.0)
    if kept_tiles is not None:
        call = early(call, kept_tiles)
    operands = normal_operands(call)
    result = joined(call, [run.outputs for run in run_split(call, operands, 4)])
    expected, _ = exact(call, operands)
    assert (result.double() - expected).norm() < 2.0**-8 * expected.norm()


@pytest.mark.parametrize("change", [lambda call: call, lambda call: early(call, 2)], ids=["late", "early"])
def test_one_all_reduce_per_call_from_sbuf_to_sbuf(change):
    call = change(dataclasses.replace(WHOLE, case=dataclasses.replace(WHOLE.case, seqlen=1030, batch=2)))
    operands = normal_operands(call)
    for run in run_split(call, operands, 2):
        for core in run.cores:
            (record,) = [record for record in core.stream if record.op == "all_reduce"]
            (source,), (target,) = record.reads, record.writes
            assert source.allocation.name == "sum_squares"
            assert target.allocation.name == "inv_rms"
            assert source.size_bytes == 128 * 4 * 2 * call.case.dims.s_tiles
    (alone,) = run_ranks([call], [operands])
    assert not [record for core in alone.cores for record in core.stream if record.op == "all_reduce"]


def test_without_a_norm_nothing_is_reduced():
    mine = dataclasses.replace(split(WHOLE, 2, ((0, 1),)), q_norm=False, k_norm=False)
    operands = normal_operands(dataclasses.replace(WHOLE, q_norm=False, k_norm=False))
    for run in run_ranks([mine] * 2, [part_of(WHOLE, operands, rank, 2) for rank in range(2)]):
        assert not [record for core in run.cores for record in core.stream if record.op == "all_reduce"]


def test_groups_are_their_own():
    """Ranks 0 and 2 hold one batch, 1 and 3 another: each pair is as if it were alone."""
    batches = [normal_operands(WHOLE, seed) for seed in (1, 2)]
    mine = split(WHOLE, 2, ((0, 2), (1, 3)))
    given = [part_of(WHOLE, batches[rank % 2], rank // 2, 2) for rank in range(4)]
    runs = run_ranks([mine] * 4, given)
    for which, operands in enumerate(batches):
        alone = run_split(WHOLE, operands, 2)
        for half in range(2):
            assert torch.equal(runs[which + 2 * half].outputs, alone[half].outputs)


def test_ranks_see_each_others_heads():
    """The last rank's heads a thousand times as large: every other rank's outputs shrink, V stays."""
    operands = normal_operands(WHOLE)
    plain = run_split(WHOLE, operands, 4)
    loud = part_of(WHOLE, operands, 3, 4)
    projection = loud.projection
    louder = cases.Operands(
        projection.packed_hidden, projection.weight, projection.weight_scales * 1000, projection.bias * 1000
    )
    mine = split(WHOLE, 4, ((0, 1, 2, 3),))
    given = [part_of(WHOLE, operands, rank, 4) for rank in range(3)]
    runs = run_ranks([mine] * 4, [*given, dataclasses.replace(loud, projection=louder)])
    for before, after in zip(plain[:3], runs[:3], strict=True):
        q, k, v = (part.double().norm() for part in before.outputs.chunk(3, -1))
        q_after, k_after, v_after = (part.double().norm() for part in after.outputs.chunk(3, -1))
        assert q_after < q / 300
        assert k_after < k / 300
        assert v_after == v


def test_rank_plans_are_exact():
    """All-reduce included, a rank's SBUF peak is its plan's."""
    mine = split(WHOLE, 4, ((0, 1, 2, 3),))
    for run in run_split(WHOLE, normal_operands(WHOLE), 4):
        for core in run.cores:
            assert core.memory.sbuf_peak_bytes == mine.plan.sbuf.peak_bytes


def shim_arguments(call, operands):
    projection = operands.projection
    return {
        "packed_hidden": projection.packed_hidden,
        "weight": projection.weight,
        "weight_scales": projection.weight_scales,
        "bias": projection.bias,
        "num_heads": call.case.num_heads,
        "head_dim": call.case.head_dim,
        "num_kv_heads": call.case.num_kv_heads,
        "fused_rope": True,
        "cos_cache": operands.cos,
        "sin_cache": operands.sin,
        "qk_norm_pre_rope": QKNormConfig(ACROSS_HEADS, ACROSS_HEADS, eps=call.eps),
        "qk_norm_pre_rope_q_gamma": operands.q_gamma,
        "qk_norm_pre_rope_k_gamma": operands.k_gamma,
        "replica_groups": call.groups,
    }


def shim_calls(ranks=2):
    mine, operands = split(WHOLE, ranks, (tuple(range(ranks)),)), normal_operands(WHOLE)
    return [shim_arguments(mine, part_of(WHOLE, operands, rank, ranks)) for rank in range(ranks)]


@pytest.mark.parametrize("lnc", [1, 2])
def test_shim_runs_all_ranks(lnc):
    call = dataclasses.replace(WHOLE, case=dataclasses.replace(WHOLE.case, lnc=lnc))
    expected = [run.outputs for run in run_split(call, normal_operands(call), 2)]
    results = row_mx_qkv_proj_ranks(shim_calls(), lnc=lnc)
    assert all(torch.equal(*pair) for pair in zip(results, expected, strict=True))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"packed_hidden": torch.zeros(1, 258, 260)}, TypeError, "packed_hidden is torch.float32; accepted"),
        (
            {"scales": 1},
            TypeError,
            "row_mx_qkv_proj has no argument 'scales'; accepted: packed_hidden, weight, .*, choice",
        ),
        ({"replica_groups": [[0, 1]]}, TypeError, r"replica_groups is \[\[0, 1\]\]; accepted: None or equally long"),
        ({"replica_groups": None}, ValueError, r"replica_groups of rank 1 is None; accepted: \(\(0, 1\),\), as on"),
        ({"norm_eps": 0.5}, ValueError, "norm_eps of rank 1 is 0.5; accepted: 1e-06, as on rank 0"),
        (
            {"bias": torch.zeros(1, 384).bfloat16()},
            ValueError,
            r"bias of rank 1 is \[1, 384\] torch.bfloat16; accepted: \[1, 384\] torch.float32, as on rank 0",
        ),
    ],
)
def test_ranks_that_disagree_are_refused_by_name(changes, error, message, monkeypatch):
    monkeypatch.setattr(nkisim, "run_ranks", lambda *_: pytest.fail("launched"))
    first, second = shim_calls()
    with pytest.raises(error, match=f"^{message}"):
        row_mx_qkv_proj_ranks([first, second | changes])


@pytest.mark.parametrize("groups", [((0, 1, 2),), ((0,),), ((1, 2),)])
def test_groups_that_miss_a_rank_are_refused(groups):
    calls = [call | {"replica_groups": groups} for call in shim_calls()]
    with pytest.raises(ValueError, match=r"replica_groups is .*; accepted: each of the 2 ranks called, 0 to 1"):
        row_mx_qkv_proj_ranks(calls)


def test_a_missing_argument_is_named():
    first, second = shim_calls()
    del second["weight"]
    with pytest.raises(TypeError, match=r"^row_mx_qkv_proj is called without weight; accepted: with packed_hidden, "):
        row_mx_qkv_proj_ranks([first, second])


@pytest.mark.parametrize("calls", [[], None, [1], {}, "ab"])
def test_calls_that_are_none_are_refused(calls):
    with pytest.raises(TypeError, match="calls is not a list of dictionaries; accepted"):
        row_mx_qkv_proj_ranks(calls)
