"""The measures of error, by hand."""

import math

import pytest
import torch

from models.wan22.compare import Error, compare, table


def test_equal():
    x = torch.randn(3, 5)
    error = compare(x, x)
    assert error.cosine == pytest.approx(1)
    assert (error.relative_rms, error.max_ulps) == (0, 0)
    assert compare(-x, x).cosine == pytest.approx(-1)


def test_by_hand():
    error = compare(torch.tensor([3.0, 4.0]), torch.tensor([4.0, 3.0]))
    assert error.cosine == pytest.approx(24 / 25)
    assert error.relative_rms == pytest.approx(math.sqrt(2) / 5)
    # An ulp of 4 is 2**-5; 3 lies below the RMS, sqrt(12.5) = 3.54, whose ulp is 2**-6.
    assert error.max_ulps == pytest.approx(2**6)


def test_one_ulp():
    expected = torch.full((64,), 1.5)
    found = expected.clone()
    found[7] += 2.0**-7
    assert compare(found, expected).max_ulps == pytest.approx(1)
    expected[9] = 0
    found[9] = 2.0**-7
    assert compare(found, expected).max_ulps == pytest.approx(1)


def test_zeros():
    zeros, ones = torch.zeros(4), torch.ones(4)
    assert compare(zeros, zeros) == Error(1.0, 0.0, 0.0)
    assert compare(ones, zeros) == Error(0.0, math.inf, math.inf)
    assert compare(zeros, ones).cosine == 0


def test_refused():
    with pytest.raises(ValueError, match=r"found is \[2\]; accepted: \[3\]"):
        compare(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ValueError, match="NaN or infinite"):
        compare(torch.tensor([math.nan]), torch.zeros(1))


def test_table():
    error = Error(0.9990123, 0.0123, 7.25)
    lines = table({"bf16": {"a": error}, "ROW_MX": {"a": error}}).splitlines()
    assert lines[2] == "| `a` | 0.9990123 | 1.23e-02 | 7.2 | 0.9990123 | 1.23e-02 | 7.2 |"
    assert {line.count("|") for line in lines} == {8}
