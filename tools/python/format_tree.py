"""Formats the workspace: ruff's fixes and layout, buildifier's layout.

    bazel run //tools/python:format

Only files that git knows or would add are touched. What the tools cannot fix they print, and the exit
status is 1.
"""

import os
import subprocess
import sys
from pathlib import Path

from ruff import find_ruff_bin


def files(*patterns: str) -> list[str]:
    """Returns the working folder's files that match, tracked or not, but for ignored ones."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return sorted({name for name in listed.split("\0") if name and Path(name).is_file()})


def main() -> None:
    """Runs each tool over its files in the workspace that `bazel run` was called in."""
    buildifier = Path(sys.argv[1]).resolve()
    os.chdir(os.environ["BUILD_WORKSPACE_DIRECTORY"])
    python_files = files("*.py")
    commands = [
        [find_ruff_bin(), "check", "--no-cache", "--quiet", "--fix", *python_files],
        [find_ruff_bin(), "format", "--no-cache", "--quiet", *python_files],
        [buildifier, *files("WORKSPACE", "*.bazel", "*.bzl")],
    ]
    statuses = [subprocess.run(command, check=False).returncode for command in commands]
    sys.exit(any(statuses))


if __name__ == "__main__":
    main()
