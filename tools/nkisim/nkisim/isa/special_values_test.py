"""NaN, infinities, zeros and numbers beyond fp32 give values, never a warning or an error of numpy's."""

from __future__ import annotations

import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim.isa.testing import Tile, compute
from nkisim.numerics.activations import FUNCTIONS
from nkisim.numerics.alu import OPERATORS

pytestmark = [
    pytest.mark.filterwarnings("error"),
    pytest.mark.filterwarnings("ignore::nkisim.errors.ValueRangeWarning"),
]
SPECIAL = np.array([[np.nan, np.inf, -np.inf, 0.0, -0.0, 1e38, -1e38, 1e-45]], np.float32)
TYPES = (nl.float32, nl.bfloat16, nl.float16, nl.float8_e4m3fn, nl.float8_e5m2, nl.int8)
CMD = nisa.reduce_cmd
ARITHMETIC = [op for op in OPERATORS.values() if op.kind == "arithmetic"]


def run(body, *outputs):
    compute(body, [SPECIAL], outputs)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_activations(function):
    op = getattr(nl, function)

    def body(r, *tiles):
        *outputs, data = tiles
        for output in outputs:
            nisa.activation(output, op, data, 1e39, 2.0, nl.add, r, CMD.reset_reduce)
            nisa.activate2(output, op, data, 1e39, 1.0, nl.multiply, nl.subtract)

    run(body, Tile((1, 1)), *(Tile((1, 8), kind) for kind in TYPES))


@pytest.mark.parametrize("operator", ARITHMETIC)
def test_binary_operators(operator):
    op = getattr(nl, operator.name)

    def body(o, r, a):
        nisa.tensor_tensor(o, a, a, op)
        nisa.tensor_scalar(o, a, op, 2.0, op1=nl.multiply, operand1=3e38)
        nisa.scalar_tensor_tensor(o, a, op, 1e39, nl.subtract, a)
        nisa.tensor_tensor_scan(o, a, a, 0.0, op, nl.add)
        nisa.tensor_scalar_reduce(o, a, op, 1.0, nl.multiply, r)
        if operator.reduces:
            nisa.tensor_reduce(r, op, a, axis=1, negate=True)

    run(body, Tile((1, 8), nl.int16), Tile((1, 1)))


def test_everything_else():
    def body(o, statistics, moments, index, a):
        for op in (nl.abs, nl.square, nl.relu, nl.rsqrt, nl.reciprocal):
            nisa.tensor_scalar(o, a, op, None)
        for scanned in (nl.add, nl.subtract, nl.multiply, nl.maximum, nl.minimum):
            nisa.tensor_scalar_cumulative(o, a, nl.multiply, scanned, 1e30)
        nisa.reciprocal(o, a)
        nisa.exponential(o, a, -3e38)
        nisa.bn_stats(statistics, a)
        nisa.bn_aggr(moments, statistics)
        nisa.memset(statistics, 0)
        nisa.bn_aggr(moments, statistics)
        nisa.max8(o, a)
        nisa.nc_match_replace8(o, a, a, 1e39, index)
        nisa.affine_select(o, [[1, 8]], 0, a, -1e39)

    run(body, Tile((1, 8), nl.bfloat16), Tile((1, 6)), Tile((1, 2)), Tile((1, 8), nl.uint16))
