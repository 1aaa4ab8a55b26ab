"""Policies: the seed's rule to the letter, and a search whose plans run and are none the worse for it."""

import dataclasses

import pytest

from common.hardware import TRN3
from devicetime.predict import predict
from kernels.qkv_cte.oracle import norm_rope_cases
from kernels.qkv_cte.oracle.cases import Case
from kernels.qkv_cte.oracle.norm_rope_cases import NormRopeCase
from kernels.qkv_cte.planning import plan_checks, policy
from kernels.qkv_cte.planning.dims import Dims

ALONE = {call.case.name: dataclasses.replace(call, groups=None) for call in norm_rope_cases.WAN22}
SMALL = NormRopeCase(Case("small", 640, 1152, 3, "full", num_kv_heads=3, lnc=2))
CROSS = NormRopeCase(Case("cross", 384, 2048, 10, "full"), k_norm=False, rope=False, nbsd=True)


def predicted_ns(made):
    return predict(plan_checks.run_without_values(made), "trn3").total_ns


def arguments(call):
    return call.case.dims, TRN3, call.norm_rope, call.case.head_dim if call.nbsd else 0


@pytest.mark.parametrize(
    ("width", "degree", "banks_per_group", "i_groups", "resident_h_tiles", "s_blocks"),
    [
        (1920, 8, 1, 4, 10, 4),  # TP 8: (245,752 - 30,216 - 76,800) // 8,964 = 15, the 8 banks bind
        (3840, 3, 2, 4, 10, 11),  # TP 4: (245,752 - 45,576 - 153,600) // 12,804 = 3; min(8, 8 // 3) banks
        (5120, 8, 1, 10, 3, 4),  # cross: 10 tiles leave nothing; 245,752 - 55,816 - 4,096 - 8 * 15,364 = 62,928
        (7680, 8, 1, 15, 0, 4),  # TP 2: 245,752 - 76,296 - 4,096 - 8 * 20,484 = 1,488 is less than a tile
        (15360, 2, 4, 8, 0, 16),  # TP 1: 245,752 - 137,736 - 2 * 8,192 - 2 * 35,844 = 19,944; 3 do not fit
    ],
)
def test_seed_by_hand(width, degree, banks_per_group, i_groups, resident_h_tiles, s_blocks):
    """The published rule for Wan2.2's projections, 4,096 tokens of H = 5,120, in bytes of a trn3 partition.

    An H-tile of weights is 4 I, and there are 10. An S-tile holds 2 I of outputs, 4 * 10 * 128 of activations and a
    scale, 4. Fixed are 8 I of scales and bias, 512 of MX scales, two rows of 5,124 and two fp32 banks of 2,048; two
    chunk buffers are 2,048 for each bank of a group, where weights stream.
    """
    made = policy.seed(Dims(1, 4096, 5120, width), TRN3)
    found = made.schedule
    assert (found.degree, found.banks_per_group, found.num_i_groups) == (degree, banks_per_group, i_groups)
    assert (found.resident_h_tiles, len(found.blocks)) == (resident_h_tiles, s_blocks)
    assert made.policy == "seed"


@pytest.mark.parametrize("call", [SMALL, CROSS], ids=lambda call: call.case.name)
def test_best_is_faster_than_the_seed_and_runs(call):
    made = policy.best(policy.seed(*arguments(call)), time_of=predicted_ns)
    first = policy.seed(*arguments(call))
    assert made.policy == "best"
    assert predicted_ns(made) < predicted_ns(first)
    assert made.hbm.weights <= first.hbm.weights
    assert f"{predicted_ns(made) / 1e3:,.1f} us" in made.policy_why[0]
    assert all(reason in str(made) for reason in made.policy_why)
    plan_checks.assert_exact(made)
    assert made == policy.best(policy.seed(*arguments(call)), time_of=predicted_ns)


def test_best_is_of_a_plan():
    with pytest.raises(TypeError, match=r"^first must be a Plan, got None"):
        policy.best(None, time_of=predicted_ns)  # type: ignore[arg-type]


def test_best_takes_the_least_of_what_it_was_told():
    """Times of one's own: the third plan asked for is the best, and what cannot beat it is not asked for."""
    asked = []

    def time_of(made):
        asked.append(made)
        return 1.0 if len(asked) == 3 else 1e12 + len(asked)

    made = policy.best(policy.seed(*arguments(SMALL)), time_of=time_of)
    assert dataclasses.replace(made, policy="seed", policy_why=()) == asked[2]
    assert len(asked) == 2 + len(policy.SCALAR_EVERY)


def plans_tried(first):
    tried = []

    def time_of(made):
        tried.append(made)
        return 1e12 + len(tried)

    policy.best(first, time_of=time_of)
    assert len(tried) > 2 + len(policy.SCALAR_EVERY)
    return tried


def test_no_plan_that_is_tried_reads_too_much():
    """No weight twice where the seed's plan reads each once; elsewhere a tenth more bytes in all."""
    once = policy.seed(*arguments(SMALL))
    assert once.hbm.weights == once.minimum.weights
    assert any(other.hbm.weights > once.hbm.weights for other in policy._plans(once))
    assert {made.hbm.weights for made in plans_tried(once)} == {once.hbm.weights}
    wide = NormRopeCase(Case("wide", 1280, 6656, 10, "graduated", num_kv_heads=10, lnc=1))
    often = policy.seed(*arguments(wide))
    assert often.hbm.weights > often.minimum.weights
    limit = policy.MOST_BYTES * often.hbm.total
    assert any(other.hbm.total > limit for other in policy._plans(often))
    tried = plans_tried(often)
    assert max(made.hbm.total for made in tried) <= limit
    assert any(made.hbm.weights > often.hbm.weights for made in tried)


def test_no_prediction_is_below_the_bound():
    for call in (SMALL, CROSS):
        for made in (policy.seed(*arguments(call)), policy.best(policy.seed(*arguments(call)), time_of=predicted_ns)):
            assert policy.bound_ns(made) < predicted_ns(made)


def test_the_bound_is_of_products_or_of_bytes():
    """Counted by hand: H-tiles x columns x S-tiles at 2.4 GHz, or the bytes of two cores at a quarter of 4.7 TB/s."""
    products, waiting = (policy.seed(*arguments(ALONE[name])) for name in ("self_tp4", "cross_v"))
    assert policy.bound_ns(products) == pytest.approx(10 * 3840 * 37 / 2.4)
    assert policy.bound_ns(waiting) == pytest.approx(waiting.hbm.total / (4.7e3 / 4))
    assert policy.bound_ns(products) > products.hbm.total / (4.7e3 / 4)
    assert policy.bound_ns(waiting) > 10 * 5120 * 2 / 2.4


@pytest.mark.parametrize("name", ["cross_q", "cross_k", "cross_v"])
def test_wan22_cross_attention(name):
    """At most 0.8 of the seed's plan with all evictions on the Vector Engine, weights read once."""
    call = ALONE[name]
    made = policy.best(policy.seed(*arguments(call)), time_of=predicted_ns)
    naive = policy.seed(*arguments(call), one_engine=True)
    ratio = predicted_ns(made) / predicted_ns(naive)
    print(f"{name}: {policy.name_of(made)}, {ratio:.2f} of the seed on one engine")
    assert ratio <= 0.8
    assert made.hbm.weights == made.minimum.weights
