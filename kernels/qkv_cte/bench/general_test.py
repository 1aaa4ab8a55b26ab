"""General calls in the bench: the search finds plans that run, and figures come from the runs."""

import dataclasses
import json

import pytest
import torch

from common.hardware import TRN3
from kernels.qkv_cte import Choice, NormType, QKNormConfig, QuantizationType, row_mx_qkv_proj
from kernels.qkv_cte.bench import bench, general, search
from kernels.qkv_cte.host import entry, shim
from kernels.qkv_cte.host.row_mx_arguments import RowMxArguments
from kernels.qkv_cte.oracle.cases import Case, normal_operands
from kernels.qkv_cte.oracle.qkv_cases import QKVCase, random_call
from kernels.qkv_cte.oracle.qkv_compare import limit_of, max_ulps
from kernels.qkv_cte.planning import policy
from tools.bench.tables import show

ACROSS = QKNormConfig(NormType.RMS_NORM_ACROSS_HEADS, NormType.RMS_NORM_ACROSS_HEADS)
RMS = NormType.RMS_NORM
CASES = (
    QKVCase("across", 640, 1152, 6, 2, 128, lnc=2, bias=True, rope=True, pre=ACROSS),
    QKVCase("heads", 640, 1152, 4, 1, 128, lnc=2, norm=RMS, rope=True, pre=QKNormConfig(RMS, RMS), cache="flat"),
    QKVCase("mxfp8", 258, 2048, 8, 1, 128, lnc=2, norm=RMS, quantization=QuantizationType.MXFP8),
    QKVCase("decode", 16, 2048, 8, 1, 128, lnc=2, rope=True),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_search_finds_plans_that_run(case):
    call = random_call(case)
    prepared = entry.ENTRY.prepare(call, target="trn3", lnc=case.lnc)
    # Until the Scalar Engine's share is searched, plans have that of the seed's.
    assert {other.flow.scalar_every for other in policy._plans(prepared.plan)} == {prepared.plan.flow.scalar_every}
    made = search.best(entry.ENTRY, call, lnc=case.lnc)
    best_ns, seed_ns = (search.predicted_ns(entry.ENTRY, each, prepared.tensors) for each in (made, prepared.plan))
    print(f"{case.name}: {best_ns / seed_ns:.2f} of the seed, {policy.name_of(made)}")
    assert policy.bound_ns(made) < best_ns < seed_ns
    assert made.hbm.total <= policy.MOST_BYTES * prepared.plan.hbm.total
    assert f"{best_ns / 1e3:,.1f} us" in made.policy_why[0]
    chosen = dataclasses.replace(call, choice=made.choice)
    assert entry.ENTRY.prepare(chosen, target="trn3", lnc=case.lnc).plan.config == made.config
    assert max_ulps(call, entry.qkv(**vars(chosen), lnc=case.lnc)) <= limit_of(call)
    assert search.best(entry.ENTRY, chosen, lnc=case.lnc) == made


def test_the_search_serves_both_functions():
    """Of a row-quantised call it is the one that the bench makes of its sizes."""
    case = Case("row_mx", 640, 1152, 3, "full", lnc=2)
    call = RowMxArguments(*normal_operands(case).tensors, num_heads=3, head_dim=128, num_kv_heads=0)
    made = search.best(shim.ENTRY, call)
    tensors = shim.ENTRY.prepare(call, target="trn3", lnc=2).tensors
    first = policy.seed(case.dims, TRN3)
    assert made == policy.best(first, time_of=lambda other: search.predicted_ns(shim.ENTRY, other, tensors))
    chosen = dataclasses.replace(call, choice=made.choice)
    assert torch.equal(row_mx_qkv_proj(**vars(chosen)), row_mx_qkv_proj(**vars(call)))


def test_tables_and_json_say_what_was_chosen(capsys):
    seed, best = (general.run(CASES[3], TRN3, chosen_by, values=True) for chosen_by in ("seed", "best"))
    assert seed.ns == seed.seed_ns == best.seed_ns > best.ns
    assert best.ulps is not None
    assert 0.3 < best.ulps <= best.limit
    show(general.tables([seed, best]))
    text = capsys.readouterr().out
    assert f"{best.ns / best.seed_ns:.2f}" in text
    assert "OUT OF TOLERANCE" not in text
    document = json.loads(json.dumps(general.as_dict(best)))
    assert Choice.from_integers(document["choice"]) == best.plan.choice
    assert document["plan"]["why"] == list(best.plan.policy_why)
    assert not dataclasses.replace(best, ulps=best.limit + 0.01).accepted


def test_the_command(capsys, tmp_path):
    path = tmp_path / "general.json"
    arguments = ["--calls", "general", "--case", "llama_70b_tp8_decode", "--no-numerics", "--json", str(path)]
    assert bench.main(arguments) == 0
    assert "llama_70b_tp8_decode" in capsys.readouterr().out
    (call,) = json.loads(path.read_text())["general"]
    assert (call["name"], call["policy"], call["max_ulps"]) == ("llama_70b_tp8_decode", "seed", None)
    with pytest.raises(SystemExit):
        bench.main(["--calls", "general", "--case", "llama"])
    assert "--case is 'llama'; accepted: wan_self_tp4" in capsys.readouterr().err
