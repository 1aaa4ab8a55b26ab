"""The bench as a command: what it prints, writes and refuses."""

import json

import pytest
import torch

from kernels.mla_decode.bench import bench, measure, shapes
from kernels.mla_decode.oracle import compare
from kernels.mla_decode.oracle.cases import Case
from kernels.mla_decode.oracle.front_cases import FrontCase

SMALL = (Case("small", 3, 2, 128), FrontCase(Case("small_layer", 2, 2, 128)))


@pytest.fixture(autouse=True)
def small_suite(monkeypatch):
    monkeypatch.setitem(shapes.SUITES, "production", SMALL)


def test_success(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("BUILD_WORKING_DIRECTORY", str(tmp_path))
    assert bench.main(["--json", "out.json"]) == 0
    out, err = capsys.readouterr()
    assert err == "[1/2] small\n[2/2] small_layer\n"
    assert [line.endswith("ok") for line in out.splitlines() if line.startswith("small")][-2:] == [True, True]
    first, layer = json.loads((tmp_path / "out.json").read_text())["shapes"]
    assert first["target"] == "trn2"
    assert first["values"]["accepted"]
    assert layer["values"]["relative_rms"] > 0
    row = 192 * 2
    assert first["hbm_bytes"]["keys"] == (3 * 128 + 2 * 3) * row
    assert first["minimum_hbm_bytes"]["keys"] == 3 * 129 * row
    assert layer["hbm_bytes"]["queries"] == 0
    assert layer["hbm_bytes"]["rows_written"] == 2 * 2 * row


def test_no_numerics(capsys):
    assert bench.main(["--no-numerics"]) == 0
    assert "relative RMS" not in capsys.readouterr().out


def test_out_of_tolerance(capsys, monkeypatch):
    monkeypatch.setitem(compare.MAX_RELATIVE_RMS, torch.bfloat16, 1e-9)
    assert bench.main([]) == 1
    assert "OUT OF TOLERANCE" in capsys.readouterr().out


def test_switches_reach_the_plan(capsys):
    assert bench.main(["--no-numerics", "--dma-chunks", "1", "--group", "2", "--target", "trn3"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("small "))
    assert row.split()[1:10] == ["1", "-", "3", "2", "128", "2", "3", "1", "512"]


@pytest.mark.parametrize("shared", ["tokens", "heads"])
def test_cores_share_what_is_asked(shared, capsys):
    switches = ("--case", "small_layer", "--lnc", "2", "--cores-share", shared)
    assert bench.main([*switches]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("small_layer "))
    assert row.split()[1:6] == ["2", shared, "2", "2", "128"]


def test_a_suite_brings_its_target(capsys, tmp_path, monkeypatch):
    fp8 = Case("small_fp8", 2, 1, 128, fp8_cache=True, target="trn3")
    monkeypatch.setitem(shapes.SUITES, "fp8", (fp8,))
    assert bench.main(["--suite", "fp8", "--json", str(tmp_path / "out.json")]) == 0
    (found,) = json.loads((tmp_path / "out.json").read_text())["shapes"]
    assert found["target"] == "trn3"
    assert found["hbm_bytes"]["keys"] == 2 * 128 * (128 + 4 + 128) + 2 * 2 * 192 * 2


def test_predicted_times_are_printed_written_and_compared(capsys, tmp_path):
    out = tmp_path / "out.json"
    assert bench.main(["--no-numerics", "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    document = json.loads(out.read_text())
    for shape in document["shapes"]:
        row = next(line for line in printed.split("predicted time\n")[1].splitlines() if line.startswith(shape["name"]))
        assert f"{shape['predicted']['ns'] / 1e3:,.1f}" in row
        assert set(shape["predicted"]["others_ns"]) == set(shapes.BASELINES)
    assert bench.main(["--no-numerics", "--compare", str(out)]) == 0
    assert "compared with before" in capsys.readouterr().out
    document["shapes"][0]["predicted"]["ns"] /= 2
    out.write_text(json.dumps(document))
    assert bench.main(["--no-numerics", "--compare", str(out)]) == 1
    assert "SLOWER" in capsys.readouterr().out


def test_one_case_as_trace_and_report(tmp_path):
    names = {option: tmp_path / option for option in ("trace", "report", "occupancy", "roofline")}
    files = [word for option, path in names.items() for word in (f"--{option}", str(path))]
    assert bench.main(["--no-numerics", "--case", "small_layer", *files]) == 0
    lines = {
        event["args"]["line"] for event in json.loads(names["trace"].read_text())["traceEvents"] if event["ph"] == "X"
    }
    assert any(line.startswith("kernels/mla_decode/device/front_fold.py:") for line in lines)
    assert "mla_decode, small_layer" in names["report"].read_text()
    assert len(list(tmp_path.iterdir())) == 4


def test_list(capsys):
    assert bench.main(["--list"]) == 0
    out = capsys.readouterr().out
    assert all(f"suite {name}" in out for name in shapes.SUITES)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--suite", "wan"], "invalid choice: 'wan'"),
        (["--target", "trn1"], "trn1"),
        (["--target", ""], "target must be 'trn2' or 'trn3', got ''"),
        (["--suite", "fp8", "--target", "trn2"], "target is 'trn2'; accepted with an fp8 cache: 'trn3'"),
        (["--dma-chunks", "2"], "dma_transposed_chunks is 2; accepted: 0 to 1"),
        (["--lnc", "4"], "cores is 4; accepted: 1 or 2"),
        (
            ["--lnc", "2", "--cores-share", "tokens"],
            "cores_share is 'tokens'; accepted with 3 tokens of 2 heads: 'heads'",
        ),
        (["--group", "4"], "group_tokens is 4; accepted: 1 to 3"),
        (["--trace", "x"], "--trace shows one shape, and there are 2; accepted: one, chosen with --case"),
        (["--case", "large"], "--case is 'large'; accepted: small, small_layer"),
        (["--compare", "/no/such/file"], "/no/such/file cannot be read: No such file or directory"),
        (["--compare", "/dev/null"], "/dev/null is a device"),
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


def test_every_byte_has_a_purpose(monkeypatch):
    monkeypatch.setitem(measure._READ, "tables", ("prior_rows",))
    with pytest.raises(AssertionError, match=r"bytes of .* have no purpose"):
        measure.run_without_values(SMALL[0].plan)


def test_the_policy_that_searches_says_what_it_found(capsys):
    assert bench.main(["--policy", "best", "--no-numerics"]) == bench.OK
    shown = " ".join(capsys.readouterr().out.split())
    assert "small: least predicted time of" in shown


@pytest.mark.parametrize("group", ["2", "0"])
def test_a_policy_excludes_what_it_chooses(capsys, group):
    with pytest.raises(SystemExit) as end:
        bench.main(["--policy", "best", "--group", group])
    assert end.value.code == 2
    assert "--policy best excludes --ablate, --group, --dma-chunks, --cores-share" in capsys.readouterr().err
