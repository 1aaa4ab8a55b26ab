"""The README shows the constants as they are, and each of them says where it comes from."""

import dataclasses
from pathlib import Path

import pytest

from common import hardware
from devicetime import constants
from devicetime.constants import Constants, Mark

README = Path(__file__).with_name("README.md")
FIELDS = dataclasses.fields(Constants)


def test_the_readme_shows_the_table():
    """Written by `python -m devicetime.constants`, which prints it."""
    assert README.read_text().endswith(constants.table() + "\n")


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_provenance(field):
    about = Constants.describe(field.name)
    assert isinstance(about["mark"], Mark)
    assert len(about["source"]) > 10
    assert about["unit"]
    for target in (hardware.TRN2, hardware.TRN3):
        assert getattr(constants.of(target), field.name) >= 0


def test_nothing_is_fitted_to_the_decode_kernels_ablations():
    for field in FIELDS:
        about = field.metadata
        assert not any(word in f"{about['source']} {about['note']}".lower() for word in ("mla", "seed", "402", "521"))
