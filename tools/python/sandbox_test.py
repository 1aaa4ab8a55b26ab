"""What every test may rely on: a sandbox without network, and only declared packages."""

import importlib.util
import os
from pathlib import Path


def test_no_network_but_loopback():
    interfaces = [line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    assert interfaces == ["lo"]


def test_undeclared_packages_are_not_importable():
    assert importlib.util.find_spec("pytest") is not None
    assert importlib.util.find_spec("torch") is None


def test_one_thread_per_test():
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_working_folder_is_read_only_but_temporary_folder_is_not(tmp_path):
    assert tmp_path.is_relative_to(os.environ["TEST_TMPDIR"])
    (tmp_path / "file").write_text("text")
