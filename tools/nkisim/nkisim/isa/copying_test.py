"""Copies and fills: values, and each documented constraint in a pair."""

from __future__ import annotations

import inspect

import ml_dtypes
import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim.errors import ArgumentError, DtypeError, EngineError, PartitionError, ShapeError, WrongBufferError
from nkisim.isa.testing import Given, Tile, compute, values

RNG = np.random.default_rng(2)
ENGINES = (nisa.engine.vector, nisa.engine.scalar, nisa.engine.gpsimd)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float8_e4m3fn", "int32", "uint8", "float8_e5m2_x4", "tfloat32"]
)
def test_equal_types_are_copied_bit_by_bit(engine, dtype):
    kind = getattr(nl, dtype)
    raw = RNG.integers(0, 256, (40, 6 * kind.itemsize), np.uint8)
    x = raw.view(f"u{kind.itemsize}")
    if kind is nl.tfloat32:
        x &= np.uint32(0xFFFFE000)

    def body(o, a):
        nisa.tensor_copy(o.view(kind), a.view(kind), engine=engine)

    unsigned = {1: nl.uint8, 2: nl.uint16, 4: nl.uint32}[kind.itemsize]
    np.testing.assert_array_equal(values(body, [x], Tile((40, 6), unsigned)), x)


def test_different_types_go_through_fp32():
    x = np.array([[(1 << 24) + 1, -((1 << 24) + 3), 7, (1 << 31) - 1]], np.int32)
    result = values(lambda o, a: nisa.tensor_copy(o, a), [x], Tile((1, 4), nl.uint32))
    np.testing.assert_array_equal(result, [[1 << 24, 0, 7, 1 << 31]])
    result = values(lambda o, a: nisa.tensor_copy(o, a), [x], Tile((1, 4), nl.int16))
    np.testing.assert_array_equal(result, [[32767, -32768, 7, 32767]])
    y = RNG.normal(0, 100, (5, 7)).astype(ml_dtypes.bfloat16)
    result = values(lambda o, a: nisa.tensor_copy(o, a), [y], Tile((5, 7), nl.float8_e4m3fn))
    np.testing.assert_array_equal(
        result.astype(np.float32), y.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    )


def test_tensor_copy_between_start_partitions():
    """Field report h4."""
    x = RNG.normal(size=(32, 5)).astype(np.float32)
    np.testing.assert_array_equal(
        values(lambda o, a: nisa.tensor_copy(o, a), [Given(x, nl.psum)], Tile((32, 5), start=32)), x
    )

    def shifted(o, a):
        tile = nl.ndarray((64, 5), nl.float32)
        nisa.tensor_copy(tile[1:33], a)

    with pytest.raises(PartitionError, match="start partition 1; accepted: 0, 32, 64, 96"):
        values(shifted, [x], Tile((32, 5)))


def test_older_kernels_may_name_the_type_of_dst():
    x = RNG.normal(size=(8, 4)).astype(np.float32)
    with pytest.warns(DeprecationWarning, match=r"nisa.tensor_copy: dtype"):
        result = values(lambda o, a: nisa.tensor_copy(o, a, dtype=nl.bfloat16), [x], Tile((8, 4)))
    np.testing.assert_array_equal(result, x)
    with pytest.warns(DeprecationWarning, match=r"nisa.scalar_tensor_tensor: dtype"):
        result = values(
            lambda o, a: nisa.scalar_tensor_tensor(o, a, nl.add, 1.0, nl.add, a, dtype=nl.bfloat16), [x], Tile((8, 4))
        )
    np.testing.assert_array_equal(result, x + 1 + x)
    assert "dtype" not in inspect.signature(nisa.tensor_copy).parameters
    assert "dtype" not in inspect.signature(nisa.scalar_tensor_tensor).parameters


def test_tensor_copy_constraints():
    x = RNG.normal(size=(8, 4)).astype(np.float32)
    cases = [
        (ShapeError, "dst .* accepted: the same number", Tile((8, 5)), nisa.engine.unknown),
        (ShapeError, "dst has 7 partitions", Tile((7, 4)), nisa.engine.unknown),
        (WrongBufferError, "dst .* gpsimd cannot reach", Tile((8, 4), buffer=nl.psum), nisa.engine.gpsimd),
        (EngineError, "'tensor'; accepted: vector, scalar, gpsimd", Tile((8, 4)), nisa.engine.tensor),
        (DtypeError, "accepted: the same type", Tile((8, 4), nl.float8_e5m2_x4), nisa.engine.unknown),
    ]
    for error, message, tile, engine in cases:
        with pytest.raises(error, match=message):
            values(lambda o, a, e=engine: nisa.tensor_copy(o, a, engine=e), [x], tile)
    with pytest.raises(WrongBufferError, match=r"dst .* lies in shared_hbm"):
        values(lambda o, a: nisa.tensor_copy(nl.ndarray((8, 4), nl.float32, nl.shared_hbm), a), [x], Tile((8, 4)))
    values(lambda o, a: nisa.tensor_copy(o, a, engine=nisa.engine.scalar), [x], Tile((8, 2, 2), buffer=nl.psum))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("float32", 0.1), ("bfloat16", 0.1), ("float16", -3), ("float8_e4m3fn", 1.3), ("float8_e5m2", 0.0),
        ("int8", -7), ("uint8", 255), ("int32", (1 << 31) - 1), ("uint32", (1 << 32) - 1), ("int16", 3.0),
    ],
)  # fmt: skip
def test_memset(dtype, value):
    kind = getattr(nl, dtype)
    result = values(lambda o: nisa.memset(o[:, 1::2], value) and nisa.memset(o[:, 0::2], 0), [], Tile((9, 10), kind))
    assert (result[:, 1::2] == np.array(value).astype(kind.storage)).all()
    assert (result[:, 0::2] == 0).all()


def test_memset_of_packed_types_and_values_that_do_not_fit():
    compute(lambda o: nisa.memset(o, 0), [], [Tile((32, 4), nl.float8_e4m3fn_x4)])
    cases = [
        (nl.float8_e4m3fn_x4, 1, "accepted: 0"),
        (nl.uint8, 256, "accepted: 0 to 255"),
        (nl.int8, -129, "accepted: -128 to 127"),
        (nl.float32, "1", "accepted: a number"),
    ]
    for kind, value, message in cases:
        with pytest.raises(ArgumentError, match=message):
            values(lambda o, v=value: nisa.memset(o, v), [], Tile((32, 4), kind))


@pytest.mark.filterwarnings("error")
def test_memset_beyond_fp32_is_infinite():
    for value in (1e39, 1 << 200):
        assert np.isposinf(values(lambda o, v=value: nisa.memset(o, v), [], Tile((2, 2)))).all()
        assert values(lambda o, v=value: nisa.memset(o, v), [], Tile((2, 2), nl.bool_)).all()


def test_memset_engines():
    for engine in (nisa.engine.vector, nisa.engine.gpsimd):
        values(lambda o, e=engine: nisa.memset(o, 1.0, engine=e), [], Tile((4, 4)))
    with pytest.raises(EngineError, match="'scalar'; accepted: vector, gpsimd"):
        values(lambda o: nisa.memset(o, 1.0, engine=nisa.engine.scalar), [], Tile((4, 4)))
    with pytest.raises(WrongBufferError, match="gpsimd cannot reach"):
        values(lambda o: nisa.memset(o, 1.0, engine=nisa.engine.gpsimd), [], Tile((4, 4), buffer=nl.psum))
    values(lambda o: nisa.memset(o, 1.0), [], Tile((4, 4), buffer=nl.psum))
