"""Tables and JSON of results."""

import dataclasses
import json
import re

import pytest

from common.hardware import TRN3
from kernels.qkv_cte.bench import json_document, shapes, tables
from kernels.qkv_cte.oracle import cases
from kernels.qkv_cte.oracle.compare import Errors
from tools.bench.tables import show

BATCH = next(case for case in cases.CORNERS if case.name == "batch_2")


@pytest.fixture(scope="module")
def wan22():
    return [shapes.run(shapes.prepare(case, TRN3, values=False)) for case in cases.WAN22]


@pytest.fixture(scope="module")
def with_values():
    return shapes.run(shapes.prepare(BATCH, TRN3, values=True))


def printed(capsys, renderables):
    show(renderables)
    return capsys.readouterr().out


def table(text, title):
    """A printed table's header and rows, cells split where two or more blanks are."""
    text = text.rstrip("\n")
    lines = text.split("\n\n")[[part.split("\n")[0] for part in text.split("\n\n")].index(title)].split("\n")[1:]
    return lines, [re.split(r"  +", line.strip()) for line in lines]


def test_one_aligned_row_per_shape_within_120_columns(capsys, wan22):
    text = printed(capsys, tables.shapes(wan22))
    assert max(map(len, text.splitlines())) <= 120
    for title in ("plan", "HBM", "instructions"):
        lines, cells = table(text, title)
        assert [row[0] for row in cells[1:]] == [case.name for case in cases.WAN22]
        assert len({len(row) for row in cells}) == 1
        assert len({len(line) for line in lines}) == 1


def test_the_table_says_what_was_measured(capsys, wan22):
    text = printed(capsys, tables.shapes(wan22))
    _, cells = table(text, "HBM")
    for result, row in zip(wan22, cells[1:], strict=True):
        hbm = result.measured.hbm
        named = dict(zip(cells[0], row, strict=True))
        assert named["weights"] == f"{hbm.weights / 2**20:,.1f}"
        assert named["total"] == f"{hbm.total / 2**20:,.1f}"
        assert row[7] == f"{result.shape.plan.minimum.total / hbm.total:.2f}"
        assert row[-1] == f"{result.baseline_hbm['chunked'].total / hbm.total:.2f}"
    _, cells = table(text, "plan")
    for result, row in zip(wan22, cells[1:], strict=True):
        chosen = result.shape.plan.schedule
        assert row[6] == str(chosen.degree)
        assert row[10] == f"{chosen.resident_h_tiles} of 10"
    assert "\nvalues\n" not in text


def test_a_baseline_that_does_not_fit_says_so(capsys, wan22):
    result = dataclasses.replace(wan22[0], baseline_hbm={"pinned": None, "chunked": wan22[0].measured.hbm})
    assert "does not fit" in printed(capsys, tables.shapes([result]))
    assert json_document.document("trn3", [result], [])["shapes"][0]["hbm_bytes"]["pinned"] is None


def test_values_and_their_verdict(capsys, with_values):
    assert with_values.values.accepted
    text = printed(capsys, tables.shapes([with_values]))
    _, cells = table(text, "values")
    assert cells[1][0] == "batch_2"
    assert cells[1][-1] == "ok"
    wrong = dataclasses.replace(with_values.values, errors=Errors(1.5, (0, 0), 0.1, 0))
    text = printed(capsys, tables.shapes([dataclasses.replace(with_values, values=wrong)]))
    assert "OUT OF TOLERANCE" in text


@pytest.mark.parametrize("errors", [Errors(0.76, (0, 0), 0.0, 0), Errors(0.5, (0, 0), 0.0, 1)])
def test_out_of_tolerance(errors):
    assert not shapes.within_tolerance(errors)


def test_json_survives_a_round_trip_and_adds_up(wan22, with_values):
    document = json.loads(json.dumps(json_document.document("trn3", [*wan22, with_values], [])))
    assert document["version"] == 2
    assert document["simulated"] is True
    assert document["target"] == "trn3"
    for entry, result in zip(document["shapes"], [*wan22, with_values], strict=True):
        assert entry["sizes"]["hidden"] == result.shape.case.hidden
        assert set(entry["hbm_bytes"]) == {"plan", "minimum", "pinned", "chunked"}
        for hbm in entry["hbm_bytes"].values():
            assert hbm["total"] == sum(hbm[purpose] for purpose in ("weights", "activations", "channels", "outputs"))
        assert sum(call["width"] for call in entry["baseline_calls"]["pinned"]) == result.shape.case.width
        assert sum(entry["instructions"].values()) > 0
        assert entry["plan"]["sbuf_used_bytes"] <= entry["plan"]["sbuf_usable_bytes"]
    assert document["shapes"][0]["values"] is None
    assert document["shapes"][-1]["values"]["accepted"] is True
    assert document["shapes"][-1]["values"]["errors"]["max_ulps"] <= document["accepted"]["max_ulps"]


def test_sub_calls_of_a_baseline_add_up(wan22):
    cross_q = next(result for result in wan22 if result.shape.case.name == "cross_q")
    pinned = cross_q.baseline_hbm["pinned"]
    assert pinned.weights == 2 * 5120 * 5120
    assert pinned.activations == 2 * 1184 * (5120 + 4)
    assert pinned.outputs == 1184 * 5120 * 2


def test_streamed_weights_are_above_the_minimum():
    case = next(case for case in cases.CORNERS if case.name == "h_1152")
    result = shapes.run(shapes.prepare(case, TRN3, values=False))
    hbm = json_document.document("trn3", [result], [])["shapes"][0]["hbm_bytes"]
    assert hbm["minimum"]["weights"] == 1152 * 768
    assert hbm["plan"]["weights"] == 2 * 1152 * 768


def test_large_shapes_compute_values_at_fewer_tokens_of_the_same_widths():
    for case in cases.WAN22:
        shorter = shapes.prepare(case, TRN3, values=True).values
        assert shorter == dataclasses.replace(case, seqlen=512)
    assert shapes.prepare(BATCH, TRN3, values=True).values == BATCH
    assert shapes.prepare(BATCH, TRN3, values=False).values is None


def test_suites_list_every_case(capsys):
    text = printed(capsys, tables.suites())
    for name, members in cases.SUITES.items():
        _, cells = table(text, f"suite {name}")
        assert [row[0] for row in cells[1:]] == [case.name for case in members]
