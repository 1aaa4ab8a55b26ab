"""nl.rand, random_seed and dropout: reproducible, uniform, within bounds."""

import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim import run
from nkisim.errors import ArgumentError


def _drawn(*calls):
    """Arrays that the calls made, stored in HBM."""

    def kernel():
        outs = []
        for call in calls:
            tile = call()
            if tile is None:
                continue
            if tile.buffer == nl.shared_hbm:
                outs.append(tile)
                continue
            tile = nl.copy(tile)
            outs.append(nl.ndarray(tile.shape, tile.dtype, nl.shared_hbm))
            nl.store(outs[-1], tile)
        return outs

    return run(kernel).outputs


def _seed(number):
    return lambda: nl.random_seed(nl.full((1, 1), number, nl.int32))


def _rand(**options):
    return lambda: nl.rand((128, 300), nl.float32, **options)


def test_the_same_seed_gives_the_same_numbers():
    a, b, c, d = _drawn(_seed(42), _rand(), _rand(), _seed(42), _rand(), _seed(43), _rand())
    np.testing.assert_array_equal(a, c)
    assert (a != b).mean() > 0.99
    assert (a != d).mean() > 0.99


def test_uniform_from_0_to_below_1():
    (a,) = _drawn(_rand())
    assert a.min() >= 0
    assert a.max() < 1
    assert abs(a.mean() - 0.5) < 0.005
    assert abs(a.var() - 1 / 12) < 0.002
    counts = np.histogram(a, 16, (0, 1))[0]
    assert (np.abs(counts - a.size / 16) < 5 * np.sqrt(a.size / 16)).all()
    assert abs(np.corrcoef(a[0], a[1])[0, 1]) < 0.25
    assert abs(np.corrcoef(a[:, :-1].ravel(), a[:, 1:].ravel())[0, 1]) < 0.03


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum, nl.shared_hbm])
def test_every_memory(buffer):
    (a,) = _drawn(lambda: nl.rand((60, 50), nl.float32, buffer))
    assert len(np.unique(a)) > 2900


def test_dropout():
    zeros = []
    for rate in (0.0, 0.25, 1.0):
        (a,) = _drawn(lambda rate=rate: nl.dropout(nl.full((128, 400), 3.0, nl.float32), rate))
        assert set(np.unique(a)) <= {0.0, 3.0}
        zeros.append((a == 0).mean())
    assert zeros[0] == 0
    assert abs(zeros[1] - 0.25) < 0.01
    assert zeros[2] == 1


def test_dropout_with_a_rate_per_partition():
    def dropped():
        rate = nl.zeros((128, 1), nl.float32)
        half = nl.full((64, 1), 1.0, nl.float32)
        nisa.tensor_copy(rate[64:], half)
        return nl.dropout(nl.ones((128, 20), nl.float32), rate)

    (a,) = _drawn(dropped)
    assert (a[:64] == 1).all()
    assert (a[64:] == 0).all()


def test_rates_lie_between_0_and_1():
    with pytest.raises(ArgumentError, match=r"prob 1.5; accepted: 0 to 1"):
        _drawn(lambda: nl.dropout(nl.ones((4, 4), nl.float32), 1.5))
