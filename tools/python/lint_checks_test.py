"""Each linter of a lint_test sees what it is there for."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

CHECKS = Path("tools/python/lint_checks.py").resolve()
CONFIG = Path("pyproject.toml").resolve()
GOOD_PYTHON = '"""A module."""\n\n\ndef double(x: int) -> int:\n    """Twice x."""\n    return 2 * x\n'
GOOD_BUILD = 'filegroup(\n    name = "files",\n    srcs = ["module.py"],\n)\n'


@pytest.fixture
def failed_checks(tmp_path):
    """Names of the checks that fail for the given sources, and of all that ran."""

    def runner(python=GOOD_PYTHON, build=GOOD_BUILD):
        (tmp_path / "pyproject.toml").symlink_to(CONFIG)
        (tmp_path / "BUILD.bazel").write_text(build)
        if python is not None:
            (tmp_path / "module.py").write_text(python)
        variables = {
            "LINT_BAZEL_FILES": "BUILD.bazel",
            "LINT_BUILDIFIER": os.path.abspath(os.environ["LINT_BUILDIFIER"]),
            "LINT_PYTHON_FILES": "module.py" if python is not None else "",
        }
        options = ["-p", "no:cacheprovider", "--junitxml=test.xml", "--rootdir=.", f"--basetemp={tmp_path}/tmp"]
        command = [sys.executable, "-m", "pytest", *options, str(CHECKS)]
        subprocess.run(command, cwd=tmp_path, env=os.environ | variables, check=False, capture_output=True)
        cases = list(ElementTree.parse(tmp_path / "test.xml").iter("testcase"))
        assert cases
        return {case.get("name") for case in cases if len(case)}, {case.get("name") for case in cases}

    return runner


def test_good_files_pass_every_check(failed_checks):
    failed, ran = failed_checks()
    assert failed == set()
    assert ran == {"test_ruff_check", "test_ruff_format", "test_mypy", "test_buildifier"}


@pytest.mark.parametrize(
    ("sources", "check"),
    [
        ({"python": GOOD_PYTHON.replace("\n\n\n", "\n\nimport os\n\n\n", 1)}, "test_ruff_check"),
        ({"python": GOOD_PYTHON.replace("x: int", "x")}, "test_ruff_check"),
        ({"python": GOOD_PYTHON.replace("2 * x", "2*x")}, "test_ruff_format"),
        ({"python": GOOD_PYTHON.replace("2 * x", "str(x)")}, "test_mypy"),
        ({"build": GOOD_BUILD.replace("    ", "  ")}, "test_buildifier"),
        ({"build": f'load(":unused.bzl", "unused")\n\n{GOOD_BUILD}'}, "test_buildifier"),
    ],
)
def test_a_fault_fails_its_check_alone(failed_checks, sources, check):
    assert failed_checks(**sources)[0] == {check}


def test_a_package_without_python_is_checked_by_buildifier_only(failed_checks):
    assert failed_checks(python=None) == (set(), {"test_buildifier"})
