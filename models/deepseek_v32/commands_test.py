"""The two commands: what they print, and what they refuse in one line."""

import os
import re
import subprocess
import sys

import pytest
import torch

from models.deepseek_v32 import checkpoint, convert, decode
from models.deepseek_v32.generation import generate
from models.deepseek_v32.model import Limits, Model
from models.deepseek_v32.testing import random_prompts, run_oracle, save, tiny_oracle
from models.deepseek_v32.tiny import TINY, random_weights


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save(tiny_oracle(), tmp_path_factory.mktemp("saved"))


def tokens_of(output):
    """Generated ids of each prompt."""
    return [[int(n) for n in line.split("->")[1].split()] for line in output.splitlines() if "->" in line]


def number(pattern, output):
    """The number in the only line of this pattern."""
    (found,) = re.findall(pattern, output, re.MULTILINE)
    return float(found.replace(",", ""))


def test_decode_prints_tokens_and_times(capsys, tmp_path):
    report = tmp_path / "report.html"
    assert decode.main(["--tokens", "4", "--report", str(report)]) == 0
    output = capsys.readouterr().out
    assert [len(tokens) for tokens in tokens_of(output)] == [4, 4, 4]
    shares = re.findall(r"^(prior index|mla_decode|all-reduce) +\d +([\d.,]+) +([\d.]+)%$", output, re.M)
    assert [share[0] for share in shares] == ["prior index", "mla_decode", "all-reduce"]
    layer = number(r"^all +4 +([\d.,]+) +100.0%$", output)
    assert sum(float(us.replace(",", "")) for _, us, _ in shares) == pytest.approx(layer, abs=0.2)
    assert sum(float(share) for *_, share in shares) == pytest.approx(100, abs=0.2)
    whole = number(r"^kernels of a layer +61 +([\d.,]+)", output)
    assert whole == pytest.approx(61 * layer / 1e3, abs=0.01)
    assert "Predicted for 16 sequences of 4,096 positions on one of 16 ranks of a core, trn2" in output
    assert "</html>" in report.read_text()


def test_decode_is_greedy_over_any_ranks(capsys):
    made = []
    for ranks in ("1", "4"):
        arguments = ["--dtype", "float32", "--tokens", "8", "--prompt", "one", "--ids", "5,6,7", "--ranks", ranks]
        assert decode.main([*arguments, "--context", "4096"]) == 0
        made.append(tokens_of(capsys.readouterr().out))
    assert made[0] == made[1]
    model = Model(TINY, [random_weights(torch.float32, 0, 1)], Limits(2, 8, 8))
    assert generate(model, [list(b"one"), [5, 6, 7]], 8) == made[0]
    assert model.free_blocks == 8


def test_decode_a_checkpoint_published_and_converted(saved, tmp_path, capsys):
    """Both give transformers' tokens."""
    out = tmp_path / "out"
    assert convert.main([str(saved), str(out), "--dtype", "float32"]) == 0
    tensors = len(checkpoint.open_converted(out)[1].tensors)
    assert f"{out}: {tensors:,} tensors" in capsys.readouterr().out
    (prompt,) = random_prompts(30)
    for folder in (saved, out):
        ids = ",".join(map(str, prompt))
        common = ["--ids", ids, "--tokens", "5", "--dtype", "float32", "--tp", "2", "--batch", "4", "--context", "64"]
        assert decode.main([*common, "--checkpoint", str(folder)]) == 0
        (tokens,) = tokens_of(capsys.readouterr().out)
        logits = run_oracle(tiny_oracle(), prompt + tokens)["logits"]
        assert logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist() == tokens


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "3"], "num_attention_heads is 4; accepted over 3 ranks: a multiple of 3"),
        (["--tp", "3"], "num_attention_heads is 128; accepted over 3 ranks: a multiple of 3"),
        (["--tp", "1", "--batch", "128"], "batch 128 with 128 heads per rank does not fit"),
        (["--blocks", "2"], "3 prompts with 16 tokens each need 13 cache blocks of 8 positions; 2 are free"),
        (["--ids", "1,256"], "prompt 0 has token 256; accepted: 0 to 255"),
        (["--ids", "1" * 400], "prompt 0 has token 111111111111111111...1111111111111111111; accepted: 0 to 255"),
        (["--context", "163841"], "context is 163841; accepted: up to 163840, the model's"),
        (["--ids", "1,x"], "'1,x'; accepted: comma-separated token ids"),
        (["--prompt", ""], "prompt 0 is empty; accepted: at least one token"),
        (["--checkpoint", "/nowhere"], "/nowhere: expected: a folder with config.json; found: none"),
        (["--report", "/nowhere/report.html"], "there is no folder /nowhere"),
        (["--tokens", "0"], "'0'; accepted: an integer from 1"),
    ],
)
def test_decode_refuses(arguments, message, capsys):
    with pytest.raises(SystemExit) as end:
        decode.main(arguments)
    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert message in lines[-1]
    assert "Traceback" not in "".join(lines)


def test_a_prompt_is_its_bytes(capsys):
    """Whatever they are, as a shell hands them over."""
    arguments = [
        "--tokens",
        "1",
        "--tp",
        "128",
        "--batch",
        "2",
        "--context",
        "64",
        "--prompt",
        os.fsdecode(b"\xff\xfe"),
    ]
    assert decode.main(arguments) == 0
    assert capsys.readouterr().out.startswith("[255 254] -> ")


def test_a_full_disk_behind_stdout():
    """Ends in one line, and with no other message when the interpreter ends."""
    command = [sys.executable, decode.__file__, "--tokens", "1", "--tp", "128", "--batch", "2", "--context", "64"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "decode: error: stdout cannot be written: No space left on device; see --help"
    )
    assert "Traceback" not in done.stderr


def test_convert_refuses(saved, tmp_path, capsys):
    for source, message in ((tmp_path, "expected: a folder with config.json"), (saved / "x", "found: none")):
        with pytest.raises(SystemExit) as end:
            convert.main([str(source), str(tmp_path / "out")])
        assert end.value.code == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
