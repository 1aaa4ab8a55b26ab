"""Puts the outcomes of a sweep's actions into one CSV file: collect OUTPUT OUTCOME..."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tools.plan import results
from tools.plan.points import Outcome


def main() -> None:
    """Collects in the order of the command line."""
    output, *names = sys.argv[1:]
    outcomes = [Outcome(**json.loads(Path(name).read_text())) for name in names]
    Path(output).write_text(results.csv_text(outcomes))


if __name__ == "__main__":
    main()
