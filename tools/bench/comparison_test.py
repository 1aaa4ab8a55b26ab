"""Comparison with earlier results: verdicts, and files that are not what they should be."""

import json
from pathlib import Path

import pytest

from tools.bench import comparison
from tools.bench.tables import show


def document(**changes):
    shapes = [{"name": "a", "predicted": {"ns": 1000.0}}, {"name": "b", "predicted": {"ns": 500}}]
    return {"version": comparison.VERSION, "kernel": "k", "shapes": shapes} | changes


def written(tmp_path, content):
    path = tmp_path / "old.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_times_are_read_by_shape(tmp_path):
    assert comparison.read_times(written(tmp_path, document()), "k") == {"a": 1000.0, "b": 500.0}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not a JSON file; accepted: what --json wrote"),
        ("\x00", "is not a JSON file"),
        ("[" * 100_000, "is not a JSON file"),
        ("[]", "is not a JSON file of a bench"),
        ({"traceEvents": []}, "is not a JSON file of a bench"),
        (document(kernel="other"), "is of kernel 'other'; accepted: 'k'"),
        (document(version=1), "is of version 1; accepted: 2"),
        (document(version="2"), "is of version '2'; accepted: 2"),
        ("1" * 5000, "is not a JSON file"),
        ('{"version": NaN}', "is not a JSON file"),
        (document(version=[2] * 1000), "is of version [2, 2, 2, 2, 2, 2, ...]; accepted: 2"),
        (document(shapes=[{"name": 1, "predicted": {"ns": 1}}]), "has shapes without a name or"),
        (document(shapes=[{"name": "a\nb", "predicted": {"ns": 1}}]), "has shapes without a name or"),
        (document(shapes=[{"name": "a", "predicted": {"ns": 10**400}}]), "has shapes without a name or"),
        (document(shapes={"a": 1}), "has shapes without a name or predicted time"),
        (document(shapes=[{"name": "a"}]), "has shapes without a name or predicted time"),
        (document(shapes=[{"name": "a", "predicted": {"ns": "1"}}]), "has shapes without a name or predicted time"),
        (document(shapes=[{"name": "a", "predicted": {"ns": -1}}]), "has shapes without a name or predicted time"),
        (document(shapes=None), "has shapes without a name or predicted time"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, content, message):
    path = written(tmp_path, content)
    with pytest.raises(ValueError, match="accepted") as caught:
        comparison.read_times(path, "k")
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"absent cannot be read: No such file"):
        comparison.read_times(tmp_path / "absent", "k")
    with pytest.raises(ValueError, match=r"cannot be read: Is a directory"):
        comparison.read_times(tmp_path, "k")


def test_devices_and_large_files_are_refused_unread(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="/dev/zero is a device; accepted: what --json wrote"):
        comparison.read_times(Path("/dev/zero"), "k")
    monkeypatch.setattr(comparison, "LARGEST_FILE_BYTES", 10)
    with pytest.raises(ValueError, match="is larger than 10 bytes"):
        comparison.read_times(written(tmp_path, document()), "k")


def test_slower_begins_beyond_two_percent():
    before = {"a": 1000.0, "b": 1000.0, "c": 1000.0}
    assert comparison.slower(before, {"a": 1020.0, "b": 1020.1, "c": 900.0, "new": 1.0}) == ["b"]
    assert comparison.slower(None, {"a": 1.0}) == []


def test_the_table_has_a_verdict_for_every_shape(capsys):
    before = {"same": 1000.0, "slow": 1000.0, "fast": 1000.0, "gone": 1000.0}
    now = {"same": 1010.0, "slow": 1500.0, "fast": 500.0, "added": 1.0}
    show(comparison.tables(before, now))
    rows = [line.split() for line in capsys.readouterr().out.split("\n\n")[0].splitlines()[2:]]
    assert [(row[0], row[-1]) for row in rows] == [
        ("same", "same"),
        ("slow", "SLOWER"),
        ("fast", "faster"),
        ("added", "new"),
        ("gone", "run"),
    ]
    assert rows[1] == ["slow", "1.0", "1.5", "+50.0%", "SLOWER"]


def test_nothing_is_shown_where_nothing_is_compared():
    assert list(comparison.tables(None, {"a": 1.0})) == []
