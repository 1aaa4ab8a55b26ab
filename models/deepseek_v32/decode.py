"""Generates tokens greedily for a batch of prompts, and predicts the device time of DeepSeek-V3.2's decode step.

Prefill runs in torch; each decode step of all sequences runs on the simulated kernels. Without --checkpoint the model
is tiny and random: tokens are bytes, and its text means nothing. Under torchrun each process is one rank. Device times
are predictions for the published model, or for the model of --checkpoint.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from models.deepseek_v32 import checkpoint, device_time, time_tables
from models.deepseek_v32.attention import Device
from models.deepseek_v32.blocks import CacheExhaustedError
from models.deepseek_v32.checkpoint import DTYPES
from models.deepseek_v32.config import PUBLISHED, ModelConfig
from models.deepseek_v32.device_time import KernelTime, Serving
from models.deepseek_v32.generation import generate
from models.deepseek_v32.model import Limits, Model, require_servable
from models.deepseek_v32.ranks import GroupRank, LocalRanks, Ranks
from models.deepseek_v32.tiny import TINY, random_weights
from models.deepseek_v32.weights import ModelWeights
from tools.bench.command_line import OneLineParser, file_name, integer, require_stdout, written_to_stdout
from tools.bench.files import caller_path, require_writable, whole_file
from tools.bench.progress import progress
from tools.bench.tables import show

PROMPTS = ("attention", "The quick brown fox jumps over the lazy dog.", "a")

_EXAMPLES = """examples:
  bazel run //models/deepseek_v32:decode
  bazel run //models/deepseek_v32:decode -- --prompt hello --prompt "good morning" --tokens 32 --ranks 2
  bazel run //models/deepseek_v32:decode -- --tp 64 --lnc 2 --batch 32 --context 32768 --report layer.html
  bazel run //models/deepseek_v32:decode -- --checkpoint converted --ids 0,17,33
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        require_stdout()
        report = caller_path(options.report) if options.report else None
        if report:
            require_writable(report)
        ranks = _ranks(options)
        config, weights = _weights(options, ranks)
        served = config if options.checkpoint else PUBLISHED
        device = Device(options.target, options.lnc)
        serving = Serving(options.tp, options.batch, options.context, device)
        device_time.require_serving(served, serving)
        prompts = _prompts(options)
        generated = _generate(options, config, weights, ranks, prompts)
        if ranks.here[0] == 0:
            with written_to_stdout():
                _print_tokens(prompts, generated)
                _predict(served, serving, report)
    except (TypeError, ValueError, CacheExhaustedError) as error:
        parser.error(str(error))
    return 0


def _parser() -> OneLineParser:
    parser = OneLineParser("decode", __doc__, _EXAMPLES)
    what = parser.add_argument_group("generation")
    what.add_argument("--prompt", action="append", metavar="TEXT", help="a prompt, one token per byte; may be repeated")
    what.add_argument(
        "--ids", action="append", type=token_ids, metavar="N,N", help="a prompt as token ids; may be repeated"
    )
    what.add_argument(
        "--tokens", type=integer(1), default=16, metavar="N", help="tokens to generate per prompt (default 16)"
    )
    what.add_argument(
        "--checkpoint", type=file_name, metavar="FOLDER", help="published or converted (default: a tiny random model)"
    )
    what.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="type of the weights (default bfloat16)")
    what.add_argument("--ranks", type=integer(1, 128), default=1, metavar="N", help="ranks in this process (default 1)")
    what.add_argument(
        "--block-size", type=integer(1), default=8, metavar="N", help="positions of a cache block (default 8)"
    )
    what.add_argument("--blocks", type=integer(1), metavar="N", help="cache blocks (default: as many as needed)")
    time = parser.add_argument_group("predicted times")
    time.add_argument("--tp", type=integer(1, 128), default=16, metavar="N", help="tensor-parallel ranks (default 16)")
    time.add_argument("--batch", type=integer(1, 128), default=16, metavar="N", help="sequences (default 16)")
    time.add_argument(
        "--context", type=integer(1), default=4096, metavar="N", help="positions per sequence (default 4096)"
    )
    time.add_argument("--report", type=file_name, metavar="FILE", help="write mla_decode's predicted timeline as HTML")
    time.add_argument("--lnc", type=integer(1, 2), default=1, metavar="N", help="cores per rank (default 1)")
    parser.add_argument("--target", choices=("trn2", "trn3"), default="trn2", help="simulated device (default trn2)")
    return parser


def token_ids(text: str) -> list[int]:
    """An argument type: comma-separated integers."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}; accepted: comma-separated token ids")
    return [int(part) for part in parts]


def _prompts(options: argparse.Namespace) -> list[list[int]]:
    texts = options.prompt or (() if options.ids else PROMPTS)
    return [*(list(os.fsencode(text)) for text in texts), *(options.ids or ())]


def _ranks(options: argparse.Namespace) -> Ranks:
    """One of torchrun's processes, else all in this one."""
    if "RANK" not in os.environ:
        return LocalRanks(options.ranks)
    if options.ranks != 1:
        raise ValueError(f"--ranks is {options.ranks}; accepted under torchrun: 1, each process is a rank")
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    return GroupRank.of()


def _weights(options: argparse.Namespace, ranks: Ranks) -> tuple[ModelConfig, list[ModelWeights]]:
    dtype = DTYPES[options.dtype]
    if not options.checkpoint:
        require_servable(TINY, ranks.size, len(_prompts(options)), dtype, Device(options.target))
        return TINY, [random_weights(dtype, rank, ranks.size) for rank in ranks.here]
    folder: Path = caller_path(options.checkpoint)
    loaded = [checkpoint.load(folder, dtype, rank, ranks.size) for rank in ranks.here]
    return loaded[0][0], [weights for _, weights in loaded]


def _generate(
    options: argparse.Namespace,
    config: ModelConfig,
    weights: Sequence[ModelWeights],
    ranks: Ranks,
    prompts: Sequence[Sequence[int]],
) -> list[list[int]]:
    longest = [len(prompt) + options.tokens for prompt in prompts]
    blocks = options.blocks or sum(-(-length // options.block_size) for length in longest)
    limits = Limits(len(prompts), blocks, options.block_size)
    model = Model(config, weights, limits, ranks=ranks, device=Device(options.target))
    if ranks.here[0] > 0:
        return generate(model, prompts, options.tokens)
    with progress(options.tokens) as announce:
        return generate(model, prompts, options.tokens, lambda step: announce(f"token {step}"))


def _print_tokens(prompts: Sequence[Sequence[int]], generated: Sequence[Sequence[int]]) -> None:
    for prompt, tokens in zip(prompts, generated, strict=True):
        shown = f"{len(prompt)} tokens" if len(prompt) > 12 else " ".join(map(str, prompt))
        print(f"[{shown}] -> {' '.join(map(str, tokens))}")
    print()


def _predict(config: ModelConfig, serving: Serving, report: Path | None) -> None:
    layer = device_time.layer_kernels(config, serving)
    head = device_time.head_kernels(config, serving)
    show(time_tables.tables(config, serving, layer, head))
    if report:
        with whole_file(report) as partial:
            partial.write_text(_html(config, serving, layer))


def _html(config: ModelConfig, serving: Serving, layer: Sequence[KernelTime]) -> str:
    from tools.timeline_report import report  # Only --report draws.

    (attention,) = (kernel for kernel in layer if kernel.kernel == device_time.ATTENTION)
    planned = device_time.attention_plan(config, serving)
    return report.html(
        report.Report(
            title="mla_decode",
            subtitle=time_tables.served(serving),
            timeline=attention.timeline,
            sections=(report.Section("Plan", text=str(planned)),),
        )
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
