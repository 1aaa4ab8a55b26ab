"""Compares the device-time model with every published measurement whose kernel is described well enough to rebuild.

Kernels are rebuilt and their instruction streams recorded without values; nothing runs on a Trainium.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tools.bench.command_line import BAD_INPUT, OneLineParser, file_name, require_stdout
from tools.bench.files import caller_path, require_writable, whole_file
from tools.bench.progress import progress
from tools.bench.tables import show
from tools.validation import seed, tables

OK, NOT_AS_MEASURED = 0, 1
WIDTH = 180
"""Columns of the tables where stdout is no terminal."""

_EXAMPLES = f"""examples:
  {tables.COMMAND}
  {tables.COMMAND} -- --markdown $PWD/tools/validation/REPORT.md

exit status: {OK} all ratios are within their ranges, {NOT_AS_MEASURED} one is not, {BAD_INPUT} bad usage or output
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = OneLineParser("validate", __doc__, _EXAMPLES)
    parser.add_argument("--markdown", type=file_name, metavar="FILE", help="also write the report to this file")
    options = parser.parse_args(arguments)
    try:
        require_stdout()
        if options.markdown:
            require_writable(caller_path(options.markdown))
        report = []
        with progress(len(tables.SECTIONS)) as announce:
            for title, make in tables.SECTIONS.items():
                announce(title)
                report.append(make())
        if options.markdown:
            with whole_file(caller_path(options.markdown)) as partial:
                partial.write_text(tables.markdown(report))
        show(tables.terminal(report), WIDTH)
    except ValueError as error:
        parser.error(str(error))
    return OK if all(comparison.holds for comparison in seed.comparisons()) else NOT_AS_MEASURED


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
