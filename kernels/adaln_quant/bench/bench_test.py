"""The bench as a command: what it prints, writes and refuses."""

import json

import pytest

from kernels.adaln_quant.bench import bench, measure, shapes
from kernels.adaln_quant.oracle import cases, compare
from kernels.adaln_quant.oracle.cases import NONE, TOKEN, Case

SMALL = (
    Case("fused", 258, 512, lnc=2),
    Case("rounded", 130, 512, modulation=TOKEN, quantised=False),
    Case("alone", 130, 512, modulation=NONE),
)


@pytest.fixture(autouse=True)
def small_suite(monkeypatch):
    monkeypatch.setitem(cases.SUITES, "wan22", SMALL)


def test_success(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("BUILD_WORKING_DIRECTORY", str(tmp_path))
    assert bench.main(["--json", "out.json"]) == 0
    out, err = capsys.readouterr()
    assert err == "[1/3] fused: 258 tokens\n[2/3] rounded: 130 tokens\n[3/3] alone: 130 tokens\n"
    for case in SMALL:
        rows = [line for line in out.splitlines() if line.startswith(case.name)]
        assert len(rows) == 6
        assert rows[-1].endswith("ok")
    fused, rounded, alone = json.loads((tmp_path / "out.json").read_text())["shapes"]
    assert fused["hbm_bytes"] == {
        "rows": 258 * 512 * 2,
        "modulation": 2 * 2 * 4 * 512 * 4,
        "outputs": 258 * 516,
        "total": 258 * (1024 + 516) + 16 * 2048,
    }
    assert fused["minimum_hbm_bytes"]["modulation"] == 2 * 2 * 512 * 4
    # What is fused away: rows written in bf16 and read again.
    assert fused["separate_hbm_bytes"]["total"] - fused["hbm_bytes"]["total"] == 2 * 258 * 1024
    assert fused["predicted"]["others_ns"]["separate"] > fused["predicted"]["ns"] > 0
    assert rounded["separate_hbm_bytes"] is alone["separate_hbm_bytes"] is None
    assert rounded["sizes"]["modulation"] == "token"
    assert alone["hbm_bytes"]["modulation"] == 0
    assert fused["values"]["accepted"]
    assert fused["instructions"]["vector"] > 0


def test_what_is_stored_compares(capsys, tmp_path):
    before = tmp_path / "before.json"
    assert bench.main(["--no-numerics", "--json", str(before)]) == 0
    assert bench.main(["--no-numerics", "--compare", str(before)]) == 0
    assert capsys.readouterr().out.count(" same") == 3
    document = json.loads(before.read_text())
    document["shapes"][0]["predicted"]["ns"] *= 0.9
    before.write_text(json.dumps(document))
    assert bench.main(["--no-numerics", "--compare", str(before)]) == 1
    assert "SLOWER" in capsys.readouterr().out


def test_files_of_one_shape(tmp_path):
    html, trace = tmp_path / "fused.html", tmp_path / "fused.json"
    assert bench.main(["--no-numerics", "--case", "fused", "--report", str(html), "--trace", str(trace)]) == 0
    assert "adaln_quant, fused" in html.read_text()
    assert json.loads(trace.read_text())


def test_no_numerics(capsys):
    assert bench.main(["--no-numerics"]) == 0
    assert "relative RMS" not in capsys.readouterr().out


def test_out_of_tolerance(capsys, monkeypatch):
    monkeypatch.setattr(compare, "MAX_ROUNDINGS", 1e-9)
    assert bench.main([]) == 1
    assert "OUT OF TOLERANCE" in capsys.readouterr().out


def test_a_shape_of_ones_own(capsys):
    assert bench.main(["--shape", "2,130,260", "--modulation", "none", "--lnc", "1"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("2,130,260"))
    assert row.split()[1:10] == ["2", "130", "260", "1", "bf16", "none", "fp8", "rows", "3"]


def test_long_shapes_are_checked_shorter():
    case = Case("long", 20_000, 5120, batch=2, lnc=2)
    shape = shapes.prepare(case, cases.TRN3, values=True)
    assert shape.plan.dims.tokens == 40_000
    assert shape.values is not None
    assert (shape.values.batch, shape.values.seqlen, shape.values.hidden) == (1, shapes.VALUES_SEQLEN, 5120)


def test_list(capsys):
    assert bench.main(["--list"]) == 0
    out = capsys.readouterr().out
    assert all(f"suite {name}" in out for name in cases.SUITES)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_measured_bytes_are_the_plans(case):
    made = case.plan()
    assert measure.run_without_values(made).hbm == made.hbm


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--suite", "wan"], "invalid choice: 'wan'"),
        (["--case", "none"], "--case is 'none'; accepted: fused, rounded, alone"),
        (["--target", "trn1"], "target must be 'trn2' or 'trn3', got 'trn1'"),
        (["--target", "trn2"], "target is 'trn2'; accepted with quantised rows: 'trn3'"),
        (["--shape", "1,2"], "'1,2'; accepted: B,S,H, three integers from 1"),
        (["--shape", "1,2,x"], "'x'; accepted: an integer from 1"),
        (["--shape", "1,2,6"], "hidden is 6; accepted: a multiple of 4"),
        (["--shape", "1,3,8"], "seqlen is 3 on 2 cores; accepted: a multiple of 2"),
        (["--shape", "1,2,99996"], "SBUF of trn3"),
        (["--shape", "2,100000,8"], "--shape 2,100000,8 has 200,000 tokens (B * S); accepted: up to 131,072"),
        (["--shape", "1,2,8", "--suite", "wan22"], "--suite and --shape exclude each other"),
        (["--shape", "1,2,8", "--case", "fused"], "--shape and --case exclude each other"),
        (["--modulation", "token"], "--modulation needs --shape"),
        (["--lnc", "3"], "invalid choice: 3"),
        (["--report", "x.html"], "--report shows one shape, and there are 3"),
        (["--json", "/no/such/folder/x"], "/no/such/folder/x: there is no folder /no/such/folder"),
    ],
)
def test_bad_usage_ends_in_one_line(arguments, words, capsys):
    with pytest.raises(SystemExit) as caught:
        bench.main(arguments)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("bench: error: ")
    assert words in err
    assert err.count("\n") == 1
