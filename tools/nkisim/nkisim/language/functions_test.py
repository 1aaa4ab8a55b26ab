"""Functions of one tile against torch and numpy in double precision: activations, rounding, remainders, angles."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import nki.isa as nisa
import nki.language as nl
from nkisim.errors import ArgumentError, DtypeError, WrongBufferError
from nkisim.isa.testing import Given, Tile, compute, values

_RNG = np.random.default_rng(11)


def _apply(function, *inputs, dtype=nl.float32, shape=None):
    shape = shape or inputs[0].shape

    def body(out, *tiles):
        nisa.tensor_copy(out, function(*tiles))

    return values(body, inputs, Tile(shape, dtype))


def _by_torch(function):
    return lambda x: function(torch.from_numpy(x.astype(np.float64))).numpy()


def _derivative(function):
    def derive(x):
        leaf = torch.from_numpy(x.astype(np.float64)).requires_grad_()
        function(leaf).sum().backward()
        return leaf.grad.numpy()

    return derive


F = torch.nn.functional
EXPECTED: dict[str, Any] = {
    "exp": np.exp, "square": np.square, "tanh": np.tanh, "abs": np.abs, "sign": np.sign, "negative": np.negative,
    "sigmoid": _by_torch(torch.sigmoid), "relu": _by_torch(torch.relu), "gelu": _by_torch(F.gelu),
    "gelu_dx": _derivative(F.gelu), "silu": _by_torch(F.silu), "silu_dx": _derivative(F.silu),
    "gelu_apprx_tanh": _by_torch(lambda x: F.gelu(x, approximate="tanh")),
    "gelu_apprx_sigmoid": _by_torch(lambda x: x * torch.sigmoid(1.702 * x)),
    "gelu_apprx_sigmoid_dx": _derivative(lambda x: x * torch.sigmoid(1.702 * x)),
    "softplus": _by_torch(F.softplus), "mish": _by_torch(F.mish), "erf": _by_torch(torch.erf),
    "erf_dx": _derivative(torch.erf), "sin": np.sin, "cos": np.cos, "arctan": np.arctan,
}  # fmt: skip
POSITIVE: dict[str, Any] = {
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
}


@pytest.mark.parametrize("name", list(EXPECTED))
def test_functions(name):
    x = (_RNG.standard_normal((70, 3, 11)) * 3).astype(np.float32)
    np.testing.assert_allclose(_apply(getattr(nl, name), x), EXPECTED[name](x.astype(np.float64)), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", list(POSITIVE))
def test_functions_of_positive_numbers(name):
    x = np.exp(_RNG.standard_normal((33, 40)) * 3).astype(np.float32)
    np.testing.assert_allclose(_apply(getattr(nl, name), x), POSITIVE[name](x.astype(np.float64)), rtol=1e-5, atol=1e-6)


def test_the_result_has_the_type_of_x_or_the_one_asked_for():
    x = _RNG.standard_normal((40, 8)).astype(ml_dtypes.bfloat16)

    def body(a):
        assert nl.exp(a).dtype == nl.bfloat16
        assert nl.exp(a, dtype=nl.float32).dtype == nl.float32
        assert nl.floor(a).dtype == nl.bfloat16

    compute(body, [x], [])


def test_rsqrt_runs_on_gpsimd_and_so_not_from_psum():
    x = np.ones((8, 8), np.float32)
    (record,) = compute(nl.rsqrt, [x], []).stream
    assert record.engine is nisa.engine.gpsimd
    with pytest.raises(WrongBufferError, match="psum"):
        compute(nl.rsqrt, [Given(x, nl.psum)], [])


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc"])
def test_rounding(name):
    x = np.concatenate([
        _RNG.standard_normal(500) * 10, np.arange(-20, 20), np.arange(-20, 20) + 0.5, [0.49999997, -0.49999997],
        [2.0**23 + 1, -(2.0**24), 3e9, -3e9, 1e30, np.inf, -np.inf, 8388607.5, -8388607.5, np.nan],
    ]).astype(np.float32)  # fmt: skip
    x = np.resize(x, (64, 10))
    np.testing.assert_array_equal(_apply(getattr(nl, name), x), getattr(np, name)(x))


@pytest.mark.parametrize("name", ["mod", "fmod"])
def test_remainders(name):
    x = (_RNG.standard_normal((60, 50)) * 100).astype(np.float32)
    y = (_RNG.standard_normal((60, 50)) * 10).astype(np.float32)
    y[np.abs(y) < 0.1] = 3
    result, exact = _apply(getattr(nl, name), x, y), getattr(np, name)(x.astype(np.float64), y.astype(np.float64))
    distance = np.abs(result - exact)
    np.testing.assert_array_less(np.minimum(distance, np.abs(distance - np.abs(y))), 4e-5)
    assert (np.sign(result) == np.sign(exact)).mean() > 0.999


@pytest.mark.parametrize("name", ["mod", "fmod"])
@pytest.mark.parametrize("divisor", [3, -3, 41, 47, 0.5, -61])
def test_remainders_of_whole_numbers_are_exact(name, divisor):
    x = np.arange(-512, 512, dtype=np.float32).reshape(64, 16)
    expected = getattr(np, name)(x, np.float32(divisor))
    np.testing.assert_array_equal(_apply(lambda t: getattr(nl, name)(t, divisor), x), expected)
    y = np.full_like(x, divisor)
    np.testing.assert_array_equal(_apply(getattr(nl, name), x, y), expected)


@pytest.mark.parametrize("name", ["sin", "cos"])
@pytest.mark.parametrize("limit", [3, 30, 1000, 1e5])
def test_angles_are_reduced_first(name, limit):
    x = _RNG.uniform(-limit, limit, (64, 200)).astype(np.float32)
    x[0, :4] = [0, 9.0, np.pi, -np.pi / 2]
    exact = getattr(np, name)(x.astype(np.float64))
    np.testing.assert_allclose(_apply(getattr(nl, name), x), exact, atol=1e-6)


def test_tangent_and_its_inverse():
    x = _RNG.uniform(-1.4, 1.4, (40, 50)).astype(np.float32)
    np.testing.assert_allclose(_apply(nl.tan, x), np.tan(x.astype(np.float64)), rtol=2e-6, atol=1e-6)
    wide = (np.sinh(_RNG.uniform(-20, 20, (40, 50)))).astype(np.float32)
    wide[0, :3] = [0, 1, -1]
    np.testing.assert_allclose(_apply(nl.arctan, wide), np.arctan(wide.astype(np.float64)), rtol=1e-6)


def test_bits_flipped():
    for dtype in (np.uint8, np.int32, np.int16):
        x = _RNG.integers(0, 100, (20, 30)).astype(dtype)
        np.testing.assert_array_equal(_apply(nl.invert, x, dtype=getattr(nl, np.dtype(dtype).name)), np.invert(x))
    with pytest.raises(DtypeError, match=r"nl.invert: x is float32; accepted: integer types"):
        compute(nl.invert, [np.ones((4, 4), np.float32)], [])


def test_logical_not():
    for dtype in (np.float32, np.int32):
        x = _RNG.integers(0, 2, (20, 30)).astype(dtype)
        np.testing.assert_array_equal(_apply(nl.logical_not, x), np.logical_not(x))


def test_a_number_is_no_tile():
    for function in (nl.exp, nl.floor, nl.sin, nl.negative, nl.reciprocal):
        with pytest.raises(ArgumentError, match=r"x is 2.0; accepted: a tile"):
            compute(lambda a, f=function: f(2.0), [np.ones((4, 4), np.float32)], [])
