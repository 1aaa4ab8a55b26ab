"""The table covers what it promises, and its operands are what they are called."""

import dataclasses

import pytest
import torch

from common import row_mx
from kernels.qkv_cte.oracle import cases
from kernels.qkv_cte.oracle.cases import CORNERS, SUITES, WAN22, Case

EVERY = [case for suite in SUITES.values() for case in suite]


def test_names_are_unique():
    assert len({case.name for case in EVERY}) == len(EVERY)


@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
def test_plan_is_as_expected(case):
    chosen = case.plan.schedule
    assert chosen.prefetch == case.prefetch
    assert case.degree in (None, chosen.degree)
    assert case.resident_h_tiles in (None, chosen.resident_h_tiles)


def test_every_edge_is_reached():
    schedules = [case.plan.schedule for case in CORNERS]
    assert {chosen.degree for chosen in schedules} == set(range(1, 9))
    assert {chosen.prefetch for chosen in schedules} == {"full", "graduated", "chunked"}
    by_choice = [case.plan.schedule for case in CORNERS if case.degree is None and case.resident_h_tiles is None]
    assert {chosen.prefetch for chosen in by_choice} == {"full", "graduated", "chunked"}
    assert {1, 127, 128, 129, 255, 257, 4726} <= {case.seqlen for case in CORNERS}
    assert {1, 2, 3} <= {case.batch for case in CORNERS}
    assert {128, 384, 512, 640, 1152, 2560, 5120} <= {case.hidden for case in CORNERS}
    assert {128, 384, 512, 513, 15_360} <= {case.width for case in CORNERS}
    assert {case.bias_dtype for case in CORNERS} == {None, torch.bfloat16, torch.float32}
    assert any(len(chosen.blocks[0].i_groups) > len(chosen.blocks[-1].i_groups) for chosen in schedules)
    assert any(case.lnc == 2 and case.dims.tokens_per_core % 128 for case in CORNERS)


def test_wan22_has_the_published_sizes():
    sizes = {case.name: (case.seqlen // case.lnc, case.hidden, case.width) for case in WAN22}
    assert sizes == {
        "self_tp4": (4726, 5120, 3 * 5120 // 4),
        "self_tp8": (4726, 5120, 3 * 5120 // 8),
        "cross_q": (592, 5120, 5120),
        "cross_k": (256, 5120, 5120),
        "cross_v": (256, 5120, 5120),
    }


def test_suites_by_name():
    assert cases.suite("wan22") is WAN22
    with pytest.raises(ValueError, match="suite is 'all'; accepted: corners, wan22"):
        cases.suite("all")


SMALL = Case("small", 257, 128, 9, "full", head_dim=101)


@pytest.mark.parametrize("generate", [cases.normal_operands, cases.distinct_operands])
def test_operands_are_seeded(generate):
    first, same, other = (generate(SMALL, seed) for seed in (1, 1, 2))
    for one, two in zip(first.tensors, same.tensors, strict=True):
        assert torch.equal(one.view(torch.uint8), two.view(torch.uint8))
    assert not torch.equal(first.weight.view(torch.uint8), other.weight.view(torch.uint8))
    assert generate(dataclasses.replace(SMALL, bias_dtype=None)).bias is None
    assert generate(dataclasses.replace(SMALL, bias_dtype=torch.bfloat16)).bias.dtype == torch.bfloat16


def test_distinct_scales_differ_pairwise():
    operands = cases.distinct_operands(SMALL)
    _, rows = row_mx.unpack_rows(operands.packed_hidden)
    for scales in (rows.flatten(), operands.weight_scales.flatten(), cases.distinct_scales(912, 128)):
        ordered = scales.double().sort().values
        assert (ordered[1:] / ordered[:-1]).min() >= 1 + 2.0**-6
    exponents = torch.frexp(operands.weight_scales[0]).exponent - 1 + 14
    expected = [(column % 512 + 7 * (column // 512)) % 29 for column in range(SMALL.width)]
    assert exponents.tolist() == expected
    with pytest.raises(ValueError, match="count is 913; accepted: at most 912 in tiles of 128"):
        cases.distinct_scales(913, 128)
