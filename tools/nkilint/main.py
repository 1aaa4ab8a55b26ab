"""Reports Python in NKI kernels that the simulator runs but the NKI compiler rejects.

    bazel run //tools/nkilint -- FILE...

Exit status: 0 without findings, 1 with some, 2 where a file cannot be read or parsed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tools.nkilint.checks import check
from tools.nkilint.code import Source, parse
from tools.nkilint.findings import RULES, Finding

_EXAMPLES = """\
examples:
  bazel run //tools/nkilint -- kernels/qkv_cte/device/*.py
  bazel run //tools/nkilint -- --rules

Give all files of a kernel at once: functions that kernel code calls in the other files are kernel code too. Host code
in these files is not checked.
"""


def lint(paths: list[str], folder: Path = Path()) -> list[Finding]:
    """The findings in the files, taken together.

    Args:
        paths: Python files.
        folder: what relative paths start from.

    Raises:
        OSError: a file cannot be read. SyntaxError: it is no Python. UnicodeDecodeError: it is no text.
    """
    sources: list[Source] = [parse(path, (folder / path).read_text(encoding="utf-8")) for path in dict.fromkeys(paths)]
    return check(sources)


def main(arguments: list[str]) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="nkilint",
        description="Reports Python in NKI kernels that the simulator runs but the NKI compiler rejects.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="Python file of a kernel")
    parser.add_argument("--rules", action="store_true", help="list the rules with their sources, and exit")
    options = parser.parse_args(arguments)
    if options.rules:
        for rule in RULES:
            print(f"{rule.name}\n  source:  {rule.source}\n  instead: {rule.instead}")
        return 0
    if not options.files:
        parser.error("no FILE was given; accepted: one or more Python files")
    try:
        found = lint(options.files, Path(os.environ.get("BUILD_WORKING_DIRECTORY", "")))
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        print(f"nkilint: {error}", file=sys.stderr)
        return 2
    for finding in found:
        print(finding)
    files = len(dict.fromkeys(options.files))
    print(f"{len(found)} findings in {files} files" if found else f"no findings in {files} files", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
