"""Reductions, softmax and RMS norm against numpy in double precision."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim import run
from nkisim.errors import ArgumentError
from nkisim.isa.testing import Given, Tile, compute, values

_RNG = np.random.default_rng(5)


def _apply(function, *inputs, shape, dtype=nl.float32):
    def body(out, *tiles):
        made = function(*tiles)
        assert made.shape == shape, made.shape
        nisa.tensor_copy(out, made)

    return values(body, inputs, Tile(shape, dtype))


REDUCE: dict[str, Any] = {"sum": np.sum, "max": np.max, "min": np.min, "mean": np.mean, "prod": np.prod}


@pytest.mark.parametrize("name", list(REDUCE))
@pytest.mark.parametrize(
    ("axis", "kept", "plain"),
    [(3, (60, 3, 4, 1), (60, 3, 4)), (-1, (60, 3, 4, 1), (60, 3, 4)), ((2, 3), (60, 3, 1, 1), (60, 3)),
     ([1, 2, 3], (60, 1, 1, 1), (60, 1))],
)  # fmt: skip
def test_reductions(name, axis, kept, plain):
    x = _RNG.standard_normal((60, 3, 4, 5)).astype(np.float32)
    axes = tuple(axis) if isinstance(axis, list) else axis
    exact = REDUCE[name](x.astype(np.float64), axis=axes, keepdims=True)
    function = getattr(nl, name)
    result = _apply(lambda a: function(a, axis, keepdims=True), x, shape=kept)
    np.testing.assert_allclose(result, exact, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(_apply(lambda a: function(a, axis), x, shape=plain), result.reshape(plain))


def test_bf16_sums_and_means_round_once():
    x = _RNG.standard_normal((100, 300)).astype(ml_dtypes.bfloat16)
    wide = x.astype(np.float64)
    for name, exact in (("sum", wide.sum(1, keepdims=True)), ("mean", wide.mean(1, keepdims=True))):
        result = _apply(lambda a, n=name: getattr(nl, n)(a, 1, keepdims=True), x, shape=(100, 1), dtype=nl.bfloat16)
        np.testing.assert_allclose(result.astype(np.float64), exact, rtol=2**-8, atol=1e-6)
        wanted = _apply(lambda a, n=name: getattr(nl, n)(a, 1, nl.float32), x, shape=(100, 1))
        np.testing.assert_allclose(wanted, exact, rtol=1e-4, atol=1e-5)


def test_all():
    x = _RNG.integers(0, 6, (64, 7)).astype(np.float32)
    np.testing.assert_array_equal(_apply(lambda a: nl.all(a, 1), x, shape=(64, 1))[:, 0], x.all(1))


@pytest.mark.parametrize("axis", [1, (1, 2), 2])
def test_variance_keeps_its_dimensions(axis):
    x = (_RNG.standard_normal((50, 6, 30)) + 5).astype(np.float32)
    x = x.reshape(50, 180) if axis == 1 else x
    exact = x.astype(np.float64).var(axis, keepdims=True)
    np.testing.assert_allclose(_apply(lambda a: nl.var(a, axis), x, shape=exact.shape), exact, rtol=1e-5)


@pytest.mark.parametrize("axis", [-1, 2, (1, 2)])
def test_softmax(axis):
    x = (_RNG.standard_normal((100, 5, 17)) * 30).astype(np.float32)
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(axis, keepdims=True))
    exact = powers / powers.sum(axis, keepdims=True)
    for place in (nl.sbuf, nl.psum):
        result = _apply(lambda a: nl.softmax(a, axis), Given(x, place), shape=x.shape)
        np.testing.assert_allclose(result, exact, rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize("weights", [(90, 40), (1, 40)])
def test_rms_norm(weights):
    x = _RNG.standard_normal((90, 40)).astype(np.float32)
    w = _RNG.standard_normal(weights).astype(np.float32)
    wide = x.astype(np.float64)
    exact = wide / np.sqrt((wide**2).sum(1, keepdims=True) / 40 + 1e-3) * w
    result = _apply(lambda a, b: nl.rms_norm(a, b, axis=1, n=40, epsilon=1e-3), x, w, shape=(90, 40))
    np.testing.assert_allclose(result, exact, rtol=1e-5, atol=1e-6)


def test_rms_norm_in_bf16():
    x = _RNG.standard_normal((90, 40)).astype(ml_dtypes.bfloat16)

    def body(a):
        assert nl.rms_norm(a, a, 1, 40).dtype == nl.bfloat16
        assert nl.rms_norm(a, a, 1, 40, dtype=nl.float32, compute_dtype=nl.bfloat16).dtype == nl.float32

    compute(body, [x], [])


@pytest.mark.parametrize("axis", [0, (0, 1), 1, (1, 3), 4, -4, (), "free", None])
def test_axes_are_the_last_ones(axis):
    def kernel():
        nl.sum(nl.ones((8, 2, 3, 4), nl.float32), axis)

    with pytest.raises(ArgumentError, match=r"nl.sum: axis .*; accepted:"):
        run(kernel)
