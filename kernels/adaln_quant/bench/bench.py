"""Plans, simulates and checks AdaLN and row quantisation at Wan2.2's shapes, or at a shape of your own.

Prints, for each shape, the plan, the HBM bytes against the unavoidable minimum and against separate launches, the
predicted time against its limit and theirs, how busy the engines are, the instructions by engine, and the error against
an fp64 reference. Everything is simulated; no Trainium is used.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from common import hardware
from kernels.adaln_quant.bench import shapes, tables, time_report
from kernels.adaln_quant.bench.shapes import Result
from kernels.adaln_quant.oracle.cases import SUITES, Case
from kernels.adaln_quant.oracle.compare import MAX_ROUNDINGS
from kernels.adaln_quant.planning.dims import Modulation
from kernels.adaln_quant.planning.plan import HbmBytes
from tools.bench import comparison, predicted, time_files
from tools.bench.command_line import BAD_INPUT, OneLineParser, file_name, integer, require_stdout
from tools.bench.files import caller_path, whole_file
from tools.bench.progress import progress
from tools.bench.tables import show

OK, OUT_OF_TOLERANCE = 0, 1
KERNEL = "adaln_quant"
DEFAULT_SUITE, DEFAULT_LNC, DEFAULT_TARGET, DEFAULT_MODULATION = "wan22", 2, "trn3", "batch"

_EXAMPLES = f"""examples:
  bazel run //kernels/adaln_quant:bench
  bazel run //kernels/adaln_quant:bench -- --suite corners --no-numerics --json corners.json
  bazel run //kernels/adaln_quant:bench -- --shape 1,4726,3072 --modulation token --lnc 1
  bazel run //kernels/adaln_quant:bench -- --case adaln --report adaln.html --compare last_week.json

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
        return _bench(options)
    except ValueError as error:
        parser.error(str(error))


def _bench(options: argparse.Namespace) -> int:
    target = hardware.get(options.target)
    prepared = [shapes.prepare(case, target, values=options.numerics) for case in _cases(options)]
    files = time_files.from_options(options, [(target.name, shape.case.lnc) for shape in prepared])
    before = comparison.from_options(options, KERNEL)
    results = []
    with progress(len(prepared)) as announce:
        for shape in prepared:
            announce(f"{shape.case.name}: {shape.plan.dims.tokens:,} tokens")
            results.append(shapes.run(shape))
    if options.json:
        with whole_file(caller_path(options.json)) as partial:
            partial.write_text(json.dumps(_document(target.name, results), indent=2, allow_nan=False) + "\n")
    times = [result.predicted for result in results]
    files.write([time_report.report(result) for result in results], [one.point for one in times])
    now = {one.point.name: one.ns for one in times}
    show([*tables.results(results), *comparison.tables(before, now)])
    accepted = all(result.errors is None or result.errors.accepted for result in results)
    return OK if accepted and not comparison.slower(before, now) else OUT_OF_TOLERANCE


def _cases(options: argparse.Namespace) -> list[Case]:
    if options.shape:
        modulation = Modulation(options.modulation or DEFAULT_MODULATION)
        return [shapes.own_case(sizes, modulation, options.lnc or DEFAULT_LNC) for sizes in options.shape]
    members = time_files.chosen_cases(options, SUITES[options.suite or DEFAULT_SUITE])
    return [case if options.lnc is None else dataclasses.replace(case, lnc=options.lnc) for case in members]


def _document(target: str, results: Sequence[Result]) -> dict[str, Any]:
    """Sizes in bytes; null where no values were computed."""
    return {
        "version": comparison.VERSION,
        "kernel": KERNEL,
        "target": target,
        "simulated": True,
        "accepted": {"roundings": MAX_ROUNDINGS},
        "shapes": [
            {
                "name": result.shape.case.name,
                "sizes": dataclasses.asdict(result.shape.plan.dims)
                | {"modulation": result.shape.case.modulation.value},
                "depth": result.shape.plan.depth,
                "sbuf_used_bytes": result.shape.plan.sbuf.peak_bytes,
                "hbm_bytes": _hbm(result.measured.hbm),
                "minimum_hbm_bytes": _hbm(result.shape.plan.minimum),
                "separate_hbm_bytes": None if result.separate_hbm is None else _hbm(result.separate_hbm),
                "predicted": predicted.as_dict(result.predicted),
                "instructions": dict(result.measured.instructions),
                "values": _values(result),
            }
            for result in results
        ],
    }


def _hbm(moved: HbmBytes) -> dict[str, int]:
    return dataclasses.asdict(moved) | {"total": moved.total}


def _values(result: Result) -> dict[str, Any] | None:
    if result.errors is None or result.shape.values is None:
        return None
    found = dataclasses.asdict(result.errors) | {"accepted": result.errors.accepted}
    return found | {"batch": result.shape.values.batch, "seqlen": result.shape.values.seqlen}


def _require_one_subject(parser: OneLineParser, options: argparse.Namespace) -> None:
    subjects = [name for name in ("list", "suite", "shape") if getattr(options, name)]
    if len(subjects) > 1:
        parser.error(f"--{subjects[0]} and --{subjects[1]} exclude each other")
    if options.shape and options.case:
        parser.error("--shape and --case exclude each other")
    if options.modulation and not options.shape:
        parser.error("--modulation needs --shape; the shapes of a suite have their own")


def _parser() -> OneLineParser:
    parser = OneLineParser("bench", __doc__, _EXAMPLES)
    parser.add_argument("--list", action="store_true", help="list the suites and their shapes")
    parser.add_argument("--suite", choices=SUITES, help=f"run these shapes (default: {DEFAULT_SUITE})")
    parser.add_argument(
        "--shape", action="append", type=_shape, metavar="B,S,H", help="run a shape of your own; may be repeated"
    )
    parser.add_argument(
        "--modulation",
        choices=[modulation.value for modulation in Modulation],
        help=f"scale and shift of --shape; none: row quantisation alone (default: {DEFAULT_MODULATION})",
    )
    parser.add_argument("--lnc", type=int, choices=(1, 2), help=f"cores (default: the suite's, else {DEFAULT_LNC})")
    parser.add_argument(
        "--target", default=DEFAULT_TARGET, help=f"trn2 or trn3 (default: {DEFAULT_TARGET}); trn2 has no fp8 rows"
    )
    parser.add_argument("--no-numerics", dest="numerics", action="store_false", help="skip values and their errors")
    parser.add_argument("--json", type=file_name, metavar="FILE", help="also write the results to this file")
    time_files.add_options(parser)
    return parser


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.split(",")
    if len(sizes) != 3:
        raise argparse.ArgumentTypeError(f"{text!r}; accepted: B,S,H, three integers from 1, as in 1,4726,5120")
    return tuple(map(integer(1), sizes))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
