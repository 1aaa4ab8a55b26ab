"""Writes a Wan2.2 transformer of one layer with random weights, for `bench --checkpoint` without a real checkpoint.

The model is diffusers', so names and shapes are those of the published checkpoints. The file also holds two inputs:
`hidden_states`, distributed like the modulated output of the layer's first norm, and `encoder_hidden_states`, like the
embedded text.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch
from diffusers import WanTransformer3DModel
from safetensors import SafetensorError
from safetensors.torch import save_file

from kernels.qkv_cte.bench.checkpoint import CROSS_INPUT, SELF_INPUT
from kernels.qkv_cte.bench.random_layer_input import random_layer_input
from tools.bench.command_line import OneLineParser, file_name, integer, require_stdout, written_to_stdout
from tools.bench.files import caller_path, require_writable, whole_file
from tools.bench.progress import progress

LARGEST_HIDDEN, LARGEST_FFN, LARGEST_TOKENS = 2**13, 2**15, 2**15
"""Above Wan2.2's 5120 and 13824; all of them together make a file of 4.4 GB."""

_EXAMPLES = """examples:
  bazel run //kernels/qkv_cte:make_checkpoint -- /tmp/wan_layer.safetensors
  bazel run //kernels/qkv_cte:make_checkpoint -- small.safetensors --hidden 512 --heads 4 --ffn 1024 --layer 7
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.hidden % options.heads:
        parser.error(f"--hidden is {options.hidden}; accepted: a multiple of --heads {options.heads}")
    if options.hidden // options.heads % 2:
        parser.error(
            f"--hidden {options.hidden} in --heads {options.heads} are heads of {options.hidden // options.heads}; "
            f"accepted: an even number of columns per head, for RoPE"
        )
    path = caller_path(options.file)
    try:
        require_stdout()
        require_writable(path)
        with progress(2) as announce:
            announce(f"making layer {options.layer}")
            tensors = make_tensors(options)
            announce(f"writing {path}")
            with whole_file(path) as partial:
                save_file(tensors, partial)
        with written_to_stdout():
            print(f"{path}: layer {options.layer}, {len(tensors)} tensors, {path.stat().st_size:,} bytes")
    except (ValueError, SafetensorError) as error:
        parser.error(str(error))
    return 0


def make_tensors(options: argparse.Namespace) -> dict[str, torch.Tensor]:
    """The layer and its inputs, the same for the same options."""
    torch.manual_seed(options.seed)
    inputs = ((SELF_INPUT, options.tokens, options.seed), (CROSS_INPUT, options.text_tokens, options.seed + 1))
    return layer_tensors(options.hidden, options.heads, options.ffn, options.layer) | {
        name: random_layer_input(tokens, options.hidden, seed).to(torch.bfloat16) for name, tokens, seed in inputs
    }


def layer_tensors(hidden: int, heads: int, ffn: int, layer: int) -> dict[str, torch.Tensor]:
    """State of a one-layer transformer in bfloat16, its block renumbered to `layer`."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = WanTransformer3DModel(
            num_layers=1, num_attention_heads=heads, attention_head_dim=hidden // heads, ffn_dim=ffn
        )
    finally:
        torch.set_default_dtype(default)
    renamed = ((name.replace("blocks.0.", f"blocks.{layer}."), value) for name, value in model.state_dict().items())
    return {name: value.contiguous() for name, value in renamed}


def _parser() -> OneLineParser:
    parser = OneLineParser("make_checkpoint", __doc__, _EXAMPLES)
    parser.add_argument("file", type=file_name, help="file to write")
    sizes = (
        ("--hidden", 5120, LARGEST_HIDDEN, "width of the layer"),
        ("--heads", 40, LARGEST_HIDDEN, "attention heads"),
        ("--ffn", 13824, LARGEST_FFN, "width of the feed-forward network"),
        ("--tokens", 256, LARGEST_TOKENS, "tokens of hidden_states"),
        ("--text-tokens", 512, LARGEST_TOKENS, "tokens of encoder_hidden_states"),
    )
    for name, default, largest, meaning in sizes:
        parser.add_argument(
            name, type=integer(1, largest), default=default, metavar="N", help=f"{meaning} (default {default})"
        )
    parser.add_argument("--layer", type=integer(0), default=0, metavar="N", help="number of the layer (default 0)")
    parser.add_argument("--seed", type=integer(0), default=0, metavar="N", help="random seed of all values (default 0)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
