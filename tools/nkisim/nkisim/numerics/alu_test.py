"""The operators against the documented table, and against Python on single values."""

from __future__ import annotations

import math
import operator as py

import numpy as np
import pytest

from nkisim.numerics import alu
from nkisim.numerics.alu import OPERATORS

BITVEC = {
    "invert": False, "bitwise_and": True, "bitwise_or": True, "bitwise_xor": True,
    "left_shift": False, "right_shift": False,
}  # fmt: skip
ARITHMETIC = {
    "add": True, "subtract": True, "multiply": True, "maximum": True, "minimum": True, "equal": False,
    "not_equal": False, "greater_equal": False, "greater": False, "less_equal": False, "less": False,
    "logical_and": True, "logical_or": True, "logical_xor": True, "power": False, "abs_max": False, "abs_min": False,
}  # fmt: skip
UNARY = ("abs", "square", "relu", "rsqrt", "reciprocal")

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, -3.0, 1e30, -1e30, math.inf, -math.inf]


def test_the_table_is_complete():
    assert set(OPERATORS) == {*BITVEC, *ARITHMETIC, *UNARY}
    assert {n for n, o in OPERATORS.items() if o.is_bitvec} == set(BITVEC)
    assert {n for n, o in OPERATORS.items() if o.is_unary} == {*UNARY, "invert"}
    assert {n: o.reduces for n, o in OPERATORS.items() if n not in UNARY} == {**BITVEC, **ARITHMETIC}
    assert {n for n, o in OPERATORS.items() if o.needs_trn3} == {"abs_max", "abs_min"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add", py.add),
        ("subtract", py.sub),
        ("maximum", max),
        ("minimum", min),
        ("equal", lambda x, y: float(x == y)),
        ("not_equal", lambda x, y: float(x != y)),
        ("greater", lambda x, y: float(x > y)),
        ("greater_equal", lambda x, y: float(x >= y)),
        ("less", lambda x, y: float(x < y)),
        ("less_equal", lambda x, y: float(x <= y)),
        ("logical_and", lambda x, y: float(bool(x) and bool(y))),
        ("logical_or", lambda x, y: float(bool(x) or bool(y))),
        ("logical_xor", lambda x, y: float(bool(x) != bool(y))),
        ("abs_max", lambda x, y: x if abs(x) > abs(y) else y),
        ("abs_min", lambda x, y: x if abs(x) < abs(y) else y),
    ],
)
def test_binary_operators_on_pairs(name, expected):
    pairs = [(x, y) for x in SPECIAL for y in SPECIAL]
    x, y = (np.array(side, np.float32) for side in zip(*pairs, strict=True))
    result = alu.apply(OPERATORS[name], x, y)
    assert result.dtype == np.float32
    wanted = np.array([expected(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)], np.float32)
    np.testing.assert_array_equal(result, wanted)


def test_ties_of_magnitude_give_the_second():
    for name in ("abs_max", "abs_min"):
        assert alu.apply(OPERATORS[name], np.float32(1), np.float32(-1)) == -1
        assert alu.apply(OPERATORS[name], np.float32(-1), np.float32(1)) == 1


def test_power_and_unary_operators():
    x = np.array([0.25, 1.0, 2.0, 9.0], np.float32)
    np.testing.assert_allclose(alu.apply(OPERATORS["power"], x, np.float32(-0.5)), [v**-0.5 for v in x], rtol=1e-6)
    np.testing.assert_allclose(alu.apply(OPERATORS["rsqrt"], x), [1 / math.sqrt(v) for v in x], rtol=1e-6)
    np.testing.assert_array_equal(
        alu.apply(OPERATORS["reciprocal"], -x), [-4, -1, -0.5, np.float32(-1) / np.float32(9)]
    )
    np.testing.assert_array_equal(alu.apply(OPERATORS["abs"], -x), x)
    np.testing.assert_array_equal(alu.apply(OPERATORS["square"], -x), [0.0625, 1, 4, 81])
    np.testing.assert_array_equal(alu.apply(OPERATORS["relu"], np.array([-1, 0, 2], np.float32)), [0, 0, 2])


def test_shifts_are_logical_and_empty_the_word():
    x = np.array([0x80000001, 0xFFFFFFFF, 5], np.uint32)
    for count in (0, 1, 31, 32, 40):
        amount = np.uint32(count)
        mask = 0xFFFFFFFF
        np.testing.assert_array_equal(
            alu.apply(OPERATORS["left_shift"], x, amount), [(int(v) << count) & mask for v in x]
        )
        np.testing.assert_array_equal(alu.apply(OPERATORS["right_shift"], x, amount), [int(v) >> count for v in x])


@pytest.mark.parametrize("name", [n for n, reduces in ARITHMETIC.items() if reduces] + ["abs_max", "abs_min"])
def test_rows_reduce_as_a_chain_of_pairs(name):
    rng = np.random.default_rng(3)
    rows = rng.integers(-3, 4, (5, 7)).astype(np.float32)
    chain = rows[:, 0]
    for column in rows.T[1:]:
        chain = alu.apply(OPERATORS[name], chain, column)
    if name.startswith("logical"):
        chain = chain.astype(bool).astype(np.float32)
    np.testing.assert_array_equal(alu.reduce_rows(OPERATORS[name], rows), chain)


def test_bits_reduce_in_their_own_width():
    rows = np.array([[0xF0, 0x3C, 0x18]], np.uint8)
    for name, wanted in (("bitwise_and", 0x10), ("bitwise_or", 0xFC), ("bitwise_xor", 0xD4)):
        result = alu.reduce_rows(OPERATORS[name], rows)
        assert result.dtype == np.uint8
        assert result[0] == wanted
