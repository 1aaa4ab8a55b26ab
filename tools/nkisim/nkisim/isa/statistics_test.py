"""bn_stats and bn_aggr against numpy's mean and variance in fp64, and their constraints in pairs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim.errors import ShapeError
from nkisim.isa.testing import Given, Tile, values

RNG = np.random.default_rng(29)


@pytest.mark.parametrize("elements", [1, 2, 7, 512])
def test_bn_stats(elements):
    x = RNG.normal(3, 2, (60, elements)).astype(ml_dtypes.bfloat16)
    result = values(lambda o, a: nisa.bn_stats(o, a), [Given(x, nl.psum)], Tile((60, 6)))
    for first in (0, 1):
        part = x[:, first::2].astype(np.float64)
        count, mean, spread = result[:, 3 * first : 3 * first + 3].T
        assert (count == part.shape[1]).all()
        if part.shape[1]:
            np.testing.assert_allclose(mean, part.mean(axis=1), rtol=1e-5)
            np.testing.assert_allclose(spread, part.var(axis=1) * part.shape[1], rtol=1e-5, atol=1e-6)
        else:
            assert (mean == 0).all()
            assert (spread == 0).all()


def test_bn_aggr_joins_parts_of_different_sizes():
    x = RNG.normal(-5, 3, (100, 1100)).astype(np.float32)

    def body(o, a):
        parts = nl.ndarray((100, 3, 6), nl.float32)
        for i, (start, stop) in enumerate(((0, 512), (512, 1023), (1023, 1100))):
            nisa.bn_stats(parts[:, i], a[:, start:stop])
        nisa.bn_aggr(o, parts)

    result = values(body, [x], Tile((100, 2)))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(result[:, 0], wide.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(result[:, 1], wide.var(axis=1), rtol=1e-5)


def test_constraints():
    cases = [
        (nisa.bn_stats, (8, 513), (8, 6), "513 elements per partition; accepted: up to 512"),
        (nisa.bn_stats, (8, 512), (8, 5), "dst .* accepted: 6"),
        (nisa.bn_stats, (8, 512), (7, 6), "dst has 7 partitions"),
        (nisa.bn_aggr, (8, 7), (8, 2), "7 elements per partition; accepted: a multiple of 3"),
        (nisa.bn_aggr, (8, 6), (8, 1), "dst .* accepted: 2"),
    ]
    for call, data, dst, message in cases:
        with pytest.raises(ShapeError, match=message):
            values(lambda o, a, c=call: c(o, a), [np.ones(data, np.float32)], Tile(dst))
    values(lambda o, a: nisa.bn_stats(o, a), [np.ones((8, 2, 256), np.float32)], Tile((8, 2, 3), nl.bfloat16))
    values(lambda o, a: nisa.bn_aggr(o, a), [np.ones((8, 3), np.float32)], Tile((8, 2)))
