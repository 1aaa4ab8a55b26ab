"""Runs the fuzzer: `bazel run //tools/nkisim/fuzz -- --minutes 60 --seed 1`.

Three kinds share the time: kernels compared with the oracle (differential), collectives compared with the oracle, and
calls with senseless arguments (hostile). Exit status: 0 if no fault was found, 1 if one was; the smallest program that
shows it is printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuzz.cases import differential, hostile
from fuzz.collectives import collectives
from fuzz.session import MismatchError
from fuzz.view_model import Draw

CASES: dict[str, Callable[[Draw], int]] = {
    "differential": differential,
    "collectives": collectives,
    "hostile": hostile,
}
_BATCH = 200


class Count:
    """Cases, and the calls in them."""

    def __init__(self) -> None:
        self.cases = self.calls = 0


def batch(case: Callable[[Draw], int], number: int, cases: int, count: Count, *, shrink: bool = True) -> None:
    """Runs so many cases from a seed.

    Raises:
        MismatchError: a kernel with a fault; with `shrink` the smallest that hypothesis found.
    """

    @seed(number)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(data=st.data())
    def one(data: st.DataObject) -> None:
        count.calls += case(data.draw)
        count.cases += 1

    one()


def fuzz(kind: str, minutes: float, first_seed: int, count: Count) -> MismatchError | None:
    """Runs batches until the time is over, or something is found."""
    end = time.monotonic() + 60 * minutes
    number = first_seed
    while time.monotonic() < end:
        try:
            batch(CASES[kind], number, _BATCH, count)
        except MismatchError as found:
            return found
        number += 1
    return None


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to run (default 1)")
    parser.add_argument(
        "--seed", type=int, default=1, help="random seed of the first batch; later batches count up (default 1)"
    )
    parser.add_argument("--only", choices=sorted(CASES), help="run this kind only (default: all, with equal time)")
    options = parser.parse_args(argv)
    if not options.minutes > 0:
        parser.error(f"--minutes {options.minutes}; accepted: above 0")
    kinds = [options.only] if options.only else list(CASES)
    status = 0
    for kind in kinds:
        count = Count()
        found = fuzz(kind, options.minutes / len(kinds), options.seed, count)
        print(f"{kind}: {count.cases} cases, {count.calls} calls, {'a fault' if found else 'no fault'}", flush=True)
        if found is not None:
            print(found, file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
