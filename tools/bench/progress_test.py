"""Progress where there is no terminal, or nothing at all."""

import sys

from tools.bench.progress import progress


def announced():
    with progress(2) as announce:
        announce("first")
        announce("second")


def test_a_line_per_step(capsys):
    announced()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "[1/2] first\n[2/2] second\n"


def test_a_closed_stderr_is_left_alone(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    announced()
    assert capsys.readouterr().out == ""
