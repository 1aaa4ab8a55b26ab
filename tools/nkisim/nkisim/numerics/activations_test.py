"""Activation functions against fp64 formulas and torch, at their limits and outside their valid ranges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from nkisim.numerics import activations
from nkisim.numerics.activations import FUNCTIONS, RANGES

DOCUMENTED = (
    "copy", "square", "sigmoid", "relu", "gelu", "gelu_dx", "gelu_apprx_tanh", "gelu_apprx_sigmoid",
    "gelu_apprx_sigmoid_dx", "silu", "silu_dx", "tanh", "softplus", "mish", "erf", "erf_dx", "exp", "log", "sin",
    "arctan", "sqrt", "rsqrt", "reciprocal", "sign", "abs",
)  # fmt: skip
POSITIVE = ("log", "sqrt", "rsqrt")
functional = torch.nn.functional

TORCH = {
    "copy": lambda x: x * 1,
    "square": lambda x: x * x,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_apprx_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_apprx_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "softplus": lambda x: functional.softplus(x, threshold=1000),
    "mish": functional.mish,
    "erf": torch.erf,
    "exp": torch.exp,
    "log": torch.log,
    "sin": torch.sin,
    "arctan": torch.arctan,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "sign": torch.sign,
    "abs": torch.abs,
}
DERIVED_FROM = {"gelu_dx": "gelu", "gelu_apprx_sigmoid_dx": "gelu_apprx_sigmoid", "silu_dx": "silu", "erf_dx": "erf"}


def samples(name):
    rng = np.random.default_rng(7)
    if name in POSITIVE:
        return np.exp2(rng.uniform(-60, 60, 999)).astype(np.float32)
    if name in ("sin", "arctan"):
        return rng.uniform(-RANGES[name].high, RANGES[name].high, 999).astype(np.float32)
    return np.concatenate([rng.normal(0, 3, 999), [0.0, -0.0, 20.0, -20.0, 80.0, -80.0]]).astype(np.float32)


def apply(name, x):
    with np.errstate(all="ignore"):
        return FUNCTIONS[name](np.asarray(x, np.float32))


def test_the_table_is_complete():
    assert set(FUNCTIONS) == set(DOCUMENTED)


@pytest.mark.parametrize("name", sorted(TORCH))
def test_values_against_torch_in_fp64(name):
    x = samples(name)
    wanted = TORCH[name](torch.from_numpy(x.astype(np.float64))).numpy()
    with np.errstate(over="ignore"):
        wanted = wanted.astype(np.float32)
    result = apply(name, x)
    assert result.dtype == np.float32
    # A relative rounding error of x grows by x^2 in the tails of the GELUs.
    rtol, atol = (2e-5, 1e-12) if "gelu" in name else (4e-6, 1e-30)
    np.testing.assert_allclose(result, wanted, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", sorted(DERIVED_FROM))
def test_derivatives_are_those_of_autograd(name):
    x = torch.from_numpy(samples(name).astype(np.float64)).requires_grad_()
    TORCH[DERIVED_FROM[name]](x).sum().backward()
    np.testing.assert_allclose(apply(name, x.detach().numpy()), x.grad.numpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("sigmoid", 0, 1), ("gelu", 0, math.inf), ("gelu_dx", 0, 1), ("gelu_apprx_tanh", 0, math.inf),
        ("gelu_apprx_sigmoid", 0, math.inf), ("gelu_apprx_sigmoid_dx", 0, 1), ("silu", 0, math.inf), ("silu_dx", 0, 1),
        ("tanh", -1, 1), ("softplus", 0, math.inf), ("mish", 0, math.inf), ("erf", -1, 1), ("erf_dx", 0, 0),
        ("exp", 0, math.inf), ("sign", -1, 1), ("relu", 0, math.inf),
    ],
)  # fmt: skip
def test_limits_at_infinity(name, low, high):
    np.testing.assert_array_equal(apply(name, [-math.inf, math.inf]), [low, high])


@pytest.mark.parametrize("name", DOCUMENTED)
def test_nan_stays_nan(name):
    assert np.isnan(apply(name, [math.nan])).all()


def test_sin_goes_on_as_a_cubic():
    assert apply("sin", [9.0])[0] == pytest.approx(27.65, abs=0.005)
    assert apply("sin", [-9.0])[0] == pytest.approx(-27.65, abs=0.005)
    edge = np.float32(math.pi)
    np.testing.assert_allclose(apply("sin", [np.nextafter(edge, np.float32(4)), edge]), [0, 0], atol=1e-6)
    np.testing.assert_allclose(apply("sin", [3.3]), np.sin([3.3]), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("log", [2.0**-64, 2.0**64], [0.0, 2.0**-65, 2.0**65, -1.0]),
        ("sin", [-3.14159, 3.14159], [3.142, -3.142]),
        ("arctan", [-1.57, 1.57], [1.6, -1.6]),
        ("sqrt", [2.0**-116, 2.0**118], [0.0, 2.0**119, -1.0]),
        ("rsqrt", [2.0**-87, 2.0**97], [0.0, 2.0**-88, 2.0**98]),
        ("reciprocal", [2.0**-42, -(2.0**42)], [0.0, 2.0**-43, -(2.0**43)]),
    ],
)
def test_valid_ranges(name, inside, outside):
    valid = RANGES[name]
    assert valid.first_outside(np.array(inside, np.float32)) is None
    for value in outside:
        assert valid.first_outside(np.array([inside[0], value], np.float32)) == np.float32(value)


def test_prelu():
    x = np.array([[-2, 0, 3], [-4, 5, -6]], np.float32)
    slope = np.array([[0.5], [-1]], np.float32)
    np.testing.assert_array_equal(activations.prelu(x, slope), [[-1, 0, 3], [4, 5, 6]])
