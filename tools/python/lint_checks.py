"""The test cases of every lint_test: one per tool that applies to the target's files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ruff import find_ruff_bin

CONFIG = "pyproject.toml"
BAZEL_FILES = os.environ["LINT_BAZEL_FILES"].split()
PYTHON_FILES = os.environ["LINT_PYTHON_FILES"].split()


def check(*command: str) -> None:
    """Runs a linter; its output is the failure."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        pytest.fail(f"{done.stdout}(bazel run //tools/python:format mends layout)", pytrace=False)


if PYTHON_FILES:

    def test_ruff_check() -> None:
        """Rules of pyproject.toml."""
        check(find_ruff_bin(), "check", "--no-cache", "--quiet", f"--config={CONFIG}", *PYTHON_FILES)

    def test_ruff_format() -> None:
        """Layout of the source."""
        check(find_ruff_bin(), "format", "--no-cache", "--diff", f"--config={CONFIG}", *PYTHON_FILES)

    def test_mypy(tmp_path: Path) -> None:
        """Types, with those of the declared dependencies."""
        options = [f"--config-file={CONFIG}", f"--cache-dir={tmp_path}", "--no-error-summary"]
        check(sys.executable, "-m", "mypy", *options, *PYTHON_FILES)


def test_buildifier() -> None:
    """Layout and lint of the package's Bazel files."""
    assert BAZEL_FILES, "lint_test belongs into a package with a BUILD.bazel"
    check(os.environ["LINT_BUILDIFIER"], "-mode=diff", "-lint=warn", *BAZEL_FILES)
