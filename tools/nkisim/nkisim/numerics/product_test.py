import numpy as np
import pytest

from nkisim.numerics.product import accumulate


@pytest.mark.parametrize("columns", [1, 2, 3, 8, 16, 17, 64, 512])
def test_a_product_is_summed_before_it_is_added(columns):
    """A small target under a product that cancels to it: going on from the target would lose its bits on the way."""
    random = np.random.default_rng(columns)
    stationary = random.standard_normal((128, 64), np.float32)
    moving = random.standard_normal((128, columns), np.float32)
    stationary[64:], moving[64:] = stationary[:64], -moving[:64]
    stationary *= np.float32(2.0**20)
    target = random.standard_normal((64, columns), np.float32)
    alone, onto = np.empty_like(target), target.copy()
    accumulate(stationary, moving, alone, onto=False)
    accumulate(stationary, moving, onto, onto=True)
    np.testing.assert_array_equal(onto, target + alone)
