"""Plans, simulates and checks the projections of Wan2.2, a shape of your own, or a checkpoint's layer.

Prints, for each shape: the plan; HBM bytes, the minimum, and the bytes of two upstream (NKI Library) schedules; the
predicted time, its limit, and those schedules' times; instructions by engine; the error against an fp64 reference.
Everything is simulated; no Trainium is used.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
from collections.abc import Sequence

from common.hardware import Hardware
from kernels.qkv_cte.bench import call_tables, calls, general, json_document, layer, shapes, tables, time_report
from kernels.qkv_cte.bench.checkpoint import read_layer
from kernels.qkv_cte.host import arguments as kernel_arguments
from kernels.qkv_cte.oracle import cases
from tools.bench import comparison, time_files
from tools.bench.command_line import BAD_INPUT, OneLineParser, file_name, integer, require_stdout
from tools.bench.files import caller_path, require_apart, require_writable, whole_file
from tools.bench.progress import progress
from tools.bench.tables import show

OK, OUT_OF_TOLERANCE = 0, 1
KERNEL = "qkv_cte"
WAN22, GENERAL = "wan22", "general"
DEFAULT_SUITE, DEFAULT_LNC, DEFAULT_TARGET = "wan22", 2, "trn3"
WIDTH = 130
"""Columns of the tables where stdout is no terminal."""

_EXAMPLES = f"""examples:
  bazel run //kernels/qkv_cte:bench
  bazel run //kernels/qkv_cte:bench -- --suite corners --json corners.json
  bazel run //kernels/qkv_cte:bench -- --shape 1,4726,5120,3840 --lnc 1 --no-numerics
  bazel run //kernels/qkv_cte:bench -- --checkpoint wan_layer.safetensors --layer 0
  bazel run //kernels/qkv_cte:bench -- --policy best --no-numerics
  bazel run //kernels/qkv_cte:bench -- --case self_tp4 --report self_tp4.html --trace self_tp4.json
  bazel run //kernels/qkv_cte:bench -- --compare last_week.json
  bazel run //kernels/qkv_cte:bench -- --calls --policy best --case self_tp4
  bazel run //kernels/qkv_cte:bench -- --calls general --policy best

exit status: {OK} all results within tolerance, {OUT_OF_TOLERANCE} one is not or is slower than before,
{BAD_INPUT} bad usage, input or output
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    _require_one_subject(parser, options)
    try:
        require_stdout()
        if options.list:
            show(tables.suites())
            return OK
        target = kernel_arguments.require_target(
            DEFAULT_TARGET if options.target is None else options.target, options.lnc or DEFAULT_LNC
        )
        if options.calls:
            return (_bench_general if options.calls == GENERAL else _bench_calls)(options, target)
        return _bench_layer(options, target) if options.checkpoint else _bench_shapes(options, target)
    except ValueError as error:
        parser.error(str(error))


def _bench_shapes(options: argparse.Namespace, target: Hardware) -> int:
    chosen = _cases(options)
    files = time_files.from_options(options, [(target.name, case.lnc) for case in chosen])
    before = comparison.from_options(options, KERNEL)
    results = []
    with progress(1 + len(chosen)) as announce:
        announce("planning")
        make = functools.partial(shapes.prepare, hardware=target, values=options.numerics, policy=options.policy)
        for shape in [make(case) for case in chosen]:
            values = ", then values" if shape.values else ""
            announce(f"{shape.case.name}: {shape.plan.dims.tokens:,} tokens{values}")
            results.append(shapes.run(shape))
    _write_json(options, json_document.document(target.name, results, []))
    times = [result.predicted for result in results]
    files.write([time_report.report(result) for result in results], [one.point for one in times])
    now = {one.point.name: one.ns for one in times}
    show([*tables.shapes(results), *comparison.tables(before, now)], WIDTH)
    accepted = all(result.values is None or result.values.accepted for result in results)
    return OK if accepted and not comparison.slower(before, now) else OUT_OF_TOLERANCE


def _bench_calls(options: argparse.Namespace, target: Hardware) -> int:
    if options.json:
        require_writable(caller_path(options.json))
    members = calls.wan22()
    named = time_files.chosen_cases(options, [call.case for call in members])
    chosen = [call for call in members if call.case in named]
    if options.lnc is not None:
        chosen = [dataclasses.replace(call, case=dataclasses.replace(call.case, lnc=options.lnc)) for call in chosen]
    results = []
    with progress(len(chosen)) as announce:
        for call in chosen:
            announce(f"{call.case.name}: {call.case.dims.tokens:,} tokens, policy {options.policy}")
            results.append(calls.run(call, target, options.policy, values=options.numerics))
    _write_json(options, json_document.document(target.name, [], []) | {"calls": [*map(call_tables.as_dict, results)]})
    show(call_tables.tables(results))
    return OK if all(result.accepted for result in results) else OUT_OF_TOLERANCE


def _bench_general(options: argparse.Namespace, target: Hardware) -> int:
    if options.json:
        require_writable(caller_path(options.json))
    chosen = time_files.chosen_cases(options, general.CASES)
    if options.lnc is not None:
        chosen = [dataclasses.replace(case, lnc=options.lnc) for case in chosen]
    results = []
    with progress(len(chosen)) as announce:
        for case in chosen:
            announce(f"{case.name}: {case.batch * case.seqlen:,} tokens, policy {options.policy}")
            results.append(general.run(case, target, options.policy, values=options.numerics))
    _write_json(options, json_document.document(target.name, [], []) | {"general": [*map(general.as_dict, results)]})
    show(general.tables(results), WIDTH)
    return OK if all(result.accepted for result in results) else OUT_OF_TOLERANCE


def _bench_layer(options: argparse.Namespace, target: Hardware) -> int:
    path = caller_path(options.checkpoint)
    if options.json:
        require_writable(caller_path(options.json))
        require_apart(caller_path(options.json), path)
    with progress(2) as announce:
        announce(f"reading layer {options.layer} of {path}")
        weights = read_layer(path, options.layer)
        announce("planning")
        projections = layer.prepare(weights, target, options.lnc or DEFAULT_LNC)
    results = []
    with progress(len(projections)) as announce:
        for projection in projections:
            announce(f"{projection.name}: {projection.plan.dims.tokens:,} tokens")
            results.append(layer.run(projection))
    _write_json(options, json_document.document(target.name, [], results))
    show(tables.projections(results), WIDTH)
    return OK if all(result.accepted for result in results) else OUT_OF_TOLERANCE


def _cases(options: argparse.Namespace) -> list[cases.Case]:
    if options.shape:
        return [shapes.own_case(sizes, options.lnc or DEFAULT_LNC) for sizes in options.shape]
    members = time_files.chosen_cases(options, cases.suite(options.suite or DEFAULT_SUITE))
    return [case if options.lnc is None else dataclasses.replace(case, lnc=options.lnc) for case in members]


def _write_json(options: argparse.Namespace, document: dict[str, object]) -> None:
    if options.json:
        with whole_file(caller_path(options.json)) as partial:
            partial.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")


def _require_one_subject(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    subjects = [name for name in ("list", "suite", "shape", "checkpoint", "calls") if getattr(options, name)]
    if len(subjects) > 1:
        parser.error(f"--{subjects[0]} and --{subjects[1]} exclude each other")
    for name in ("lnc", "target", "policy", "numerics", "json", *time_files.OPTIONS):
        if options.list and getattr(options, name) != parser.get_default(name):
            parser.error(f"--list and --{'no-' * (name == 'numerics')}{name} exclude each other")
    _require_companions(parser, options)


def _require_companions(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.checkpoint and options.policy != "seed":
        parser.error("--checkpoint and --policy exclude each other")
    for name in time_files.OPTIONS:
        for subject in ("checkpoint", "calls"):
            if getattr(options, subject) and getattr(options, name) and (subject, name) != ("calls", "case"):
                parser.error(f"--{subject} and --{name} exclude each other")
    if options.shape and options.case:
        parser.error("--shape and --case exclude each other")
    if bool(options.checkpoint) != (options.layer is not None):
        parser.error("--checkpoint and --layer belong together")
    if options.checkpoint and not options.numerics:
        parser.error("--checkpoint compares values; it cannot go with --no-numerics")


def _parser() -> OneLineParser:
    parser = OneLineParser("bench", __doc__, _EXAMPLES)
    parser.add_argument("--list", action="store_true", help="list the suites and their shapes")
    parser.add_argument("--suite", choices=cases.SUITES, help=f"run these shapes (default: {DEFAULT_SUITE})")
    parser.add_argument(
        "--shape", action="append", type=_shape, metavar="B,S,H,I", help="run a shape of your own; may be repeated"
    )
    parser.add_argument(
        "--checkpoint", type=file_name, metavar="FILE", help="run the projections of a layer from this safetensors file"
    )
    parser.add_argument("--layer", type=integer(0), metavar="N", help="number of the layer in --checkpoint, from 0")
    parser.add_argument(
        "--calls",
        nargs="?",
        choices=(WAN22, GENERAL),
        const=WAN22,
        help="run whole calls: wan22 (the default), with norm and RoPE, or general, `qkv` calls of other models",
    )
    parser.add_argument("--lnc", type=int, choices=(1, 2), help=f"cores (default: the suite's, else {DEFAULT_LNC})")
    parser.add_argument("--target", help=f"trn2 or trn3 (default: {DEFAULT_TARGET}); trn2 has no MX matmuls")
    parser.add_argument(
        "--policy",
        choices=("seed", "best"),
        default="seed",
        help="how plans are chosen. seed: the fixed rule of the kernel's published reference (no random seed); best: a "
        "search for the least predicted time (default: seed)",
    )
    parser.add_argument("--no-numerics", dest="numerics", action="store_false", help="skip values and their errors")
    parser.add_argument("--json", type=file_name, metavar="FILE", help="also write the results to this file")
    time_files.add_options(parser)
    return parser


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.split(",")
    if len(sizes) != 4:
        raise argparse.ArgumentTypeError(f"{text!r}; accepted: B,S,H,I, four integers from 1, as in 1,4726,5120,3840")
    return tuple(map(integer(1), sizes))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
