"""Stored times: what needs a look, and the command that replaces them."""

import json

import pytest

from tools.bench import stored
from tools.bench.stored import FILE_NAME

NOW = {"suite": {"a": 1000.0, "b": 2000.04}}


def path_of(tmp_path, times=NOW):
    path = tmp_path / FILE_NAME
    stored.write(path, "k", times)
    return path


def test_the_same_times_are_no_problem(tmp_path):
    assert stored.problems(path_of(tmp_path), "k", NOW) == []


def test_a_time_more_than_two_percent_worse_is_one(tmp_path):
    path = path_of(tmp_path)
    assert stored.problems(path, "k", {"suite": {"a": 1019.0, "b": 2000.0}}) == []
    (problem,) = stored.problems(path, "k", {"suite": {"a": 1030.0, "b": 1000.0}})
    assert problem == "suite/a: 1,000.0 ns stored, 1,030.0 ns now, +3.0%"


def test_shapes_that_come_and_go_are_problems(tmp_path):
    path = path_of(tmp_path, {"suite": {"a": 1.0}, "other": {"x": 1.0}})
    assert stored.problems(path, "k", {"suite": {"b": 1.0}}) == [
        "suite/b: not stored",
        "suite/a: stored, and no shape any more",
        "other: stored, and no suite any more",
    ]


@pytest.mark.parametrize("content", ["", "[]", '{"version": 1, "kernel": "k"}', '{"version": 2, "kernel": "other"}'])
def test_another_file_is_refused(tmp_path, content):
    path = tmp_path / FILE_NAME
    path.write_text(content)
    with pytest.raises(ValueError, match="accepted"):
        stored.problems(path, "k", NOW)


def test_update_replaces_the_file_in_the_source_tree(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "kernels" / "k" / "bench"
    folder.mkdir(parents=True)
    monkeypatch.setenv("BUILD_WORKSPACE_DIRECTORY", str(tmp_path))
    assert stored.update("k", lambda: NOW) == 0
    path = folder / FILE_NAME
    assert json.loads(path.read_text())["predicted_ns"] == {"suite": {"a": 1000.0, "b": 2000.0}}
    assert stored.problems(path, "k", NOW) == []
    assert "2 shapes" in capsys.readouterr().out
    assert stored.update("k", lambda: {"suite": {"a": 2000.0, "b": 2000.0}}) == 0
    assert "suite/a: 1,000.0 ns stored, 2,000.0 ns now, +100.0%" in capsys.readouterr().out


def test_update_changes_nothing_without_a_source_tree(monkeypatch, capsys):
    monkeypatch.delenv("BUILD_WORKSPACE_DIRECTORY", raising=False)
    assert stored.update("k", lambda: NOW) == 2
    assert capsys.readouterr().err.count("\n") == 1
