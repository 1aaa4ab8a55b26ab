"""Paths of the caller, and files that are whole or not there."""

import os
from pathlib import Path

import pytest

from kernels.qkv_cte.bench.files import caller_path, require_writable, whole_file


def test_paths_are_the_callers(monkeypatch):
    monkeypatch.setenv("BUILD_WORKING_DIRECTORY", "/of/the/caller")
    assert caller_path("out.json") == Path("/of/the/caller/out.json")
    assert caller_path("/tmp/out.json") == Path("/tmp/out.json")
    monkeypatch.delenv("BUILD_WORKING_DIRECTORY")
    assert caller_path("out.json") == Path("out.json")


def test_a_file_appears_when_it_is_finished(tmp_path):
    path = tmp_path / "out"
    path.write_text("old")
    with whole_file(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_stays_of_an_unfinished_file(tmp_path):
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(KeyError):
        fail_half_way(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def fail_half_way(path):
    with whole_file(path) as partial:
        partial.write_text("half")
        raise KeyError


def test_paths_that_cannot_be_written_are_refused(tmp_path):
    require_writable(tmp_path / "new")
    with pytest.raises(ValueError, match="is a folder"):
        require_writable(tmp_path)
    with pytest.raises(ValueError, match=r"there is no folder .*absent"):
        require_writable(tmp_path / "absent" / "out")


def test_what_is_no_file_is_not_replaced_by_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="pipe is a device or pipe"):
        require_writable(pipe)
    assert pipe.is_fifo()
