"""The bench as a command: arguments, exit statuses, what it writes where."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from kernels.qkv_cte.bench import bench, small_layer
from kernels.qkv_cte.bench.small_layer import HIDDEN
from kernels.qkv_cte.oracle import compare


def command(*arguments, cwd=None, **environment):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | environment
    return subprocess.run(
        [sys.executable, "-m", "kernels.qkv_cte.bench.bench", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        check=False,
    )


def refusal(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        bench.main(arguments)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    *progress, error = err.splitlines()
    assert all(line.startswith("[") for line in progress)
    assert error.startswith("bench: error: ")
    return error


def test_success(tmp_path):
    folder = tmp_path / "of the caller"
    folder.mkdir()
    ran = command("--shape", "1,130,256,600", "--json", "out.json", BUILD_WORKING_DIRECTORY=str(folder))
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == "[1/2] planning\n[2/2] 1,130,256,600: 130 tokens, then values\n"
    assert "\x1b" not in ran.stdout
    assert [line for line in ran.stdout.splitlines() if line.startswith("1,130,256,600")][-1].endswith("ok")
    (entry,) = json.loads((folder / "out.json").read_text())["shapes"]
    assert entry["sizes"] | {"bias_bytes": 4, "cores": 2} == entry["sizes"]
    assert entry["values"]["accepted"]
    assert [file.name for file in folder.iterdir()] == ["out.json"]


def test_bad_usage_ends_in_one_line():
    ran = command("--target", "trn2")
    assert ran.returncode == 2, ran.stderr
    assert ran.stdout == ""
    assert ran.stderr.startswith("bench: error: target is 'trn2'; accepted: 'trn3' (trn2 has no MX matmuls)")
    assert ran.stderr.count("\n") == 1


def test_a_layer_that_quantises_badly_is_out_of_tolerance(tmp_path):
    tensors = small_layer.tensors()
    # One huge weight per output channel takes the whole range of its codes, and its input is zero.
    tensors["blocks.0.attn1.to_k.weight"][:, 0] = 1e6
    states = torch.randn(1, 4, HIDDEN, generator=torch.Generator().manual_seed(0))
    states[..., 0] = 0.0
    inputs = {"hidden_states": states, "encoder_hidden_states": states.clone()}
    save_file(tensors | inputs, tmp_path / "layer.safetensors")
    ran = command("--checkpoint", "layer.safetensors", "--layer", "0", "--json", "out.json", cwd=tmp_path)
    assert "Traceback" not in ran.stderr
    assert ran.returncode == 1
    fused, *others = json.loads((tmp_path / "out.json").read_text())["projections"]
    assert [segment["relative_rms"] > 0.06 for segment in fused["segments"]] == [False, True, False]
    assert [other["accepted"] for other in others] == [True, True, True]


def test_results_never_replace_the_checkpoint(capsys, tmp_path):
    path = tmp_path / "layer.safetensors"
    save_file(small_layer.tensors(), path)
    before = path.read_bytes()
    link = tmp_path / "link"
    link.symlink_to(path)
    for name in (path, link):
        message = refusal(capsys, "--checkpoint", str(path), "--layer", "0", "--json", str(name))
        assert f"{name} is the file to read" in message
    assert path.read_bytes() == before


def test_a_projection_of_zeros_is_a_result(capsys, tmp_path):
    tensors = small_layer.tensors()
    for name in ("weight", "bias"):
        tensors[f"blocks.0.attn1.to_v.{name}"].zero_()
    save_file(tensors, tmp_path / "layer.safetensors")
    json_path = tmp_path / "out.json"
    asked = ["--checkpoint", str(tmp_path / "layer.safetensors"), "--layer", "0", "--json", str(json_path)]
    assert bench.main(asked) == 0
    assert "undefined" in capsys.readouterr().out
    segments = json.loads(json_path.read_text(), parse_constant=pytest.fail)["projections"][0]["segments"]
    assert segments[2] == {"name": "V", "cosine": None, "relative_rms": 0.0, "accepted": True}


SMALL_RUN = "--shape 1,4,128,128 --no-numerics --json out.json"


@pytest.mark.parametrize(
    ("redirection", "message", "written"),
    [
        (">/dev/full", "stdout cannot be written: No space left on device", True),
        ("| true", "stdout cannot be written: Broken pipe", True),
        (">&-", "stdout is closed", False),
    ],
)
def test_stdout_that_takes_nothing(tmp_path, redirection, message, written):
    """One line and a status of its own; results in the file where there are any."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    script = f"{sys.executable} -m kernels.qkv_cte.bench.bench {SMALL_RUN} {redirection}; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    *progress, error = ran.stderr.splitlines()
    assert all(line.startswith("[") for line in progress)
    assert error.startswith(f"bench: error: {message}")
    assert ran.returncode == 2
    assert bool(progress) == written
    assert [file.name for file in tmp_path.iterdir()] == (["out.json"] if written else [])


@pytest.mark.parametrize("name", ["/dev/stdout", "both"])
def test_results_never_replace_the_file_of_stdout(tmp_path, name):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    asked = [sys.executable, "-m", "kernels.qkv_cte.bench.bench", "--shape", "1,4,128,128", "--json", name]
    with (tmp_path / "both").open("w") as out:
        ran = subprocess.run(
            asked, stdout=out, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment, check=False
        )
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"bench: error: {name} is where stdout goes; accepted: the name of another file")
    assert ran.stderr.count("\n") == 1


def test_values_out_of_tolerance(capsys, monkeypatch):
    monkeypatch.setattr(compare, "MAX_ULPS", 0.1)
    assert bench.main(["--shape", "1,4,128,128"]) == 1
    assert "OUT OF TOLERANCE" in capsys.readouterr().out


def test_without_values_none_are_shown(capsys):
    assert bench.main(["--shape", "1,4,128,128", "--shape", "2,3,128,8", "--lnc", "1", "--no-numerics"]) == 0
    out = capsys.readouterr().out
    assert "\nvalues\n" not in out
    assert out.count("2,3,128,8") == 4


def test_predicted_times_are_compared_with_an_earlier_run(capsys, tmp_path):
    old = tmp_path / "old.json"
    asked = ["--shape", "1,4,128,128", "--no-numerics"]
    assert bench.main([*asked, "--json", str(old)]) == 0
    assert "compared" not in capsys.readouterr().out
    document = json.loads(old.read_text())
    predicted = document["shapes"][0]["predicted"]
    assert predicted["ns"] > 0
    assert set(predicted["others_ns"]) == {"one engine", "pinned", "chunked"}
    assert bench.main([*asked, "--compare", str(old)]) == 0
    predicted["ns"] /= 2
    old.write_text(json.dumps(document))
    assert bench.main([*asked, "--compare", str(old)]) == 1
    assert "SLOWER" in capsys.readouterr().out


def test_a_search_is_never_slower_than_the_rule(capsys, tmp_path):
    out = tmp_path / "out.json"
    asked = ["--shape", "1,260,512,1100", "--no-numerics", "--policy", "best", "--json", str(out)]
    assert bench.main(asked) == 0
    (shape,) = json.loads(out.read_text())["shapes"]
    assert shape["plan"]["policy"] == "best"
    assert shape["predicted"]["ns"] <= shape["predicted"]["others_ns"]["seed"]
    assert " seed µs " in capsys.readouterr().out


def test_one_case_as_trace_and_report(tmp_path):
    names = {option: tmp_path / option for option in ("trace", "report", "occupancy", "roofline")}
    files = [word for option, path in names.items() for word in (f"--{option}", str(path))]
    assert bench.main(["--suite", "corners", "--case", "batch_2", "--no-numerics", *files]) == 0
    events = json.loads(names["trace"].read_text())["traceEvents"]
    lines = {event["args"]["line"] for event in events if event["ph"] == "X"}
    assert any(line.startswith("kernels/qkv_cte/device/matmul.py:") for line in lines)
    assert "qkv_cte, batch_2" in names["report"].read_text()
    assert len(list(tmp_path.iterdir())) == 4


def test_a_whole_suite(capsys):
    assert bench.main(["--suite", "wan22", "--no-numerics"]) == 0
    assert "cross_v" in capsys.readouterr().out


def test_list_runs_nothing(capsys):
    assert bench.main(["--list"]) == 0
    out, err = capsys.readouterr()
    assert "suite corners" in out
    assert "suite wan22" in out
    assert err == ""


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit) as caught:
        bench.main(["--help"])
    assert caught.value.code == 0
    assert "bazel run //kernels/qkv_cte:bench" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "1,2,3"], "'1,2,3'; accepted: B,S,H,I"),
        (["--shape", "1,0,128,128"], "'0'; accepted: an integer from 1"),
        (["--shape", "1,x,128,128"], "'x'; accepted: an integer from 1"),
        (["--shape", "1,4,100,128"], "hidden is 100; accepted: a multiple of 128"),
        (["--shape", "1,3,128,128"], "seqlen is 3 on 2 cores; accepted: a multiple of 2"),
        (["--shape", "1,4,128,100000"], "SBUF of trn3"),
        (["--suite", "none"], "invalid choice: 'none'"),
        (["--suite", "wan22", "--shape", "1,4,128,128"], "--suite and --shape exclude each other"),
        (["--list", "--checkpoint", "x", "--layer", "0"], "--list and --checkpoint exclude each other"),
        (["--list", "--lnc", "2"], "--list and --lnc exclude each other"),
        (["--list", "--target", "trn3"], "--list and --target exclude each other"),
        (["--list", "--no-numerics"], "--list and --no-numerics exclude each other"),
        (["--list", "--json", "x"], "--list and --json exclude each other"),
        (["--json", ""], "argument --json: ''; accepted: the name of a file"),
        (["--checkpoint", "", "--layer", "0"], "argument --checkpoint: ''; accepted: the name of a file"),
        (["--policy", "worst"], "invalid choice: 'worst'"),
        (["--list", "--policy", "best"], "--list and --policy exclude each other"),
        (["--checkpoint", "x", "--layer", "0", "--policy", "best"], "--checkpoint and --policy exclude each other"),
        (["--list", "--trace", "x"], "--list and --trace exclude each other"),
        (["--checkpoint", "x", "--layer", "0", "--report", "y"], "--checkpoint and --report exclude each other"),
        (["--shape", "1,4,128,128", "--case", "self_tp4"], "--shape and --case exclude each other"),
        (["--case", "none"], "--case is 'none'; accepted: self_tp4, "),
        (["--trace", "x"], "--trace shows one shape, and there are 5; accepted: one, chosen with --case"),
        (["--suite", "corners", "--roofline", "x"], "--roofline needs one target and one number of cores"),
        (["--compare", "absent"], "absent cannot be read: No such file or directory"),
        (["--json", "n" * 300], "cannot be written: File name too long"),
        (
            ["--shape", "1,131074,128,128"],
            "--shape 1,131074,128,128 has 131,074 tokens (B * S); accepted: up to 131,072",
        ),
        (["--shape", "1,4,128,9" + "9" * 5000], "accepted: an integer from 1 to 2147483647"),
        (["--lnc", "3"], "invalid choice: 3"),
        (["--target", "trn1"], "target must be 'trn2' or 'trn3', got 'trn1'"),
        (["--target", "trn2", "--shape", "1,4,128,128"], "accepted: 'trn3' (trn2 has no MX matmuls)"),
        (["--target", "trn2", "--checkpoint", "absent", "--layer", "0"], "accepted: 'trn3' (trn2 has no MX"),
        (["--target", ""], "target must be 'trn2' or 'trn3', got ''"),
        (["--checkpoint", "x"], "--checkpoint and --layer belong together"),
        (["--layer", "0"], "--checkpoint and --layer belong together"),
        (["--checkpoint", "x", "--layer", "-1"], "'-1'; accepted: an integer from 0"),
        (["--checkpoint", "x", "--layer", "0", "--no-numerics"], "cannot go with --no-numerics"),
        (["--checkpoint", "absent.safetensors", "--layer", "0"], "absent.safetensors: no such file"),
        (["--checkpoint", "n" * 300, "--layer", "0"], "nnn: no such file"),
        (["--checkpoint", "n" * 300, "--layer", "0", "--json", "x"], "nnn: no such file"),
        (["--json", "absent/out.json"], "there is no folder"),
        (["--jso", "x"], "unrecognized arguments: --jso"),
        (["surplus"], "unrecognized arguments: surplus"),
    ],
)
def test_refusals(capsys, arguments, message):
    assert message in refusal(capsys, *arguments)


def test_a_refusal_leaves_an_old_result_alone(capsys, tmp_path):
    path = tmp_path / "out.json"
    path.write_text("old")
    refusal(capsys, "--shape", "1,4,100,128", "--json", str(path))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
