"""General calls whose heads are split over ranks: one all-reduce makes every rank's norm that of the whole."""

import dataclasses

import pytest
import torch

import nkisim
from kernels.qkv_cte import Choice, NormType, QKNormConfig, QuantizationType, qkv_ranks
from kernels.qkv_cte.oracle import qkv_reference
from kernels.qkv_cte.oracle.compare import bf16_ulp
from kernels.qkv_cte.oracle.qkv_cases import QKVCase, random_call
from kernels.qkv_cte.oracle.qkv_compare import MAX_SUM_ERROR, limit_of, magnitude, max_ulps, sum_error

ACROSS = QKNormConfig(NormType.RMS_NORM_ACROSS_HEADS, NormType.RMS_NORM_ACROSS_HEADS, 1e-5)
WHOLE = QKVCase("bf16", 130, 256, 8, 4, 64, bias=True, rope=True, pre=ACROSS, lnc=2, sums=("q", "k"))
CASES = (
    WHOLE,
    dataclasses.replace(WHOLE, name="norm", rope=False, norm=NormType.RMS_NORM, residuals=1, lnc=1),
    dataclasses.replace(WHOLE, name="mxfp8", quantization=QuantizationType.MXFP8, norm=NormType.RMS_NORM),
    dataclasses.replace(WHOLE, name="row_mx", quantization=QuantizationType.ROW_MX),
)


def part_of(call, rank, ranks):
    """One rank's arguments: its heads of Q, K and V, and of the gammas; the same tokens and caches."""
    q, kv = call.num_q_heads * call.d_head, call.num_kv_heads * call.d_head

    def heads(tensor):
        if tensor is None:
            return None
        raw = tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor
        parts = [part.chunk(ranks, 1)[rank] for part in raw.split([q, kv, kv], 1)]
        return torch.cat(parts, 1).view(tensor.dtype)

    return vars(call) | {
        "num_q_heads": call.num_q_heads // ranks,
        "num_kv_heads": call.num_kv_heads // ranks,
        "fused_qkv_weights": heads(call.fused_qkv_weights),
        "bias": heads(call.bias),
        "qkv_w_scale": heads(call.qkv_w_scale),
        "qk_norm_pre_rope_q_gamma": call.qk_norm_pre_rope_q_gamma.chunk(ranks, 1)[rank],
        "qk_norm_pre_rope_k_gamma": call.qk_norm_pre_rope_k_gamma.chunk(ranks, 1)[rank],
        "q_squared_sum_out": torch.zeros(call.input.shape[:2]),
        "k_squared_sum_out": torch.zeros(call.input.shape[:2]),
        "replica_groups": (tuple(range(ranks)),),
    }


def parts_of(call, ranks):
    """Arguments of all ranks."""
    return [part_of(call, rank, ranks) for rank in range(ranks)]


def joined(call, outputs):
    """[B, S, I] of all ranks as one: all Q heads, all K heads, all V heads."""
    q, kv = (heads * call.d_head // len(outputs) for heads in (call.num_q_heads, call.num_kv_heads))
    parts = [output.split([q, kv, kv], -1) for output in outputs]
    return torch.cat([part[segment] for segment in range(3) for part in parts], -1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_split_heads_equal_the_whole(case):
    """TP 1, 2 and 4: an inv_rms may differ in its last bits, for which an output may be rounded the other way."""
    call = random_call(case)
    (whole,) = qkv_ranks(parts_of(call, 1), lnc=case.lnc)
    assert max_ulps(call, whole) <= limit_of(call)
    terms = magnitude(call, qkv_reference.qkv(call).output)
    for ranks in (2, 4):
        calls = parts_of(call, ranks)
        result = joined(call, qkv_ranks(calls, lnc=case.lnc))
        apart = (result.double() - whole.double()).abs()
        assert (apart <= bf16_ulp(whole.double()) + 2.0**-21 * terms).all()
        assert (apart > 0).double().mean() < 1e-3
        assert max_ulps(call, result) <= limit_of(call)
        for name in case.sums:
            sums = sum(part[f"{name}_squared_sum_out"] for part in calls)
            assert sum_error(call, name, sums, whole.dtype) <= MAX_SUM_ERROR


def test_ranks_see_each_others_heads():
    """The last rank's heads a thousand times as large: the other's normalised outputs shrink, V stays."""
    calls = parts_of(random_call(WHOLE), 2)
    loud = calls[1] | {name: calls[1][name] * 1000 for name in ("fused_qkv_weights", "bias")}
    plain, after = qkv_ranks(calls)[0], qkv_ranks([calls[0], loud])[0]
    q, k, v = plain.split([256, 128, 128], -1)
    q_after, k_after, v_after = after.split([256, 128, 128], -1)
    assert q_after.norm() < q.norm() / 300
    assert k_after.norm() < k.norm() / 300
    assert torch.equal(v_after, v)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"input": None}, TypeError, "input is a NoneType; accepted"),
        ({"scales": 1}, TypeError, "qkv has no argument 'scales'; accepted: input, "),
        ({"replica_groups": [[0, 1]]}, TypeError, r"replica_groups is \[\[0, 1\]\]; accepted: None or equally long"),
        ({"replica_groups": None}, ValueError, r"replica_groups of rank 1 is None; accepted: \(\(0, 1\),\), as on"),
        ({"norm_eps": 0.5}, ValueError, "norm_eps of rank 1 is 0.5; accepted: 1e-06, as on rank 0"),
        ({"bias": None}, ValueError, r"bias of rank 1 is None; accepted: \[1, 512\] torch.float32, as on rank 0"),
        (
            {"choice": Choice(1, 1)},
            ValueError,
            r"choice of rank 1 is Choice\(degree=1, .*; accepted: None, as on",
        ),
    ],
)
def test_a_rank_that_differs_is_named(changes, error, message, monkeypatch):
    monkeypatch.setattr(nkisim, "run_ranks", lambda *_: pytest.fail("launched"))
    first, second = parts_of(random_call(WHOLE), 2)
    with pytest.raises(error, match=f"^{message}"):
        qkv_ranks([first, second | changes])


@pytest.mark.parametrize("groups", [((0, 1, 2),), ((0,),), ((1, 2),)])
def test_groups_that_miss_a_rank_are_refused(groups):
    calls = [call | {"replica_groups": groups} for call in parts_of(random_call(WHOLE), 2)]
    with pytest.raises(ValueError, match=r"replica_groups is .*; accepted: each of the 2 ranks called, 0 to 1"):
        qkv_ranks(calls)


def test_groups_without_a_norm_across_heads_are_refused():
    call = random_call(QKVCase("plain", 4, 128, 2, 1, 64))
    with pytest.raises(ValueError, match=r"^replica_groups is given without a norm across heads; accepted: None"):
        qkv_ranks([vars(call) | {"replica_groups": ((0,),)}])
