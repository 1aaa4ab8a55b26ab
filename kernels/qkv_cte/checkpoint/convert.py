"""Converts a Wan2.2 transformer in diffusers' safetensors files to packed fp8 weights with rotate-half lanes.

Linear layers of the blocks are quantised by output channel; Q and K of self-attention are reordered for rotate-half
RoPE. One tensor is in memory at a time. The destination appears once all of it is written.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kernels.qkv_cte.checkpoint.rules import Rule, rule_for
from kernels.qkv_cte.checkpoint.stream import CheckpointError, require_distinct, rewrite, rules_of
from tools.bench.command_line import OneLineParser, file_name, integer, require_stdout, written_to_stdout
from tools.bench.files import caller_path, require_apart, require_writable, whole_file
from tools.bench.progress import progress

WAN_HEAD_DIM = 128
_INDEX = "*.safetensors.index.json"

_EXAMPLES = """examples:
  bazel run //kernels/qkv_cte:convert_checkpoint -- wan_layer.safetensors packed.safetensors
  bazel run //kernels/qkv_cte:convert_checkpoint -- Wan2.2-T2V-A14B-Diffusers/transformer packed
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = OneLineParser("convert_checkpoint", __doc__, _EXAMPLES)
    parser.add_argument("source", type=file_name, help="a safetensors file, or a folder of them with their index")
    parser.add_argument("destination", type=file_name, help="a file to write, or the name of a new folder")
    parser.add_argument(
        "--head-dim", type=integer(2), default=WAN_HEAD_DIM, metavar="D", help=f"(default {WAN_HEAD_DIM}, Wan2.2's)"
    )
    options = parser.parse_args(arguments)
    try:
        require_stdout()
        return _convert(options)
    except ValueError as error:
        parser.error(str(error))


def _convert(options: argparse.Namespace) -> int:
    source, destination = caller_path(options.source), caller_path(options.destination)
    rule_of = functools.partial(rule_for, head_dim=options.head_dim)
    if os.path.isdir(source):
        shards = _shards(source)
        rules = {shard: rules_of(shard, rule_of) for shard in shards}
        try:
            require_distinct(rule for of_file in rules.values() for rule in of_file.values())
        except ValueError as error:
            raise CheckpointError(f"{source}: {error}") from None
        with new_folder(destination) as folder:
            size = _write_all({shard: folder / shard.name for shard in shards}, rules)
            _write_index(folder, rules, size)
    else:
        require_writable(destination)
        require_apart(destination, source)
        rules = {source: rules_of(source, rule_of)}
        with whole_file(destination) as partial:
            size = _write_all({source: partial}, rules)
    with written_to_stdout():
        print(f"{destination}: {sum(map(len, rules.values())):,} tensors, {size:,} bytes")
    return 0


def _write_all(targets: dict[Path, Path], rules: dict[Path, dict[str, Rule]]) -> int:
    """Writes every file; progress is shown by block."""
    parts = [_part(name) for of_file in rules.values() for name in of_file]
    steps = sum(now != before for before, now in zip([None, *parts], parts, strict=False))
    with progress(steps) as announce:
        announce_part = _once_for_each(announce)
        return sum(rewrite(source, target, rules[source], announce_part) for source, target in targets.items())


def _once_for_each(announce: Callable[[str], None]) -> Callable[[str], None]:
    """Announces the part of the model that a tensor belongs to when it is another than before."""
    last = None

    def announce_part(name: str) -> None:
        nonlocal last
        if _part(name) != last:
            last = _part(name)
            announce(last)

    return announce_part


def _part(name: str) -> str:
    match = re.match(r"blocks\.\d+|[^.]+", name)
    return match[0] if match else name


def _shards(folder: Path) -> list[Path]:
    """Safetensors files of a folder: those that its index names, all of them there; or the only one."""
    indices = sorted(folder.glob(_INDEX))
    if not indices:
        files = sorted(folder.glob("*.safetensors"))
        if len(files) != 1:
            raise CheckpointError(
                f"{folder} has {len(files)} safetensors files and no index; accepted: one, or {_INDEX}"
            )
        return files
    if len(indices) > 1:
        raise CheckpointError(f"{folder} has {len(indices)} files {_INDEX}; accepted: one")
    try:
        names = sorted(set(json.loads(indices[0].read_text())["weight_map"].values()))
        files = [folder / name for name in names if Path(name).name == name]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise CheckpointError(f"{indices[0]} is no index; accepted: weight_map with a file for each tensor") from None
    missing = [name for name in names if not os.path.isfile(folder / name) or Path(name).name != name]
    if missing or not files:
        named = ", ".join(map(repr, missing)) or "no file"
        raise CheckpointError(f"{indices[0]} names {named}; accepted: files that lie beside it")
    return files


def _write_index(folder: Path, rules: dict[Path, dict[str, Rule]], size: int) -> None:
    weight_map = {
        output.name: shard.name
        for shard, of_file in rules.items()
        for rule in of_file.values()
        for output in rule.outputs
    }
    document = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(document, indent=2) + "\n")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yields a folder to fill, which is called `path` once the block has ended; after an error it is gone.

    Raises:
        ValueError: `path` exists, or the folder cannot be made.
    """
    partial = path.with_name(f".{os.getpid()}.partial")
    try:
        if os.path.lexists(path):
            raise ValueError(f"{path} exists; accepted: the name of a new folder")
        partial.mkdir()
        yield partial
        partial.rename(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
