"""Converts a published DeepSeek-V3.2 checkpoint (Hugging Face layout) to the layouts of the kernels.

fp8 matrices are dequantised with their block scales. One result serves any number of ranks. An interrupted conversion
resumes where it stopped; the destination folder exists only once it is complete.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from models.checkpoints import open_converted
from models.deepseek_v32.checkpoint import DTYPES, convert_hub
from tools.bench.command_line import OneLineParser, file_name, require_stdout, written_to_stdout
from tools.bench.files import caller_path

_EXAMPLES = """examples:
  bazel run //models/deepseek_v32:convert -- DeepSeek-V3.2 deepseek_packed
  bazel run //models/deepseek_v32:convert -- tiny_model tiny_packed --dtype float32
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = OneLineParser("convert", __doc__, _EXAMPLES)
    parser.add_argument("source", type=file_name, help="folder with config.json and safetensors files")
    parser.add_argument("destination", type=file_name, help="folder to create")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="type of the weights (default bfloat16)")
    options = parser.parse_args(arguments)
    source, destination = caller_path(options.source), caller_path(options.destination)
    try:
        require_stdout()
        convert_hub(source, destination, DTYPES[options.dtype])
        tensors = open_converted(destination)[1].tensors
        with written_to_stdout():
            size = sum(stored.size_bytes for stored in tensors.values())
            print(f"{destination}: {len(tensors):,} tensors, {size:,} bytes")
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
