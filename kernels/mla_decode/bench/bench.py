"""Plans, simulates and checks MLA decode steps at DeepSeek-V3.2's sizes.

Prints, for each shape: the plan; HBM bytes by purpose and the minimum; the predicted time, its limit, and the times of
the other schedules that the kernel's published reference ("seed") reports; instructions by engine; the error against an
fp64 reference.
Everything is simulated; no Trainium is used.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from common import hardware
from kernels.mla_decode.bench import shapes, tables, time_report
from kernels.mla_decode.bench.measure import as_dict
from kernels.mla_decode.bench.shapes import Result
from kernels.mla_decode.device.config import Schedule
from tools.bench import comparison, predicted, time_files
from tools.bench.command_line import BAD_INPUT, OneLineParser, file_name, require_stdout
from tools.bench.files import caller_path, whole_file
from tools.bench.progress import progress
from tools.bench.tables import note, show

OK, OUT_OF_TOLERANCE = 0, 1
KERNEL = "mla_decode"
DEFAULT_SUITE = "production"
WIDTH = 130
"""Columns of the tables where stdout is no terminal."""

_EXAMPLES = f"""examples:
  bazel run //kernels/mla_decode:bench
  bazel run //kernels/mla_decode:bench -- --suite batch --no-numerics
  bazel run //kernels/mla_decode:bench -- --suite tp --dma-chunks 1 --json tp.json
  bazel run //kernels/mla_decode:bench -- --policy best --target trn3
  bazel run //kernels/mla_decode:bench -- --ablate head_major --ablate latent_bands
  bazel run //kernels/mla_decode:bench -- --case production --report step.html --compare last_week.json

exit status: {OK} all results within tolerance, {OUT_OF_TOLERANCE} one is not or is slower than before,
{BAD_INPUT} bad usage, input or output
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        require_stdout()
        if options.list:
            show(tables.suites(shapes.SUITES), WIDTH)
            return OK
        return _bench(options)
    except ValueError as error:
        parser.error(str(error))


def _bench(options: argparse.Namespace) -> int:
    target = hardware.get(options.target).name if options.target is not None else None
    schedule = Schedule(**dict.fromkeys(options.ablate or (), True))
    chosen = [
        shapes.adapted(case, target, options.lnc, options.dma_chunks, options.group, schedule, options.cores_share)
        for case in time_files.chosen_cases(options, shapes.SUITES[options.suite])
    ]
    notes = []
    if options.policy == "best":
        if options.ablate or (options.group, options.dma_chunks, options.cores_share) != (None, None, None):
            raise ValueError("--policy best excludes --ablate, --group, --dma-chunks, --cores-share: it chooses them")
        found = [shapes.of_least_time(case) for case in chosen]
        chosen, notes = [case for case, _ in found], [note(why) for _, why in found]
    plans = [case.plan for case in chosen]
    files = time_files.from_options(options, [(planned.hardware.name, planned.dims.cores) for planned in plans])
    before = comparison.from_options(options, KERNEL)
    results = []
    with progress(len(chosen)) as announce:
        for case, planned in zip(chosen, plans, strict=True):
            announce(case.name)
            results.append(shapes.bench(case, planned, values=options.numerics))
    if options.json:
        with whole_file(caller_path(options.json)) as partial:
            partial.write_text(json.dumps(_document(results), indent=2, allow_nan=False) + "\n")
    times = [result.predicted for result in results]
    files.write([time_report.report(result) for result in results], [one.point for one in times])
    now = {one.point.name: one.ns for one in times}
    show([*tables.results(results), *notes, *comparison.tables(before, now)], WIDTH)
    accepted = all(result.values is None or result.values.accepted for result in results)
    return OK if accepted and not comparison.slower(before, now) else OUT_OF_TOLERANCE


def _document(results: Sequence[Result]) -> dict[str, Any]:
    """Sizes in bytes; null where no values were computed."""
    return {
        "version": comparison.VERSION,
        "kernel": KERNEL,
        "simulated": True,
        "shapes": [
            {
                "name": result.name,
                "target": result.plan.hardware.name,
                "sizes": dataclasses.asdict(result.plan.dims),
                "group_tokens": result.plan.group_tokens,
                "dma_transposed_chunks": result.plan.dma_transposed_chunks,
                "cores_share": result.plan.cores_share,
                "sbuf_used_bytes": result.plan.sbuf.peak_bytes,
                "hbm_bytes": as_dict(result.measured.hbm),
                "minimum_hbm_bytes": as_dict(result.plan.minimum),
                "predicted": predicted.as_dict(result.predicted),
                "instructions": dict(result.measured.instructions),
                "values": _values(result),
            }
            for result in results
        ],
    }


def _values(result: Result) -> dict[str, Any] | None:
    if result.values is None:
        return None
    found = dataclasses.asdict(result.values)
    return found | {"dtype": str(result.values.dtype), "accepted": result.values.accepted}


def _parser() -> OneLineParser:
    parser = OneLineParser("bench", __doc__, _EXAMPLES)
    parser.add_argument("--list", action="store_true", help="list the suites and their shapes")
    parser.add_argument("--suite", choices=shapes.SUITES, default=DEFAULT_SUITE, help=f"default: {DEFAULT_SUITE}")
    parser.add_argument("--target", help="trn2 or trn3 (default: the suite's)")
    parser.add_argument("--lnc", type=int, metavar="N", help="cores, 1 or 2 (default: the suite's)")
    parser.add_argument(
        "--cores-share", choices=("tokens", "heads"), help="what two cores split (default: the plan's choice)"
    )
    parser.add_argument(
        "--policy", choices=("rule", "best"), default="rule", help="by rule, or of least predicted time (default: rule)"
    )
    parser.add_argument(
        "--dma-chunks", type=int, metavar="N", help="latent tiles transposed by DMA (default: the plan's choice)"
    )
    parser.add_argument("--group", type=int, metavar="N", help="tokens per softmax group (default: the plan's choice)")
    parser.add_argument(
        "--ablate",
        action="append",
        choices=[field.name for field in dataclasses.fields(Schedule)],
        help="use this alternative schedule, which is slower or neutral; may be repeated",
    )
    parser.add_argument("--no-numerics", dest="numerics", action="store_false", help="skip values and their errors")
    parser.add_argument("--json", type=file_name, metavar="FILE", help="also write the results to this file")
    time_files.add_options(parser)
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
