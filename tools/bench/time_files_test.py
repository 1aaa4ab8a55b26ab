"""The files that benches write of predicted times: what is refused before work, what is written."""

import json

import pytest

from tools.bench import time_files
from tools.bench.command_line import OneLineParser
from tools.timeline_report import plots, synthetic
from tools.timeline_report.report import Report
from tools.timeline_report.roofline import point


def options(*arguments):
    parser = OneLineParser("bench", "", "")
    parser.add_argument("--json")
    time_files.add_options(parser)
    return parser.parse_args(arguments)


ONE, TWO = [("trn2", 1)], [("trn2", 1), ("trn2", 1)]


@pytest.mark.parametrize(
    ("arguments", "machines", "message"),
    [
        (["--trace", "t"], TWO, "--trace shows one shape, and there are 2; accepted: one, chosen with --case"),
        (["--report", "t"], TWO, "--report shows one shape"),
        (["--occupancy", "t"], TWO, "--occupancy shows one shape"),
        (["--roofline", "t"], [("trn2", 1), ("trn2", 2)], "--roofline needs one target and one number of cores"),
        (["--trace", "t", "--report", "./t"], ONE, "--trace and --report both name"),
        (["--json", "t", "--roofline", "t"], TWO, "--json and --roofline both name"),
        (["--report", "absent/t"], ONE, "there is no folder"),
        (["--json", "absent/t"], TWO, "there is no folder"),
    ],
)
def test_refusals(arguments, machines, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"accepted|folder") as caught:
        time_files.from_options(options(*arguments), machines)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_case_is_chosen_by_name():
    named = [type("Case", (), {"name": name})() for name in ("a", "b")]
    assert time_files.chosen_cases(options("--case", "b"), named) == [named[1]]
    assert time_files.chosen_cases(options(), named) == named
    with pytest.raises(ValueError, match="--case is 'c'; accepted: a, b"):
        time_files.chosen_cases(options("--case", "c"), named)


def report():
    return Report("a kernel", "its sizes", synthetic.timeline(200))


def test_every_file_is_what_it_should_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = options("--trace", "t.json", "--report", "r.html", "--occupancy", "o.png", "--roofline", "l.png")
    made = report()
    time_files.from_options(asked, ONE).write([made], [point("a kernel", made.timeline)])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["l.png", "o.png", "r.html", "t.json"]
    assert json.loads((tmp_path / "t.json").read_text())["otherData"]["title"] == "a kernel"
    assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")
    for name in ("o.png", "l.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("option", ["trace", "report", "occupancy", "roofline"])
def test_a_file_that_fails_half_way_leaves_the_old_one(option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "out"
    path.write_text("good")
    files = time_files.from_options(options(f"--{option}", "out"), ONE)
    broken = report()
    monkeypatch.setattr(type(broken.timeline), "record_of", lambda *_: 1 / 0)
    monkeypatch.setattr(plots, "_png", lambda *_: 1 / 0)
    monkeypatch.setattr(time_files.report, "_array", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        files.write([broken], [point("a kernel", broken.timeline)])
    assert path.read_text() == "good"
    assert list(tmp_path.iterdir()) == [path]
