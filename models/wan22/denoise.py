"""Runs a few denoising steps of a tiny random Wan2.2 (two experts) on the simulator, and writes the frames to a PNG.

Then prints predicted device times of Wan2.2 A14B at 720p x 81 frames. The pictures show nothing meaningful: weights are
random, and a fixed projection to colours replaces the VAE decoder. They serve to compare precisions: --ab runs bf16 and
ROW_MX from the same noise, writes bf16 in the top row and ROW_MX below, and prints PSNR and SSIM per frame.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from devicetime.timeline import Timeline
from models.wan22.config import T2V_A14B
from models.wan22.conversion import EXPERTS, convert_checkpoint
from models.wan22.device_time import KernelCall, Sizes, block_calls
from models.wan22.frames import decode, likeness, write_strip
from models.wan22.generation import Sampling, generate
from models.wan22.mesh import Mesh
from models.wan22.model import WanDiT
from models.wan22.projections import choose_precisions
from models.wan22.random_checkpoint import write_checkpoint
from models.wan22.time_tables import block_table, totals, write_reports
from tools.bench.command_line import (
    LARGEST_INTEGER,
    OneLineParser,
    file_name,
    integer,
    require_stdout,
    written_to_stdout,
)
from tools.bench.files import caller_path, require_writable, whole_file
from tools.bench.progress import progress

FULL_LATENTS = (1, 16, 21, 90, 160)
"""720p x 81 frames: 75,600 tokens."""

PROJECTION_NAMES = tuple(choose_precisions(T2V_A14B))
TITLE = "Wan2.2 A14B block on a rank, predicted (simulated)"
TABLE_COLUMNS = 110
HEADS, LAYERS, TEXT_TOKENS, TEXT_DIM = 2, 2, 16, 64

_EXAMPLES = """examples:
  bazel run //models/wan22:denoise
  bazel run //models/wan22:denoise -- --ab --steps 6 --out frames.png
  bazel run //models/wan22:denoise -- --tp 8 --cp 4
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    out = caller_path(options.out)
    try:
        require_stdout()
        mesh = Mesh(tp=options.tp, cp=options.cp)
        mesh.require_heads(T2V_A14B)
        require_writable(out)
        reports = None if options.report is None else _folder(caller_path(options.report), out)
        rows = _denoise(options)
        with whole_file(out) as partial:
            write_strip(partial, list(rows.values()))
        sizes = Sizes(1, math.prod(T2V_A14B.grid(FULL_LATENTS)), mesh)
        timelines = _predict(sizes)
        if reports is not None:
            write_reports(reports, TITLE, timelines)
        with written_to_stdout():
            _print(out, rows, sizes, timelines)
    except ValueError as error:
        parser.error(str(error))
    return 0


def _parser() -> OneLineParser:
    parser = OneLineParser("denoise", __doc__, _EXAMPLES)
    parser.add_argument("--ab", action="store_true", help="compare bf16 (top row) with ROW_MX (bottom row)")
    parser.add_argument(
        "--out", type=file_name, default="frames.png", metavar="FILE", help="PNG to write (default frames.png)"
    )
    parser.add_argument(
        "--report",
        type=file_name,
        metavar="FOLDER",
        help="write an HTML report of each launch's timeline to this folder",
    )
    numbers = (
        ("--steps", 1, 100, 4, "denoising steps"),
        ("--frames", 1, 16, 3, "latent frames"),
        ("--height", 1, 64, 8, "latent height in patches of 2"),
        ("--width", 1, 64, 10, "latent width in patches of 2"),
        ("--seed", 0, LARGEST_INTEGER, 0, "random seed of weights, noise and prompt"),
        ("--tp", 1, 64, 4, "tensor-parallel ranks of the predicted times"),
        ("--cp", 1, 64, 8, "context-parallel groups of the predicted times"),
    )
    for name, least, most, default, meaning in numbers:
        parser.add_argument(
            name, type=integer(least, most), default=default, metavar="N", help=f"{meaning} (default {default})"
        )
    return parser


def _folder(path: Path, out: Path) -> Path:
    """Makes the folder, before there is anything to put in it; `out` has another name."""
    if os.path.realpath(path) == os.path.realpath(out):
        raise ValueError(f"{path} is also the file to write; accepted: another folder")
    try:
        path.mkdir(exist_ok=True)
        require_writable(path / "report.html")
    except OSError as error:
        raise ValueError(f"{path} cannot be made: {error.strerror}") from None
    return path


def _denoise(options: argparse.Namespace) -> dict[str, np.ndarray]:
    """Frames of each precision, by its name."""
    generator = torch.Generator().manual_seed(options.seed)
    size = (options.frames, 2 * options.height, 2 * options.width)
    noise = torch.randn(1, T2V_A14B.in_channels, *size, generator=generator)
    text = torch.randn(2, TEXT_TOKENS, TEXT_DIM, generator=generator)
    with tempfile.TemporaryDirectory() as folder:
        published = Path(folder) / "published"
        for number, expert in enumerate(EXPERTS):
            seed = options.seed + number
            write_checkpoint(published / expert, heads=HEADS, layers=LAYERS, seed=seed, text_dim=TEXT_DIM)
        frames = {}
        for precision in ("bf16", "ROW_MX") if options.ab else ("ROW_MX",):
            converted = Path(folder) / precision
            kept = PROJECTION_NAMES if precision == "bf16" else ()
            convert_checkpoint(published, converted, kept)
            experts = WanDiT.load(converted, EXPERTS[0]), WanDiT.load(converted, EXPERTS[1])
            with progress(options.steps) as announce:
                latents = generate(experts, noise, text, Sampling(steps=options.steps), announce)
            frames[precision] = decode(latents)
    return frames


def _predict(sizes: Sizes) -> dict[KernelCall, Timeline]:
    """Timelines of a block's launches at the full model's sizes."""
    calls = block_calls(T2V_A14B, choose_precisions(T2V_A14B), sizes)
    timelines = {}
    with progress(len(calls)) as announce:
        for call in calls:
            announce(f"predicting {call.name}")
            timelines[call] = call.timeline()
    return timelines


def _print(out: Path, rows: dict[str, np.ndarray], sizes: Sizes, timelines: dict[KernelCall, Timeline]) -> None:
    print(f"{out}: {' above '.join(rows)}, {len(next(iter(rows.values())))} frames from left to right")
    if len(rows) > 1:
        before, after = rows.values()
        for number, like in enumerate(likeness(after, before)):
            print(f"frame {number}: ROW_MX against bf16: PSNR {like.psnr_db:.2f} dB, SSIM {like.ssim:.4f}")
    times_us = {call: timeline.total_ns / 1e3 for call, timeline in timelines.items()}
    Console(width=TABLE_COLUMNS).print(block_table(TITLE, times_us))
    for line in totals(T2V_A14B, sizes, times_us):
        print(line)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
