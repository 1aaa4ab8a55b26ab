"""Whole calls in the bench: what is compared with what, and that figures come from the runs."""

import dataclasses
import json

import pytest

from common.hardware import TRN3
from kernels.qkv_cte import Choice
from kernels.qkv_cte.bench import bench, call_tables, calls
from kernels.qkv_cte.oracle.cases import Case
from kernels.qkv_cte.oracle.norm_rope_cases import NormRopeCase
from kernels.qkv_cte.oracle.norm_rope_compare import MAX_ULPS, SegmentErrors
from kernels.qkv_cte.planning import policy
from tools.bench.tables import show

SMALL = NormRopeCase(Case("small", 640, 1152, 3, "full", num_kv_heads=3, lnc=2))


@pytest.fixture(scope="module")
def results():
    return {chosen_by: calls.run(SMALL, TRN3, chosen_by, values=True) for chosen_by in ("seed", "best")}


def test_policies_are_compared_with_the_same_two_plans(results):
    seed, best = results["seed"], results["best"]
    assert seed.ns == seed.seed_ns == best.seed_ns
    assert seed.naive_ns == best.naive_ns != seed.seed_ns  # at this size one engine may be the faster way
    assert min(seed.seed_ns, seed.naive_ns) > best.ns
    assert (seed.plan.policy, best.plan.policy) == ("seed", "best")
    assert best.ns == calls.predict(best.plan).total_ns
    naive = policy.seed(SMALL.case.dims, TRN3, SMALL.norm_rope, one_engine=True)
    assert seed.naive_ns == calls.predict(naive).total_ns


def test_ranks_pay_for_their_all_reduce():
    """Two ranks, each with its heads: the all-reduce takes its time, and nobody has an inverse RMS before it ends."""
    call = dataclasses.replace(SMALL, groups=((0, 1),))
    made = policy.seed(call.case.dims, TRN3, SMALL.norm_rope)
    timeline = calls.predict(made, call.groups)
    names = [timeline.record_of(event).op for event in range(timeline.events)]
    reduced = [event for event, name in enumerate(names) if name == "all_reduce"]
    readers = [
        event
        for event in range(timeline.events)
        if any(region.allocation.name == "inv_rms" for region in timeline.record_of(event).reads)
    ]
    assert len(reduced) == 2 * call.case.lnc
    assert timeline.end_ns[reduced].min() > timeline.start_ns[reduced].max() + 1000
    assert timeline.start_ns[readers].min() >= timeline.end_ns[reduced].max()
    assert calls.run(call, TRN3, "seed", values=False).ns == timeline.total_ns


def test_busy_shares_are_those_of_the_timeline(results):
    for result in results.values():
        timeline = calls.predict(result.plan)
        assert 0.0 < result.products_busy <= 1.0 + 1e-9
        tensor = [n for n, track in enumerate(timeline.tracks) if track.short_name == "Tensor"]
        held = sum(
            float(timeline.end_ns[event] - timeline.start_ns[event])
            for event in range(timeline.events)
            if timeline.track[event] in tensor
        )
        assert result.busy["Tensor"] == pytest.approx(held / timeline.total_ns / len(tensor))


def test_values_by_segment(results):
    for result in results.values():
        assert [errors.name for errors in result.segments] == ["Q", "K", "V"]
        assert all(0.3 < errors.max_ulps <= MAX_ULPS for errors in result.segments)
        assert result.accepted
    wrong = dataclasses.replace(results["seed"], segments=(SegmentErrors("Q", 2.01, 0.0),))
    assert not wrong.accepted


def test_tables_and_json_say_what_was_chosen_and_why(results, capsys):
    show(call_tables.tables([*results.values()]))
    text = capsys.readouterr().out
    best = results["best"]
    assert policy.name_of(best.plan) in text
    assert best.plan.policy_why[-1] in text
    assert f"{best.ns / best.naive_ns:.2f}" in text
    assert max(map(len, text.splitlines())) <= 120
    document = json.loads(json.dumps(call_tables.as_dict(best)))
    assert document["policy"] == "best"
    assert document["plan"]["why"] == list(best.plan.policy_why)
    assert Choice.from_integers(document["choice"]) == best.plan.choice


def test_the_command(capsys, tmp_path):
    path = tmp_path / "calls.json"
    assert bench.main(["--calls", "--case", "cross_v", "--no-numerics", "--json", str(path)]) == 0
    assert "cross_v" in capsys.readouterr().out
    (call,) = json.loads(path.read_text())["calls"]
    assert (call["name"], call["policy"], call["segments"]) == ("cross_v", "seed", [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--calls", "--policy", "fastest"), "invalid choice: 'fastest'"),
        (("--calls", "--suite", "wan22"), "--suite and --calls exclude each other"),
        (("--calls", "--trace", "t.json"), "--calls and --trace exclude each other"),
        (("--calls", "--case", "cross_w"), "--case is 'cross_w'; accepted: self_tp4, self_tp8"),
        (("--calls", "--target", "trn2"), "target is 'trn2'; accepted: 'trn3'"),
    ],
)
def test_bad_usage_ends_in_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as caught:
        bench.main(arguments)
    assert caught.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error
