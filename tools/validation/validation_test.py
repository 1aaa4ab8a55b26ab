"""The report's numbers against the limits that the model is held to."""

import dataclasses
from pathlib import Path

import pytest

from devicetime.constants import TRN2, Constants, Mark
from tools.validation import main, published, seed, tables
from tools.validation.calibration import ESTIMATES, estimate

DISAGREE = ("DMA1.completion", "DMA2.completion")
"""Two measurements of one constant that are 20 % apart."""


@pytest.mark.parametrize("measurement", published.CALIBRATING, ids=lambda m: m.name)
def test_calibrating_measurements_are_met(measurement):
    limit = 0.12 if measurement.name in DISAGREE else 0.05
    assert measurement.read(TRN2) == pytest.approx(measurement.measured, rel=limit)


@pytest.mark.parametrize("measurement", published.CALIBRATING, ids=lambda m: m.name)
def test_a_measurement_left_out_is_predicted_by_the_others(measurement):
    constants, missing = estimate(measurement.name)
    if missing:
        assert measurement.name in ("DMA2.trigger", "DMA2.transfer")
        return
    limit = 0.22 if measurement.name in DISAGREE else 0.1
    assert measurement.read(constants) == pytest.approx(measurement.measured, rel=limit)


@pytest.mark.parametrize("name", ["KO.v3", "KO.v5", "DMA2.end_to_end"])
def test_what_nothing_was_fitted_to(name):
    (measurement,) = (m for m in published.PREDICTED if m.name == name)
    assert measurement.read(TRN2) == pytest.approx(measurement.measured, rel=0.05)


def test_constants_are_what_the_measurements_give():
    """Every calibrated one, and no other; the model's are rounded."""
    estimated, missing = estimate()
    assert not missing
    names = {name for way in ESTIMATES for name in way.constants}
    marked = {field.name for field in dataclasses.fields(Constants) if field.metadata["mark"] is Mark.calibrated}
    assert names == marked - {"dma_trigger_ns"}  # read off a picture as it stands
    for name in names:
        assert getattr(TRN2, name) == pytest.approx(getattr(estimated, name), rel=0.09), name


@pytest.mark.parametrize("comparison", seed.comparisons(), ids=lambda c: c.name)
def test_published_orders(comparison):
    assert comparison.holds, comparison


@pytest.mark.parametrize("chunks", [0, 1, 2])
@pytest.mark.parametrize("group_tokens", [1, 2, 4])
def test_bands_are_slower_whatever_else_holds(chunks, group_tokens):
    """Between what the report says."""
    assert 1.0065 < seed.bands_ratio(chunks, group_tokens) < 1.1035


def test_the_stored_report_is_what_the_code_makes():
    report = [make() for make in tables.SECTIONS.values()]
    assert (Path(__file__).parent / "REPORT.md").read_text() == tables.markdown(report)


def test_production_shape_within_15_percent():
    key_major, head_major, *_ = seed.absolutes()
    for absolute in (key_major, head_major):
        assert absolute.predicted == pytest.approx(absolute.measured, rel=0.15)


def test_bad_output_is_one_line(capsys):
    with pytest.raises(SystemExit) as end:
        main.main(["--markdown", "/nowhere/REPORT.md"])
    assert end.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
