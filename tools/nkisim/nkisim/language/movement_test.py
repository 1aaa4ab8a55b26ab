"""Loads, stores, transposes, products, gathers and tensors filled with numbers, against numpy."""

import ml_dtypes
import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim import Options, run
from nkisim.errors import (
    ArgumentError,
    NotSimulatedError,
    OutOfBoundsError,
    ShapeError,
    UninitializedReadError,
    WrongBufferError,
)
from nkisim.isa.testing import Given, Tile, compute, values

BF16 = ml_dtypes.bfloat16
_RNG = np.random.default_rng(9)


def _random(*shape, dtype=np.float32):
    return (_RNG.standard_normal(shape) * 4).astype(dtype)


def _stored(function, *arrays, **options):
    """What a kernel returns that stores the tile `function` makes of the arrays in HBM."""

    def kernel(*given):
        tile = function(*given)
        if tile.buffer == nl.psum:
            tile = nl.copy(tile)
        out = nl.ndarray(tile.shape, tile.dtype, nl.shared_hbm)
        nl.store(out, tile)
        return out

    return run(kernel, *arrays, **options).outputs


def test_load_and_store_cast_by_dma():
    x = _random(100, 3, 7)
    np.testing.assert_array_equal(_stored(nl.load, x), x)
    np.testing.assert_array_equal(
        _stored(lambda a: nl.load(a[10:30, :, ::2], nl.bfloat16), x), x[10:30, :, ::2].astype(BF16)
    )


def test_load_transposed():
    x = _random(200, 60)
    np.testing.assert_array_equal(_stored(nl.load_transpose2d, x), x.T)
    with pytest.raises(ShapeError, match=r"src \[2, 3, 4\]; accepted: two dimensions"):
        _stored(nl.load_transpose2d, _random(2, 3, 4))


def test_copy_and_views():
    x = _random(30, 8)
    np.testing.assert_array_equal(
        _stored(lambda a: nl.copy(nl.load(a)[:, 2:5], nl.bfloat16), x), x[:, 2:5].astype(BF16)
    )
    assert values(lambda out, a: nisa.tensor_copy(out, nl.expand_dims(a, 1)), [x], Tile((30, 1, 8))).shape == (30, 1, 8)


@pytest.mark.parametrize("shape", [(1, 20), (100, 1), (1, 1)])
def test_broadcast_to(shape):
    x = _random(*shape)
    np.testing.assert_array_equal(
        _stored(lambda a: nl.broadcast_to(nl.load(a), (100, 20)), x), np.broadcast_to(x, (100, 20))
    )


def test_broadcast_to_the_same_shape_is_the_tile_itself():
    def kernel():
        tile = nl.ones((4, 4), nl.float32)
        assert nl.broadcast_to(tile, (4, 4)) is tile
        assert nl.broadcast_to(tile, (4, 4), nl.bfloat16).dtype == nl.bfloat16
        with pytest.raises(ShapeError, match=r"\[4, 4\] to \[4, 8\]"):
            nl.broadcast_to(tile, (4, 8))

    run(kernel)


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_transpose(dtype):
    x = _random(70, 33, dtype=dtype)
    np.testing.assert_array_equal(_stored(lambda a: nl.transpose(nl.load(a)), x), x.T)
    in_psum = values(lambda out, a: nisa.tensor_copy(out, nl.transpose(a)), [Given(x, nl.psum)], Tile((33, 70)))
    np.testing.assert_array_equal(in_psum, x.T.astype(np.float32))


@pytest.mark.parametrize("transposed", [False, True])
def test_matmul(transposed):
    x, y = _random(48, 100, dtype=BF16), _random(100, 300, dtype=BF16)
    exact = x.astype(np.float64) @ y.astype(np.float64)
    given = np.ascontiguousarray(x.T) if transposed else x
    result = _stored(lambda a, b: nl.matmul(nl.load(a), nl.load(b), transpose_x=transposed), given, y)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [((64, 64), (64, 513), r"y \[64, 513\]; accepted: two dimensions, at most 128 x 512"),
     ((64, 200), (64, 8), r"x \[64, 200\]"), ((64, 60), (64, 8), "contracts 60 elements")],
)  # fmt: skip
def test_matmul_sizes(x, y, words):
    with pytest.raises(ShapeError, match=words):
        compute(nl.matmul, [_random(*x), _random(*y)], [])


def test_gather_flattened():
    data = _random(60, 4, 25)
    indices = _RNG.integers(0, 100, (60, 7)).astype(np.int32)
    result = _stored(lambda a, i: nl.gather_flattened(nl.load(a), nl.load(i)), data, indices)
    np.testing.assert_array_equal(result, np.take_along_axis(data.reshape(60, 100), indices, 1))
    indices[3, 2] = 100
    with pytest.raises(OutOfBoundsError, match="100 at partition 3, position 2; accepted: below 100"):
        _stored(lambda a, i: nl.gather_flattened(nl.load(a), nl.load(i)), data, indices)
    with pytest.raises(NotSimulatedError, match="axis 1"):
        _stored(lambda a, i: nl.gather_flattened(nl.load(a), nl.load(i), axis=1), data, indices)


@pytest.mark.parametrize("y_shape", [(80, 9), (80, 1), (1, 9)])
def test_where(y_shape):
    condition = _RNG.integers(0, 2, (80, 9)).astype(np.float32)
    x, y = _random(80, 9), _random(*y_shape)
    result = _stored(lambda c, a, b: nl.where(nl.load(c), nl.load(a), nl.load(b)), condition, x, y)
    np.testing.assert_array_equal(result, np.where(condition != 0, x, y))


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum, nl.hbm, nl.shared_hbm])
@pytest.mark.parametrize("dtype", [nl.float32, nl.bfloat16, nl.int32, nl.uint8])
def test_filled_tensors(buffer, dtype):
    def kernel():
        made = [
            nl.full((40, 7, 3), 5, dtype, buffer, "five"), nl.zeros((40, 7, 3), dtype, buffer),
            nl.ones((40, 7, 3), dtype, buffer=buffer),
        ]  # fmt: skip
        made.append(nl.zeros_like(made[0]))
        assert [t.buffer for t in made] == [buffer] * 3 + [nl.sbuf]
        assert made[0].name == "five"
        assert nl.empty_like(made[0]).buffer == buffer
        outs = []
        for tile in made:
            if tile.buffer == nl.psum:
                tile = nl.copy(tile)
            outs.append(nl.ndarray(tile.shape, dtype, nl.shared_hbm))
            nisa.dma_copy(outs[-1], tile)
        return outs

    for array, value in zip(run(kernel).outputs, (5, 0, 1, 0), strict=True):
        np.testing.assert_array_equal(array.astype(np.float32), np.full((40, 7, 3), value))


def test_large_and_flat_hbm_tensors_are_filled():
    def kernel():
        return nl.full((300, 1000), 2.5, nl.float32, nl.shared_hbm), nl.ones((77,), nl.float32, nl.shared_hbm)

    large, flat = run(kernel).outputs
    assert (large == 2.5).all()
    np.testing.assert_array_equal(flat, np.ones(77))


def test_empty_like_is_unwritten():
    with pytest.raises(UninitializedReadError, match="nothing has written it"):
        _stored(lambda a: nl.copy(nl.empty_like(nl.load(a))), _random(4, 4))


def test_fill_values_suit_the_type():
    with pytest.raises(ArgumentError, match=r"fill_value 2.5 for int32; accepted: a whole number"):
        run(lambda: nl.full((4, 4), 2.5, nl.int32))
    with pytest.raises(ArgumentError, match="fill_value 'x'; accepted: a number"):
        run(lambda: nl.full((4, 4), "x", nl.float32))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda h, t: nl.load(t), r"nl.load: src .* lies in sbuf; accepted: private_hbm or shared_hbm"),
        (lambda h, t: nl.store(t, t), r"nl.store: dst .* lies in sbuf"),
        (lambda h, t: nl.store(h, nl.transpose(t)), r"nl.store: value .* psum"),
        (lambda h, t: nl.copy(h), r"nl.copy: x .* lies in shared_hbm"),
    ],
)
def test_memories(function, words):
    def kernel(h):
        function(h, nl.load(h))

    with pytest.raises(WrongBufferError, match=words):
        run(kernel, _random(8, 8))


def test_shared_constant(tmp_path):
    data = _random(300, 5).astype(BF16)
    np.testing.assert_array_equal(_stored(lambda: nl.load(nl.shared_constant(data)[:100])), data[:100])
    np.save(tmp_path / "c.npy", np.arange(12, dtype=np.int32).reshape(3, 4))
    loaded = _stored(lambda: nl.load(nl.shared_constant(tmp_path / "c.npy")))
    np.testing.assert_array_equal(loaded, np.arange(12).reshape(3, 4))
    assert run(lambda: nl.load(nl.shared_constant(data)[:9]), options=Options(numerics=False)).cores[0].stream


@pytest.mark.parametrize(
    ("constant", "words"),
    [(np.zeros(3), "constant is float64; accepted: float32"), ("/nowhere.npy", "cannot read '/nowhere.npy'"),
     ([1, 2], "constant is list; accepted: a numpy array"), (np.zeros((), np.float32), "shape"),
     (np.zeros((2, 2), bool), "constant is bool")],
)  # fmt: skip
def test_constants_refused(constant, words):
    with pytest.raises(Exception, match=words) as caught:
        run(lambda: nl.shared_constant(constant))
    assert type(caught.value).__module__ == "nkisim.errors"


@pytest.mark.parametrize("dtype", [nl.uint8, nl.float32, nl.bfloat16])
def test_identity(dtype):
    result = _stored(lambda: nl.shared_identity_matrix(100, dtype))
    np.testing.assert_array_equal(result.astype(np.float32), np.eye(100))


def test_identity_goes_where_asked_and_is_one_constant():
    def kernel():
        tile = nl.ndarray((64, 64), nl.float32)
        assert nl.shared_identity_matrix(64, dst=tile) is tile
        other = nl.shared_identity_matrix(64, nl.float32)
        assert nl.equal(tile, other)
        with pytest.raises(ShapeError, match="n 129; accepted: 1 to 128"):
            nl.shared_identity_matrix(129)
        with pytest.raises(ShapeError, match=r"dst \[64, 64\]; accepted: \(32, 32\)"):
            nl.shared_identity_matrix(32, dst=tile)

    stream = run(kernel).cores[0].stream
    first, second = (record.reads[0].allocation for record in stream[:2])
    assert first is second
