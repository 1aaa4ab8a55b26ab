"""nc_stream_shuffle against numpy indexing."""

import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim.errors import (
    ArgumentError,
    DtypeError,
    OutOfBoundsError,
    PartitionError,
    ShapeError,
    UninitializedReadError,
)
from nkisim.isa.testing import Given, Tile, compute, values

_RNG = np.random.default_rng(22)


def _random(*shape):
    return _RNG.standard_normal(shape).astype(np.float32)


def test_rotation_in_every_quadrant():
    x = _random(128, 3, 5)
    mask = [(i - 1) % 32 for i in range(32)]
    result = values(lambda o, a: nisa.nc_stream_shuffle(o, a, mask), [x], Tile((128, 15)))
    expected = x.reshape(128, 15)[[32 * (p // 32) + (p - 1) % 32 for p in range(128)]]
    np.testing.assert_array_equal(result, expected)


def test_in_place_with_partitions_kept():
    x = _random(64, 7)
    mask = [i + 1 if i % 2 == 0 else 255 for i in range(32)]

    def body(out, a):
        nisa.nc_stream_shuffle(a, a, mask)
        nisa.tensor_copy(out, a)

    expected = x.copy()
    expected[0::2] = x[1::2]
    np.testing.assert_array_equal(values(body, [x], Tile((64, 7))), expected)


def test_one_partition_to_many_across_quadrants():
    x = _random(1, 9)
    result = values(lambda o, a: nisa.nc_stream_shuffle(o, a, [0] * 32), [Given(x, nl.psum)], Tile((20, 9), start=64))
    np.testing.assert_array_equal(result, np.repeat(x, 20, 0))


def test_kept_partitions_stay_unwritten():
    def body(a):
        out = nl.ndarray((32, 4), nl.float32)
        nisa.nc_stream_shuffle(out, a, [0] * 31 + [255])
        nl.add(out[:31], 0.0)
        with pytest.raises(UninitializedReadError, match=r"element \[31, 0\]"):
            nl.add(out, 0.0)

    compute(body, [_random(32, 4)], [])


def test_runs_on_the_vector_engine():
    (record,) = compute(lambda o, a: nisa.nc_stream_shuffle(o, a, range(32)), [_random(32, 4)], [Tile((32, 4))]).stream
    assert record.engine is nisa.engine.vector


@pytest.mark.parametrize(
    ("x", "out", "mask", "error", "words"),
    [
        (_random(32, 4), Tile((32, 4)), [0] * 31, ArgumentError, "accepted: 32 integers from 0 to 31, or 255"),
        (_random(32, 4), Tile((32, 4)), [32] * 32, ArgumentError, "shuffle_mask"),
        (_random(32, 4), Tile((32, 4)), 7, ArgumentError, "shuffle_mask 7"),
        (_random(32, 4), Tile((32, 4), nl.bfloat16), [0] * 32, DtypeError, "accepted: the same type"),
        (_random(32, 4), Tile((32, 5)), [0] * 32, ShapeError, "the same number of elements per partition"),
        (_random(8, 4), Tile((32, 4)), [8] * 32, OutOfBoundsError, "takes partition 8 of src"),
        (Given(_random(8, 4), start=32), Tile((64, 4)), [0] * 32, PartitionError, "2 quadrants .* 0, 64"),
    ],
)  # fmt: skip
def test_refused(x, out, mask, error, words):
    with pytest.raises(error, match=words):
        compute(lambda o, a: nisa.nc_stream_shuffle(o, a, mask), [x], [out])
