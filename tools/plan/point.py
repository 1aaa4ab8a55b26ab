"""Plans and predicts one point, for a Bazel action: writes the outcome as JSON.

Called by `plan_sweep` of defs.bzl as: point OUTPUT KERNEL TARGET KNOB=VALUE...
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from tools.plan import points
from tools.plan.points import Outcome
from tools.plan.subjects import SUBJECTS


def outcome(kernel: str, target: str, given: list[str]) -> Outcome:
    """Of a kernel's defaults with the knobs that are given as NAME=VALUE.

    Raises:
        ValueError: a knob is unknown or its value is none.
    """
    if kernel not in SUBJECTS:
        raise ValueError(f"kernel is {kernel!r}; accepted: {', '.join(SUBJECTS)}")
    subject = SUBJECTS[kernel]
    values = {knob.name: knob.default for knob in subject.knobs}
    for text in given:
        name, _, value = text.partition("=")
        if name not in values:
            raise ValueError(f"knob is {name!r}; accepted: {', '.join(values)}")
        values[name] = int(value)
    return points.run(kernel, target or subject.target, values)


def main() -> None:
    """Writes the outcome of the command line's point."""
    output, kernel, target, *given = sys.argv[1:]
    try:
        Path(output).write_text(json.dumps(dataclasses.asdict(outcome(kernel, target, given)), indent=2) + "\n")
    except ValueError as error:
        sys.exit(f"point: {error}")


if __name__ == "__main__":
    main()
