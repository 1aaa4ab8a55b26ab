"""Paths of the caller, and files that are whole or not there."""

import os
from pathlib import Path

import pytest

from tools.bench.files import caller_path, require_apart, require_writable, whole_file


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

    assert list(tmp_path.iterdir()) == []


def test_names_that_no_file_can_have_are_refused(tmp_path):
    require_writable(tmp_path / ("n" * 255))
    with pytest.raises(ValueError, match=r"nnn cannot be written: File name too long"):
        require_writable(tmp_path / ("n" * 256))
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(ValueError, match="circle cannot be written: "):
        require_writable(circle)


def test_a_folder_that_takes_no_files_is_refused():
    # Root may write to any folder on disk, but not here.
    with pytest.raises(ValueError, match=r"/proc/out\.json cannot be written: "):
        require_writable(Path("/proc/out.json"))


def test_a_failed_write_names_the_file(tmp_path):
    with pytest.raises(ValueError, match=r"out cannot be written: No space left on device"):
        fill_the_disk(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def fill_the_disk(path):
    with whole_file(path), Path("/dev/full").open("w") as full:
        full.write("x")


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    link, target = tmp_path / "link", folder / "target"
    link.symlink_to(Path("folder") / "target")
    for content in ("new", "newer"):
        require_writable(link)
        with whole_file(link) as partial:
            partial.write_text(content)
        assert link.is_symlink()
        assert target.read_text() == content
    assert list(folder.iterdir()) == [target]


def test_modes_follow_the_umask(tmp_path):
    path = tmp_path / "out"
    before = os.umask(0o027)
    try:
        with whole_file(path) as partial:
            partial.unlink()
            partial.touch(mode=0o600)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_file_is_not_written_over_itself(tmp_path):
    read, other, link, hard = (tmp_path / name for name in ("read", "other", "link", "hard"))
    read.write_text("x")
    link.symlink_to(read)
    hard.hardlink_to(read)
    for same in (read, tmp_path / "." / "read", link, hard):
        with pytest.raises(ValueError, match="is the file to read"):
            require_apart(same, read)
    require_apart(other, read)
    other.write_text("x")
    require_apart(other, read)


def test_what_is_no_file_is_not_replaced_by_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="pipe is a device or pipe"):
        require_writable(pipe)
    assert pipe.is_fifo()
