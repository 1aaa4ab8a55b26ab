"""The command: plans, sweeps, files and refusals."""

import csv
import json
import os
import signal
import subprocess
import sys

import pytest

from tools.plan import main, plot, points, results
from tools.plan.subjects import ADALN_QUANT, MLA_DECODE, QKV_CTE, SUBJECTS

SMALL = ["qkv_cte", "--hidden", "256", "--width", "512", "--seqlen", "512"]


def test_one_point_prints_the_plan_and_why(capsys):
    assert main.main(SMALL) == 0
    out, err = capsys.readouterr()
    assert "2 of 2 H-tiles resident: all fit" not in out or "degree" in out
    assert "SBUF of trn3, bytes per partition" in out
    assert "degree 2: bound by the number of S-tiles" in out
    assert "best" not in out
    assert err == "[1/2] planning\n[2/2] predicting\n"


def test_a_sweep_is_every_combination_and_marks_the_best(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("BUILD_WORKING_DIRECTORY", str(tmp_path))
    files = ["--csv", "s.csv", "--json", "s.json", "--plot", "s.png"]
    assert main.main([*SMALL, "--degree", "1..2,plan", "--seqlen", "512,1024", "--jobs", "2", *files]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines()[0] == "[1/6] seqlen 512 degree 1"
    assert len(err.splitlines()) == 6
    document = json.loads((tmp_path / "s.json").read_text())["points"]
    rows = list(csv.DictReader((tmp_path / "s.csv").open()))
    assert [(row["seqlen"], row["degree"]) for row in rows] == [
        (seqlen, degree) for seqlen in ("512", "1024") for degree in ("1", "2", "plan")
    ]
    assert [float(row["predicted_ns"]) for row in rows] == [point["predicted"]["ns"] for point in document]
    times = [float(row["predicted_ns"]) for row in rows]
    best = [times.index(min(times[:3])), times.index(min(times[3:]), 3)]
    assert [line.endswith("best") for line in out.splitlines()[2:8]] == [number in best for number in range(6)]
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 3


def test_a_search_is_never_slower_than_the_rule(capsys):
    assert main.main([*SMALL, "--seqlen", "2048", "--search", "0,1", "--jobs", "1"]) == 0
    rule, searched = capsys.readouterr().out.splitlines()[2:4]
    assert (rule.split()[0], searched.split()[0]) == ("0", "1")
    assert " best " in searched
    assert searched.endswith("best")


def test_what_the_sweep_says_is_what_one_point_says():
    values = {knob.name: knob.default for knob in MLA_DECODE.knobs} | {"tokens": 2, "keys": 128, "hidden": 512}
    first, second = (points.run("mla_decode", "trn2", values) for _ in range(2))
    assert first == second
    assert first.chosen["group"] == 2
    slower = points.run("mla_decode", "trn2", values | {"keys": 1024})
    assert (slower.ns or 0.0) > (first.ns or 0.0) > 0.0


@pytest.mark.parametrize("begun", [1, 2])
def test_ctrl_c_ends_a_sweep_without_a_word(begun, tmp_path):
    """While its processes start, and while they run; what was there stays."""
    out = tmp_path / "out.csv"
    out.write_text("good")
    command = [*SMALL, "--seqlen", "512,65536,131072", "--jobs", "2", "--csv", str(out)]
    with subprocess.Popen(
        [sys.executable, main.__file__, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
    ) as process:
        assert process.stderr
        lines = [process.stderr.readline() for _ in range(begun)]
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait() == 130
    assert (
        lines == [f"[{n}/3] seqlen {size:,}\n".replace(",", "").encode() for n, size in ((1, 512), (2, 65536))][:begun]
    )
    assert rest == b""
    assert out.read_text() == "good"
    assert list(tmp_path.iterdir()) == [out]


def test_processes_that_are_ended_from_outside_are_a_line(capsys, monkeypatch):
    monkeypatch.setattr(main._Workers, "run", lambda self, *_: self._pool.submit(os._exit, 1).result)
    with pytest.raises(SystemExit) as caught:
        main.main([*SMALL, "--degree", "1,2", "--jobs", "2"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("plan: error: a process that ran points was ended")


def test_points_without_a_plan_stay_in_the_sweep(capsys):
    assert main.main([*SMALL, "--degree", "2,9", "--jobs", "1"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:4]
    assert rows[0].endswith("best")
    assert rows[1].split() == ["9", "no", "plan"]


def test_a_sweep_without_any_plan_is_a_status_of_its_own(capsys, tmp_path):
    out = tmp_path / "out.csv"
    assert main.main([*SMALL, "--degree", "9,10", "--jobs", "1", "--csv", str(out)]) == 1
    assert "no combination of the sweep has a plan; first reason: degree must be at most" in capsys.readouterr().err
    assert not out.exists()


def test_of_equal_times_the_first_is_the_best(capsys):
    """A degree that the plan would choose itself is as fast."""
    assert main.main([*SMALL, "--degree", "plan,2", "--jobs", "1"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:4]
    assert [row.endswith("best") for row in rows] == [True, False]
    assert rows[0].split()[1:] != rows[1].split()[1:]


def test_rows_are_in_the_order_of_the_command_line(capsys):
    assert main.main([*SMALL, "--seqlen", "1024,512", "--jobs", "1"]) == 0
    assert [row.split()[0] for row in capsys.readouterr().out.splitlines()[2:4]] == ["1,024", "512"]


def test_knobs_reach_the_plans():
    values = {knob.name: knob.default for knob in QKV_CTE.knobs} | {"hidden": 512, "width": 512, "seqlen": 512}
    assert points.run("qkv_cte", "trn3", values | {"resident": 0}).chosen["resident"] == 0
    assert points.run("qkv_cte", "trn3", values).chosen["resident"] == 1
    values = {knob.name: knob.default for knob in MLA_DECODE.knobs} | {"keys": 128, "hidden": 512}
    assert points.run("mla_decode", "trn2", values | {"group": 1}).chosen["group"] == 1
    values = {knob.name: knob.default for knob in ADALN_QUANT.knobs} | {"hidden": 512, "seqlen": 512}
    bytes_of = [points.run("adaln_quant", "trn3", values | {"modulation": n}).hbm_bytes for n in (0, 1, 2)]
    row, out, vector = 512 * 512 * 2, 512 * (512 + 4), 512 * 4
    # Vectors of a sequence go to four quadrants of two cores, those of tokens to one place.
    assert bytes_of == [row + out, row + out + 2 * 4 * 2 * vector, row + out + 2 * 512 * vector]


def test_the_same_bytes_each_time():
    values = {knob.name: knob.default for knob in QKV_CTE.knobs} | {"hidden": 256}
    outcomes = [points.run("qkv_cte", "trn3", values | {"seqlen": seqlen}) for seqlen in (128, 256)]
    for make in (results.csv_text, results.json_text, plot.plot_png):
        assert make(outcomes) == make(outcomes)


def test_values_are_numbers_ranges_and_what_the_plan_chooses():
    degree = next(knob for knob in QKV_CTE.knobs if knob.name == "degree")
    assert points.values_of(degree)("1..3,8,plan,2") == (1, 2, 3, 8, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: KERNEL"),
        (["conv"], "invalid choice: 'conv'"),
        (["qkv_cte", "--target", "trn1"], "target must be 'trn2' or 'trn3', got 'trn1'"),
        (["qkv_cte", "--target", "trn2"], "target is 'trn2'; accepted: 'trn3'"),
        (["qkv_cte", "--hidden", "100"], "hidden is 100; accepted: a multiple of 128"),
        (["qkv_cte", "--width", "100000"], "SBUF of trn3"),
        (["qkv_cte", "--degree", "9"], "degree must be at most 8"),
        (["qkv_cte", "--degree", "0"], "argument --degree: '0'; accepted: an integer from 1"),
        (["qkv_cte", "--degree", "3..1"], "'3..1' is empty; accepted: FIRST..LAST"),
        (["qkv_cte", "--degree", "1.."], "''; accepted: an integer"),
        (["qkv_cte", "--degree", "1..2000000000"], "has too many values"),
        (["qkv_cte", "--seqlen", "plan"], "'plan'; accepted: an integer"),
        (["qkv_cte", "--seqlen", ""], "''; accepted: an integer"),
        (["qkv_cte", "--seqlen", "1..200", "--width", "1..200"], "has 40,000 points; accepted: up to 10,000"),
        (["qkv_cte", "--plot", "x"], "--plot needs a sweep"),
        (
            ["qkv_cte", "--degree", "1..9", "--seqlen", "1..9", "--plot", "x"],
            "--plot would have 9 lines; accepted: up to 8",
        ),
        (["qkv_cte", "--batch", "100000", "--seqlen", "100000"], "are 10,000,000,000 tokens; accepted: up to"),
        (["adaln_quant", "--modulation", "3"], "modulation is 3; accepted: 0 to 2"),
        (["adaln_quant", "--hidden", "130"], "hidden is 130; accepted: a multiple of 4"),
        (["adaln_quant", "--seqlen", "200000"], "has 200,000 tokens"),
        (["qkv_cte", "--degree", "1,2", "--csv", "x", "--json", "./x"], "name one file"),
        (["qkv_cte", "--csv", "absent/x"], "there is no folder"),
        (["qkv_cte", "--jobs", "0"], "accepted: an integer from 1"),
        (["qkv_cte", "--search", "1", "--degree", "2"], "degree is 2; accepted with search: plan"),
        (["mla_decode", "--head-major", "2"], "head-major is 2; accepted: 0 or 1"),
        (["mla_decode", "--dma-chunks", "5"], "dma_transposed_chunks is 5; accepted: 0 to 4"),
    ],
)
def test_refusals(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("BUILD_WORKING_DIRECTORY", str(tmp_path))
    with pytest.raises(SystemExit) as caught:
        main.main(arguments)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    *progress, error = err.splitlines()
    assert progress in ([], ["[1/2] planning"])
    assert error.startswith("plan")
    assert message in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kernel", SUBJECTS)
def test_help_names_every_knob(kernel, capsys):
    with pytest.raises(SystemExit) as caught:
        main.main([kernel, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert all(f"--{knob.name} N" in out for knob in SUBJECTS[kernel].knobs)
    assert "bazel run //tools/plan -- qkv_cte" in out


def test_latent_tiles_transposed_by_dma_are_the_plans_choice():
    values = {knob.name: knob.default for knob in MLA_DECODE.knobs}
    assert points.run("mla_decode", "trn2", values).chosen["DMA chunks"] == 1
    assert points.run("mla_decode", "trn2", values | {"dma-chunks": 0}).chosen["DMA chunks"] == 0
