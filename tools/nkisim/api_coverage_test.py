"""The package's names, parameters and defaults are the documented ones; the table says what is behind them."""

import re

import api_coverage
import pytest
from api_coverage import Row

from nkisim.errors import NotSimulatedError

ROWS = list(api_coverage.rows())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_signature(row):
    assert row.status != "missing"
    assert row.differences == ()


def test_names():
    assert api_coverage.missing_names() == []


def test_nothing_is_refused_altogether():
    assert [row.name for row in ROWS if row.status == "refused"] == []


def test_the_list_is_whole():
    listed = api_coverage.documented()
    assert {module: len(members["functions"]) for module, members in listed.items()} == {
        "nki": 2,
        "nki.collectives": 11,
        "nki.isa": 52,
        "nki.language": 103,
    }


def _refused(x, y=1):
    """Says no."""
    raise NotSimulatedError(f"no {x}, the documentation is silent")


def _sometimes(x, y: object = None):
    if x:
        _refused(x)
    return y


def test_rows_are_read_off_the_code():
    refused = api_coverage._row("nki.f", _refused, [["x", None], ["y", "1"]])
    assert refused == Row("nki.f", "refused", ("no {x}, the documentation is silent",))
    partly = api_coverage._row("nki.g", _sometimes, [["x", None], ["y", "0"]])
    assert partly.status == "simulated"
    assert partly.refusals == refused.refusals
    assert partly.differences == ("y defaults to None; documented: 0",)
    assert api_coverage._row("nki.h", None, []).status == "missing"
    (difference,) = api_coverage._row("nki.g", _sometimes, [["x", None]]).differences
    assert difference == "parameters ['x', 'y']; documented: ['x']"


def test_the_program(capsys):
    assert api_coverage.main([]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"nki.isa.nc_matmul +simulated", printed)
    assert re.search(rf"{len(ROWS)} documented calls: \d+ simulated, 0 refused, 0 missing", printed)
