"""The demo, and what it draws and compares."""

import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from models.wan22 import denoise
from models.wan22.frames import PIXELS_PER_LATENT, decode, likeness, write_strip
from models.wan22.generation import Sampling, generate

TINY = ["--steps", "2", "--frames", "2", "--height", "2", "--width", "3", "--tp", "8", "--cp", "64"]


def test_both_precisions(tmp_path, capsys):
    out, reports = tmp_path / "strip.png", tmp_path / "reports"
    assert denoise.main([*TINY, "--ab", "--out", str(out), "--report", str(reports)]) == 0
    printed = capsys.readouterr().out
    for frame in range(2):
        (line,) = [line for line in printed.splitlines() if line.startswith(f"frame {frame}:")]
        psnr, ssim = float(line.split("PSNR ")[1].split(" dB")[0]), float(line.split("SSIM ")[1])
        assert 25 < psnr < 100
        assert 0.9 < ssim < 1
    assert "TP 8 x CP 64, 75,600 tokens" in printed
    assert "qkv_cte: " in printed
    assert "adaln_quant: " in printed
    strip = imread(out)
    rows, columns = 2 * (4 * PIXELS_PER_LATENT + 4), 2 * (6 * PIXELS_PER_LATENT + 4)
    assert strip.shape[:2] == (rows, columns)
    assert not np.array_equal(strip[: rows // 2], strip[rows // 2 :])
    files = sorted(path.name for path in reports.iterdir())
    assert len(files) == 16
    assert files[5] == "05_attn1.to_qkv.html"
    text = (reports / files[5]).read_text()
    assert "qkv_cte, attn1.to_qkv" in text
    assert "adaln_quant" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--steps", "0"], "an integer from 1 to 100"),
        (["--tp", "3"], "tp is 3 with 40 attention heads; accepted: a divisor"),
        (["--out", "/absent/x.png"], "there is no folder /absent"),
        (["--report", "/absent/x"], "cannot be made"),
        (["--out", "same", "--report", "./same"], "same is also the file to write; accepted: another folder"),
        (["--nothing"], "unrecognized arguments: --nothing"),
    ],
)
def test_bad_arguments(arguments, words, capsys, monkeypatch):
    monkeypatch.setattr(denoise, "_denoise", lambda *_: pytest.fail("work was done"))
    with pytest.raises(SystemExit) as ended:
        denoise.main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_decoding():
    latents = torch.zeros(1, 16, 2, 3, 4)
    latents[0, :, 1, 2, 3] = 1
    frames = decode(latents)
    assert frames.shape == (2, 24, 32, 3)
    assert (frames[0] == frames[0, 0, 0]).all()
    changed = (frames[1] != frames[0]).any(-1)
    assert changed[16:, 24:].all()
    assert changed.sum() == PIXELS_PER_LATENT**2


def test_likeness():
    frames = np.random.default_rng(0).integers(0, 256, (1, 16, 16, 3), dtype=np.uint8)
    (same,) = likeness(frames, frames)
    assert same.psnr_db == math.inf
    assert same.ssim == pytest.approx(1)
    off_by_one = frames ^ np.uint8(1)
    (near,) = likeness(off_by_one, frames)
    assert near.psnr_db == pytest.approx(20 * math.log10(255))
    (far,) = likeness(255 - frames, frames)
    assert far.psnr_db < 10
    assert far.ssim < 0


def test_strip(tmp_path):
    rows = [np.full((3, 8, 8, 3), level, np.uint8) for level in (10, 200)]
    write_strip(tmp_path / "strip", rows)
    strip = (imread(tmp_path / "strip", format="png")[..., :3] * 255).round()
    assert strip.shape == (24, 36, 3)
    assert (strip[:8, :8] == 10).all()
    assert (strip[12:20, 12:20] == 200).all()
    assert (strip[8:12] == 255).all()


class Expert:
    """Predicts, for two prompts, velocities that guidance of a scale makes into the one from noise to a known end."""

    def __init__(self, name, noise, end, guidance):
        self.expert = name
        unwanted = torch.randn_like(noise)
        self.velocity = torch.cat([unwanted + (noise - end - unwanted) / guidance, unwanted])
        self.timesteps = []

    def encode(self, text):
        return text

    def __call__(self, _, timestep, __):
        self.timesteps.append(int(timestep[0]))
        return self.velocity


def test_generation_ends_where_the_velocity_leads():
    """A constant velocity carries noise to its end exactly; the second expert takes over below the boundary.

    Noise of i / 6 is shifted to 12 i / (6 + 11 i): four steps are above 0.875, and without the shift there is one.
    """
    noise, end = torch.randn(1, 16, 1, 4, 4), torch.randn(1, 16, 1, 4, 4)
    experts = Expert("transformer", noise, end, 4.0), Expert("transformer_2", noise, end, 3.0)
    result = generate(cast(Any, experts), noise, torch.zeros(2, 1, 1), Sampling(steps=6), lambda *_: None)
    torch.testing.assert_close(result, end, atol=1e-4, rtol=1e-4)
    high, low = (expert.timesteps for expert in experts)
    assert min(high) >= 875 > max(low)
    assert (len(high), len(low)) == (4, 2)


def test_sampling_that_cannot_be():
    for values, words in (
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"steps": 1001}, "steps is 1001; accepted: up to 1000"),
        ({"steps": 2.0}, "steps must be an integer"),
        ({"boundary": math.nan}, "boundary is nan; accepted: from 0 to 1"),
        ({"guidance": (1.0,)}, r"guidance is \(1.0,\); accepted: two finite scales"),
        ({"guidance": (1.0, math.inf)}, "guidance is .*; accepted: two finite scales"),
        ({"flow_shift": 0.0}, "flow_shift is 0.0; accepted: a finite number above 0"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            Sampling(**cast(Any, values))


def test_noise_that_cannot_be():
    experts = cast(Any, (None, None))
    for noise, words in (
        (None, "noise is not a float32 tensor"),
        (torch.zeros(1, 16, 1, 4, 4, dtype=torch.bfloat16), "noise is not a float32 tensor"),
        (torch.zeros(2, 16, 1, 4, 4), r"noise is \[2, 16, 1, 4, 4\]; accepted: \[1, 16, T, H, W\]"),
        (torch.zeros(16, 1, 4, 4), "noise is"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            generate(experts, cast(Any, noise), torch.zeros(2, 1, 1), Sampling(steps=1), lambda *_: None)
