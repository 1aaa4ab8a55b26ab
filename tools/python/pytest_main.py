"""Main program of every pytest_test: speaks Bazel's test protocol to pytest.

Reads the variables that Bazel sets for a test (TEST_TOTAL_SHARDS, TEST_SHARD_INDEX,
TEST_SHARD_STATUS_FILE, TESTBRIDGE_TEST_ONLY, TESTBRIDGE_TEST_RUNNER_FAIL_FAST, XML_OUTPUT_FILE,
TEST_TMPDIR); arguments are pytest's.
"""

import os
import sys
from pathlib import Path

import pytest


class Shard:
    """Keeps every `total`-th collected test case, starting with number `index`."""

    def __init__(self, index: int, total: int) -> None:
        self.index = index
        self.total = total
        self.num_collected = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Drops the test cases of other shards."""
        self.num_collected = len(items)
        dropped = [item for number, item in enumerate(items) if number % self.total != self.index]
        if dropped:
            config.hook.pytest_deselected(items=dropped)
        items[:] = items[self.index :: self.total]


def run(arguments: list[str], environment: dict[str, str]) -> int:
    """Runs pytest as Bazel's variables say and returns the exit status for Bazel."""
    shard = Shard(
        index=int(environment.get("TEST_SHARD_INDEX") or 0),
        total=int(environment.get("TEST_TOTAL_SHARDS") or 1),
    )
    if status_file := environment.get("TEST_SHARD_STATUS_FILE"):
        Path(status_file).touch()  # tells Bazel that the program shards

    options = ["-ra", "-p", "no:cacheprovider", "--import-mode=importlib", f"--rootdir={os.getcwd()}"]
    options += ["--override-ini=addopts=", "--override-ini=junit_family=xunit2", "--strict-markers"]
    if xml := environment.get("XML_OUTPUT_FILE"):
        options.append(f"--junitxml={xml}")
    if folder := environment.get("TEST_TMPDIR"):
        options.append(f"--basetemp={folder}/pytest")
        # Hypothesis would keep its examples in the working directory, which is read-only.
        os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", f"{folder}/hypothesis")
    if test_filter := environment.get("TESTBRIDGE_TEST_ONLY"):
        options += ["-k", test_filter]
    if environment.get("TESTBRIDGE_TEST_RUNNER_FAIL_FAST") == "1":
        options.append("-x")

    status = pytest.main(options + arguments, plugins=[shard])
    # A filter may leave nothing of this target, and a shard may be empty where others are not.
    explained = bool(test_filter) or (shard.total > 1 and shard.num_collected > 0)
    if status == pytest.ExitCode.NO_TESTS_COLLECTED and explained:
        return 0
    return int(status)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], dict(os.environ)))
