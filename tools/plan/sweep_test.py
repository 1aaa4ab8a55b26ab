"""A sweep made of Bazel actions against the same points in this process."""

import csv
from pathlib import Path

import pytest

from tools.plan import point, results


def test_actions_give_what_a_process_gives():
    outcomes = [
        point.outcome("qkv_cte", "", [f"degree={degree}", "hidden=256", "seqlen=512", "width=512"])
        for degree in (1, 2, 9)
    ]
    text = Path("tools/plan/small_sweep.csv").read_text()
    assert text == results.csv_text(outcomes)
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["refusal"] != "" for row in rows] == [False, False, True]
    assert float(rows[0]["predicted_ns"]) > 0


def test_unknown_kernels_and_knobs_are_refused():
    with pytest.raises(ValueError, match="kernel is 'conv'; accepted: qkv_cte, mla_decode, adaln_quant"):
        point.outcome("conv", "", [])
    with pytest.raises(ValueError, match="knob is 'colour'; accepted: batch, "):
        point.outcome("qkv_cte", "", ["colour=1"])
