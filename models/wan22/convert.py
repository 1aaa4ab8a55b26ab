"""Converts a published Wan2.2 checkpoint (diffusers' layout) to the layouts of the kernels.

Both experts' projections become fp8 codes with one scale per output channel; those named by --bf16 stay bf16. An
interrupted conversion resumes where it stopped; the destination folder exists only once it is complete.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from models.wan22.conversion import convert_checkpoint, open_wan
from tools.bench.command_line import OneLineParser, file_name, require_stdout, written_to_stdout
from tools.bench.files import caller_path

_EXAMPLES = """examples:
  bazel run //models/wan22:convert -- Wan2.2-T2V-A14B-Diffusers wan22_row_mx
  bazel run //models/wan22:convert -- Wan2.2-I2V-A14B-Diffusers mixed --bf16 attn1.to_qkv,attn1.to_out.0
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = OneLineParser("convert", __doc__, _EXAMPLES)
    parser.add_argument("source", type=file_name, help="folder with transformer (and transformer_2), or one of them")
    parser.add_argument("destination", type=file_name, help="folder to create")
    parser.add_argument(
        "--bf16", type=names, default=(), metavar="NAMES", help="projections to keep in bf16, comma-separated"
    )
    options = parser.parse_args(arguments)
    source, destination = caller_path(options.source), caller_path(options.destination)
    try:
        require_stdout()
        convert_checkpoint(source, destination, options.bf16)
        made = open_wan(destination)
        size = sum(stored.size_bytes for stored in made.checkpoint.tensors.values())
        with written_to_stdout():
            print(f"{destination}: {', '.join(made.experts)}, {len(made.checkpoint.tensors):,} tensors, {size:,} bytes")
    except ValueError as error:
        parser.error(str(error))
    return 0


def names(text: str) -> tuple[str, ...]:
    """An argument type: comma-separated names."""
    found = tuple(text.split(","))
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r}; accepted: comma-separated names")
    return found


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
