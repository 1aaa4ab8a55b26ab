"""Bazel's test protocol, as pytest_main speaks it."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

MAIN = Path("tools/python/pytest_main.py").resolve()
FOUR_CASES = """
import pytest

@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_number(number):
    assert number < 5
"""
BAZEL_VARIABLES = ("TEST", "XML_OUTPUT_FILE")


@pytest.fixture
def run(tmp_path):
    """Runs pytest_main on a source; returns the process and the XML's test case names."""

    def runner(source, **variables):
        test = tmp_path / "some_test.py"
        test.write_text(source)
        xml = tmp_path / "test.xml"
        clean = {name: value for name, value in os.environ.items() if not name.startswith(BAZEL_VARIABLES)}
        environment = clean | {"XML_OUTPUT_FILE": str(xml)} | variables
        done = subprocess.run(
            [sys.executable, MAIN, test.name], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        cases = [case.get("name") for case in ElementTree.parse(xml).iter("testcase")]
        return done, cases

    return runner


def test_every_case_is_in_the_xml(run):
    done, cases = run(FOUR_CASES)
    assert done.returncode == 0, done.stdout
    assert cases == ["test_number[1]", "test_number[2]", "test_number[3]", "test_number[4]"]


def test_a_failing_case_fails(run):
    done, cases = run(FOUR_CASES.replace("< 5", "< 4"))
    assert done.returncode == 1
    assert len(cases) == 4


def test_a_source_that_does_not_import_fails(run):
    assert run("import no_such_module")[0].returncode != 0


def test_nothing_collected_fails(run):
    assert run("")[0].returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def test_shards_share_the_cases_out(run, tmp_path):
    status = tmp_path / "status"
    seen = []
    for index in range(3):
        shard = {"TEST_TOTAL_SHARDS": "3", "TEST_SHARD_INDEX": str(index), "TEST_SHARD_STATUS_FILE": str(status)}
        done, cases = run(FOUR_CASES, **shard)
        assert done.returncode == 0, done.stdout
        seen += cases
    assert sorted(seen) == [f"test_number[{number}]" for number in (1, 2, 3, 4)]
    assert status.exists()


def test_an_empty_shard_is_no_failure_but_nothing_in_any_shard_is(run):
    shard = {"TEST_TOTAL_SHARDS": "9", "TEST_SHARD_INDEX": "8"}
    done, cases = run(FOUR_CASES, **shard)
    assert (done.returncode, cases) == (0, [])
    assert run("", **shard)[0].returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def test_filter(run):
    done, cases = run(FOUR_CASES, TESTBRIDGE_TEST_ONLY="1 or 3")
    assert (done.returncode, cases) == (0, ["test_number[1]", "test_number[3]"])
    done, cases = run(FOUR_CASES, TESTBRIDGE_TEST_ONLY="elsewhere")
    assert (done.returncode, cases) == (0, [])


def test_fail_fast(run):
    done, cases = run(FOUR_CASES.replace("< 5", "< 0"), TESTBRIDGE_TEST_RUNNER_FAIL_FAST="1")
    assert done.returncode != 0
    assert len(cases) == 1


def test_temporary_folders_lie_in_bazels(run, tmp_path):
    source = f"def test_folder(tmp_path):\n    assert tmp_path.is_relative_to({str(tmp_path / 'given')!r})\n"
    (tmp_path / "given").mkdir()
    assert run(source, TEST_TMPDIR=str(tmp_path / "given"))[0].returncode == 0
