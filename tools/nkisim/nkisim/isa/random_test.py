"""Random numbers: reproducible from seed and state, uniform, and refused where the documentation says so."""

import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim.errors import (
    ArgumentError,
    DtypeError,
    EngineError,
    PartitionError,
    ShapeError,
    TargetError,
    UninitializedReadError,
    WrongBufferError,
)
from nkisim.isa.testing import Given, Tile, compute, values
from nkisim.numerics import xorwow

_RNG = np.random.default_rng(31)
GPSIMD, VECTOR = nisa.engine.gpsimd, nisa.engine.vector


def _xorwow(state, count):
    """Marsaglia's generator as his paper has it, in Python integers."""
    x, y, z, w, v, d = (int(s) for s in state)
    out = []
    for _ in range(count):
        t = x ^ (x >> 2)
        x, y, z, w = y, z, w, v
        v = (v ^ (v << 4) ^ t ^ (t << 1)) & 0xFFFFFFFF
        d = (d + 362437) & 0xFFFFFFFF
        out.append((d + v) & 0xFFFFFFFF)
    return out, [x, y, z, w, v, d]


def test_the_generator_is_xorwow():
    states = _RNG.integers(0, 2**32, (5, 3, 6), dtype=np.uint32)
    first = states.copy()
    drawn = xorwow.draw(states, 20)
    for lane in range(5):
        for stream in range(3):
            numbers, last = _xorwow(first[lane, stream], 20)
            np.testing.assert_array_equal(drawn[lane, :, stream], numbers)
            np.testing.assert_array_equal(states[lane, stream], last)


def test_lanes_start_apart():
    assert len(np.unique(xorwow.spread(0, (128, 4)))) == 128 * 4 * 6
    assert (xorwow.spread(1, (128, 4)) != xorwow.spread(2, (128, 4))).all()


@pytest.mark.parametrize("on", [GPSIMD, VECTOR])
@pytest.mark.parametrize("dtype", [nl.uint32, nl.int32, nl.uint16, nl.int8])
def test_bits_are_uniform_and_the_lowest_that_fit(on, dtype):
    a = values(lambda o: nisa.rng(o, engine=on), [], Tile((64, 500), dtype))
    bits = np.unpackbits(np.ascontiguousarray(a).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(bits.size)


@pytest.mark.parametrize("on", [GPSIMD, VECTOR])
def test_a_state_put_back_gives_the_same_numbers(on):
    words = 6 if on is GPSIMD else 24
    state = _RNG.integers(0, 2**32, (100, words), dtype=np.uint32)

    def body(a, b, c, saved, s):
        nisa.rand_set_state(s, engine=on)
        nisa.rng(a, engine=on)
        nisa.rand_get_state(saved, engine=on)
        nisa.rng(b, engine=on)
        nisa.rand_set_state(saved, engine=on)
        nisa.rng(c, engine=on)

    tile = Tile((100, 30), nl.uint32)
    a, b, c, saved = values(body, [state], tile, tile, tile, Tile((100, words), nl.uint32))
    np.testing.assert_array_equal(b, c)
    assert (a != b).mean() > 0.99
    assert (saved != state).all()


def test_a_state_comes_back_as_it_was_set():
    state = _RNG.integers(0, 2**32, (30, 6), dtype=np.uint32)

    def body(out, s):
        nisa.rand_set_state(s)
        nisa.rand_get_state(out)

    np.testing.assert_array_equal(values(body, [Given(state, start=64)], Tile((30, 6), nl.uint32, start=64)), state)


def test_engines_have_their_own_state():
    def body(a, b):
        nisa.rng(nl.ndarray((8, 8), nl.uint32), engine=GPSIMD)
        nisa.rng(a, engine=VECTOR)
        nisa.set_rng_seed(nl.zeros((1, 1), nl.int32))
        nisa.rng(b, engine=VECTOR)

    a, b = values(body, [], Tile((8, 8), nl.uint32), Tile((8, 8), nl.uint32))
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", [nl.float32, nl.bfloat16, nl.int32, nl.float8_e4m3])
def test_rand2_is_uniform_between_its_bounds(dtype):
    a = values(lambda o: nisa.rand2(o, -3.0, 9.0), [], Tile((128, 200), dtype)).astype(np.float64)
    assert a.min() >= -3
    assert a.max() <= 9
    assert abs(a.mean() - 3) < 0.1
    assert abs(a.var() - 12) < 0.5


def test_rand2_with_a_bound_per_partition():
    low = np.arange(40, dtype=np.float32)[:, None]
    a = values(lambda o, b: nisa.rand2(o, b, 100.0), [low], Tile((40, 300)))
    assert (a >= low).all()
    assert (a.min(1) < low[:, 0] + 5).all()
    with pytest.raises(ArgumentError, match="min is not below max in some partition"):
        values(lambda o, b: nisa.rand2(o, b, 39.0), [low], Tile((40, 3)))


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_dropout(dtype):
    x = np.full((128, 300), 7, dtype)
    rate = np.linspace(0, 1, 128, dtype=np.float32)[:, None]
    a = values(nisa.dropout, [x, rate], Tile((128, 300), getattr(nl, np.dtype(dtype).name)))
    assert set(np.unique(a)) == {0, 7}
    np.testing.assert_allclose((a == 0).mean(1), rate[:, 0], atol=0.15)
    assert (a[0] == 7).all()
    assert (a[-1] == 0).all()


def test_timing_only_runs_record_them():
    def body(o):
        nisa.set_rng_seed(nl.zeros((1, 1), nl.int32))
        nisa.rng(nl.ndarray((4, 4), nl.int32))
        nisa.rand2(o, 0, 1)
        nisa.dropout(o, o, 0.5)
        nisa.rand_get_state(nl.ndarray((4, 6), nl.uint32))

    stream = compute(body, [], [Tile((4, 4))], numerics=False).stream
    assert [r.op for r in stream] == ["memset", "set_rng_seed", "rng", "rand2", "dropout", "rand_get_state"]


def _tile(shape=(8, 6), dtype=nl.uint32, buffer=nl.sbuf, value=1):
    made = nl.ndarray(shape, dtype, buffer)
    nisa.memset(made, value)
    return made


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (lambda: nisa.rng(_tile(dtype=nl.float32)), DtypeError, "nisa.rng: dst .* accepted: int8, int16"),
        (lambda: nisa.rng(_tile(buffer=nl.psum), GPSIMD), WrongBufferError, "gpsimd cannot reach"),
        (lambda: nisa.rng(_tile(), nisa.engine.scalar), EngineError, "accepted: vector, gpsimd"),
        (lambda: nisa.set_rng_seed(_tile()), ShapeError, r"accepted: \(1, 1\)"),
        (lambda: nisa.set_rng_seed(_tile((1, 1), nl.int16)), DtypeError, "a type of 32 bits"),
        (lambda: nisa.set_rng_seed(nl.ndarray((1, 1), nl.int32)), UninitializedReadError, "src_seeds"),
        (lambda: nisa.set_rng_seed(nl.ndarray((1, 1), nl.int32, nl.hbm)), WrongBufferError, "accepted: sbuf or psum"),
        (lambda: nisa.rand_set_state(_tile((8, 24))), ShapeError, r"accepted: \(lanes, 6\) on engine gpsimd"),
        (lambda: nisa.rand_set_state(_tile(), VECTOR), ShapeError, r"accepted: \(lanes, 24\) on engine vector"),
        (lambda: nisa.rand_set_state(_tile(dtype=nl.int32)), DtypeError, "accepted: uint32"),
        (lambda: nisa.rand_set_state(_tile((8, 24), buffer=nl.psum), VECTOR), WrongBufferError, "accepted: sbuf"),
        (lambda: nisa.rand_get_state(_tile(buffer=nl.psum)), WrongBufferError, "gpsimd cannot reach"),
        (lambda: nisa.rand_get_state(_tile((8, 5))), ShapeError, "accepted"),
        (lambda: nisa.rand2(_tile(dtype=nl.float8_e4m3fn), 0, 1), DtypeError, "accepted: float8_e4m3, float8_e5m2"),
        (lambda: nisa.rand2(_tile(), 1, 1), ArgumentError, "min 1, max 1; accepted: min below max"),
        (lambda: nisa.rand2(_tile(), _tile((8, 1)), 1), DtypeError, "min .* accepted: float32"),
        (lambda: nisa.rand2(nl.ndarray((64, 8), nl.int8)[1:9], 0, 1), PartitionError, "start partition 1"),
        (lambda: nisa.dropout(_tile(), _tile(), 1.5), ArgumentError, "prob 1.5; accepted: 0 to 1"),
        (lambda: nisa.dropout(_tile(), _tile(), _tile((8, 1), nl.bfloat16)), DtypeError, "prob .* accepted: float32"),
        (lambda: nisa.dropout(_tile(dtype=nl.int32), _tile(), 0.5), DtypeError, "accepted: the same type"),
        (lambda: nisa.dropout(_tile((8, 5)), _tile(), 0.5), ShapeError, "accepted: the same number"),
    ],
)  # fmt: skip
def test_refused(function, error, words):
    with pytest.raises(error, match=words):
        compute(function, [], [])


def test_what_trn2_lacks():
    for function, error, words in (
        (lambda: nisa.rand2(_tile(), 0, 1), TargetError, "nisa.rand2: target trn2; accepted: trn3"),
        (lambda: nisa.rand_set_state(_tile((8, 24)), VECTOR), EngineError, "accepted: gpsimd"),
        (lambda: nisa.rand_get_state(_tile((8, 24)), VECTOR), EngineError, "accepted: gpsimd"),
    ):
        with pytest.raises(error, match=words):
            compute(function, [], [], target="trn2")
    compute(lambda: nisa.rand_set_state(_tile()), [], [], target="trn2")
    compute(lambda: nisa.rng(_tile(), GPSIMD), [], [], target="trn2")
