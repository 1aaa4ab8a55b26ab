"""The search against predictions: what it finds is no slower than anything it could have tried, and than the rules."""

import dataclasses
import functools

import pytest

from common.budget import BudgetError
from common.hardware import TRN2, TRN3
from devicetime.predict import predict
from kernels.mla_decode.bench.measure import run_without_values
from kernels.mla_decode.oracle.cases import production
from kernels.mla_decode.planning import plan, policy
from kernels.mla_decode.planning.dims import Dims
from nkisim.execution import Run


def predicted_ns(made):
    return predict(Run(None, run_without_values(made).cores), made.hardware).total_ns


def time_beside(favourite, made):
    return 1.0 if made == favourite else 2.0


def test_best_of_all_that_fit():
    """Against times made up, so that each plan of the space is the best once."""
    dims = Dims(8, 2, 256, kv_lora_rank=256)
    space = [plan.make(dims, TRN2, chunks, group_tokens=group) for chunks in range(3) for group in (1, 2, 4, 8)]
    for favourite in space:
        choice = policy.best(dims, TRN2, time_of=functools.partial(time_beside, favourite))
        assert choice.plan == favourite
        assert choice.tried == len(space)
        assert choice.predicted_ns == 1.0


def test_what_cores_share_is_tried():
    dims = Dims(4, 2, 256, cores=2)
    for favourite in (plan.make(dims, TRN2, cores_share=shared, group_tokens=1) for shared in ("tokens", "heads")):
        choice = policy.best(dims, TRN2, time_of=functools.partial(time_beside, favourite))
        assert choice.plan == favourite
        assert choice.tried == 5 * (2 + 3)


def test_groups_have_up_to_128_maxima():
    tried = set()

    def time_of(made):
        tried.add(made.group_tokens)
        return 1.0

    policy.best(Dims(8, 40, 130), TRN2, time_of=time_of)
    assert tried == {1, 2, 3}


def test_fp32_has_no_transposes_by_dma_to_try():
    tried = []

    def time_of(made):
        tried.append(made)
        return 1.0

    policy.best(Dims(4, 1, 130, itemsize=4), TRN2, time_of=time_of)
    assert {made.dma_transposed_chunks for made in tried} == {0}
    assert [made.group_tokens for made in tried] == [4, 1, 2]


def test_ties_keep_the_rule():
    dims = Dims(8, 2, 256)
    choice = policy.best(dims, TRN2, time_of=lambda _: 1.0)
    assert choice.plan == plan.make(dims, TRN2)
    assert "1.000 of the" in choice.why


def test_what_does_not_fit_is_refused_as_by_rule():
    with pytest.raises(BudgetError, match="latent_features"):
        policy.best(Dims(128, 128, 2048), TRN2, time_of=lambda _: 1.0)


@pytest.mark.parametrize("hardware", [TRN2, TRN3], ids=lambda hardware: hardware.name)
def test_the_rules_are_near_the_best_at_the_production_shape(hardware):
    """Within 5 %, and one transpose by DMA is better than none."""
    case = dataclasses.replace(production("production"), target=hardware.name)
    choice = policy.best(case.dims, hardware, time_of=predicted_ns)
    assert choice.predicted_ns <= choice.rule_ns <= 1.05 * choice.predicted_ns
    assert case.plan.dma_transposed_chunks == 1
    assert choice.rule_ns < predicted_ns(dataclasses.replace(case, dma_transposed_chunks=0).plan)
