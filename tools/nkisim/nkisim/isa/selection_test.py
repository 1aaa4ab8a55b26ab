"""Selections: values against numpy, and each documented constraint in a pair."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim.errors import (
    ArgumentError,
    DtypeError,
    OutOfBoundsError,
    OutputNotWrittenError,
    ShapeError,
    UninitializedReadError,
    WrongBufferError,
)
from nkisim.isa.testing import Given, Tile, values

RNG = np.random.default_rng(13)
BF16 = ml_dtypes.bfloat16
CMD = nisa.reduce_cmd
FP32_MIN = np.finfo(np.float32).min


def normal(*shape, dtype=np.float32):
    return RNG.normal(0, 1, shape).astype(dtype)


def flags(*shape, dtype=np.uint8):
    return RNG.integers(0, 3, shape).astype(dtype)


# tensor_copy_predicated


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
@pytest.mark.parametrize("reverse", [False, True])
def test_copy_predicated_leaves_the_rest(dtype, reverse):
    old, new, mask = normal(40, 3, 4, dtype=BF16), normal(40, 12, dtype=BF16), flags(40, 12, dtype=dtype)

    def body(o, a, b, m):
        nisa.tensor_copy(o, a)
        nisa.tensor_copy_predicated(o, b, m, reverse_pred=reverse)

    result = values(body, [old, Given(new, start=64), Given(mask, nl.psum)], Tile((40, 3, 4), nl.bfloat16, start=64))
    chosen = (mask.reshape(40, 3, 4) == 0) if reverse else (mask.reshape(40, 3, 4) != 0)
    np.testing.assert_array_equal(result, np.where(chosen, new.reshape(40, 3, 4), old))


def test_copy_predicated_of_a_number_and_of_exact_words():
    x, mask = RNG.integers(-(1 << 31), 1 << 31, (8, 5)).astype(np.int32), flags(8, 5)
    result = values(lambda o, a, m: (nisa.tensor_copy(o, a), nisa.tensor_copy_predicated(o, -7.0, m)), [x, mask],
                    Tile((8, 5), nl.int32))  # fmt: skip
    np.testing.assert_array_equal(result, np.where(mask != 0, -7, x))
    result = values(lambda o, a, m: (nisa.memset(o, 1), nisa.tensor_copy_predicated(o, a, m)), [x, mask],
                    Tile((8, 5), nl.int32))  # fmt: skip
    np.testing.assert_array_equal(result, np.where(mask != 0, x, 1))


def test_elements_that_were_not_chosen_stay_unwritten():
    x, mask = normal(4, 6), np.ones((4, 6), np.uint8)
    np.testing.assert_array_equal(
        values(lambda o, a, m: nisa.tensor_copy_predicated(o, a, m), [x, mask], Tile((4, 6))), x
    )
    mask[2, 3] = 0
    with pytest.raises(OutputNotWrittenError, match=r"element \[2, 3\]"):
        values(lambda o, a, m: nisa.tensor_copy_predicated(o, a, m), [x, mask], Tile((4, 6)))


@pytest.mark.parametrize(
    "select",
    [
        lambda o, t, m: (nisa.memset(o, 0.0), nisa.tensor_copy_predicated(o, t, m)),
        lambda o, t, m: nisa.select_reduce(o, m, t, 0.0),
        lambda o, t, m: nisa.affine_select(o, [[-1, 6]], 0, t, 0.0, nl.greater, 2),
        lambda o, t, m: nisa.range_select(o, t, nl.less, nl.less, *[_column(2.0)] * 2),
    ],
)
def test_elements_that_are_not_selected_need_not_be_written(select):
    """Every one of these selects the first two elements."""
    x, mask = normal(1, 6), np.array([[1, 1, 0, 0, 0, 0]], np.uint8)

    def body(count):
        def run(o, a, m):
            tile = nl.ndarray((1, 6), nl.float32)
            nisa.tensor_copy(tile[:, :count], a[:, :count])
            select(o, tile, m)

        return run

    np.testing.assert_array_equal(values(body(2), [x, mask], Tile((1, 6)))[:, :2], x[:, :2])
    with pytest.raises(UninitializedReadError, match=r"element \[0, 1\]"):
        values(body(1), [x, mask], Tile((1, 6)))


def _column(value):
    tile = nl.ndarray((1, 1), nl.float32)
    nisa.memset(tile, value)
    return tile


def test_copy_predicated_constraints():
    x, mask = normal(8, 4), flags(8, 4)
    cases = [
        (DtypeError, "predicate .* is int8; accepted: uint8, uint16, uint32", x, mask.astype(np.int8)),
        (DtypeError, "predicate .* is float32", x, x),
        (DtypeError, "src is bfloat16, dst is float32", x.astype(BF16), mask),
        (ShapeError, "src", normal(8, 3), mask),
        (ShapeError, "predicate", x, flags(8, 3)),
        (ShapeError, "predicate has 7 partitions", x, flags(7, 4)),
        (WrongBufferError, "src and predicate both lie in psum", Given(x, nl.psum), Given(mask, nl.psum)),
    ]
    for error, message, source, predicate in cases:
        with pytest.raises(error, match=message):
            values(lambda o, a, m: nisa.tensor_copy_predicated(o, a, m), [source, predicate], Tile((8, 4)))
    with pytest.raises(ArgumentError, match="src is 'x'"):
        values(lambda o, m: nisa.tensor_copy_predicated(o, "x", m), [mask], Tile((8, 4)))
    ones = np.ones_like(mask)
    for first, second in ((nl.sbuf, nl.psum), (nl.psum, nl.sbuf)):
        values(
            lambda o, a, m: nisa.tensor_copy_predicated(o, a, m), [Given(x, first), Given(ones, second)], Tile((8, 4))
        )


# select_reduce


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
@pytest.mark.parametrize("reverse", [False, True])
def test_select_reduce(dtype, reverse):
    x, mask, column = normal(50, 4, 5, dtype=BF16), flags(50, 4, 5, dtype=dtype), normal(50, 1)
    result, peak = values(
        lambda o, r, a, m, c: nisa.select_reduce(
            o, m, a, c, reduce_res=r, reduce_cmd=CMD.reset_reduce, reduce_op=nl.maximum, reverse_pred=reverse
        ),
        [Given(x, nl.psum), mask, column],
        Tile((50, 4, 5), nl.bfloat16),
        Tile((50, 1)),
    )
    chosen = np.where((mask == 0) if reverse else (mask != 0), x.astype(np.float32), column[..., None])
    np.testing.assert_array_equal(result, chosen.astype(BF16))
    np.testing.assert_array_equal(peak[:, 0], chosen.max(axis=(1, 2)))


def test_select_reduce_continues_a_maximum_but_not_after_idle():
    x, y, mask = normal(8, 5), normal(8, 5), flags(8, 5)

    def chained(between):
        def body(o, r, a, b, m):
            nisa.select_reduce(o, m, a, -1e30, reduce_cmd=CMD.reset_reduce)
            if between:
                nisa.select_reduce(o, m, b, 0.0)
            nisa.select_reduce(o, m, b, -1e30, reduce_res=r, reduce_cmd=CMD.reduce)

        return values(body, [x, y, mask], Tile((8, 5)), Tile((8, 1)))

    _, peak = chained(between=False)
    both = np.where(mask != 0, np.maximum(x, y), np.float32(-1e30))
    np.testing.assert_array_equal(peak[:, 0], both.max(axis=1))
    with pytest.raises(UninitializedReadError, match="reduce register of lane 0 of engine vector"):
        chained(between=True)


def test_select_reduce_constraints():
    x, mask = normal(8, 4), flags(8, 4)
    base: dict[str, Any] = {"on_false": 0.0}
    words = RNG.integers(0, 9, (8, 4), np.int32)
    cases = [
        (DtypeError, "on_true .* is int32; accepted: any other", words, mask, {}),
        (DtypeError, "predicate .* is uint32; accepted: int8", x, mask.astype(np.uint32), {}),
        (ShapeError, r"on_true \[8, 2, 2\]; accepted: \[8, 4\]", x.reshape(8, 2, 2), mask, {}),
        (ShapeError, r"predicate \[8, 2, 2\]", x, mask.reshape(8, 2, 2), {}),
        (WrongBufferError, "on_true and predicate both lie in psum", Given(x, nl.psum), Given(mask, nl.psum), {}),
        (ArgumentError, "reduce_op is nl.add; accepted: maximum", x, mask, {"reduce_op": nl.add}),
        (ArgumentError, "reduce_cmd is .*load_reduce", x, mask, {"reduce_cmd": CMD.load_reduce}),
        (ArgumentError, "reduce_res with", x, mask, {"reduce_res": Tile((8, 1))}),
        (ShapeError, "reduce_res", x, mask, {"reduce_res": Tile((8, 2)), "reduce_cmd": CMD.reset_reduce}),
        (DtypeError, "reduce_res", x, mask, {"reduce_res": Tile((8, 1), nl.int16), "reduce_cmd": CMD.reset_reduce}),
        (ArgumentError, "on_false is None", x, mask, {"on_false": None}),
    ]

    def body(arguments):
        def run(o, a, m):
            made: dict[str, Any] = {k: v.make() if isinstance(v, Tile) else v for k, v in (base | arguments).items()}
            nisa.select_reduce(o, m, a, **made)

        return run

    for error, message, on_true, predicate, arguments in cases:
        with pytest.raises(error, match=message):
            values(body(arguments), [on_true, predicate], Tile((8, 4)))
    values(body({"reduce_res": Tile((8, 1), nl.bfloat16), "reduce_cmd": CMD.reset_reduce}), [x, mask], Tile((8, 4)))


# range_select


COMPARISONS = {
    nl.equal: np.equal, nl.less: np.less, nl.less_equal: np.less_equal, nl.greater: np.greater,
    nl.greater_equal: np.greater_equal,
}  # fmt: skip


@pytest.mark.parametrize("op0", COMPARISONS)
@pytest.mark.parametrize("op1", [nl.less, nl.greater_equal])
def test_range_select(op0, op1):
    x = normal(60, 4, 8, dtype=np.float16)
    low, high = (RNG.integers(100, 132, (60, 1)).astype(np.float32) for _ in range(2))
    result, peak = values(
        lambda o, r, a, b0, b1: nisa.range_select(o, a, op0, op1, b0, b1, reduce_res=r, range_start=100),
        [x, low, high],
        Tile((60, 32), nl.float32),
        Tile((60, 1)),
    )
    positions = np.arange(100, 132)
    mask = COMPARISONS[op0](positions, low) & COMPARISONS[op1](positions, high)
    wanted = np.where(mask, x.reshape(60, 32).astype(np.float32), FP32_MIN)
    np.testing.assert_array_equal(result, wanted)
    np.testing.assert_array_equal(peak[:, 0], wanted.max(axis=1))


def test_range_select_reduces_before_the_cast():
    x, bound = normal(4, 8), np.full((4, 1), 100, np.float32)
    result, peak = values(
        lambda o, r, a, b: nisa.range_select(o, a, nl.greater, nl.greater, b, b, reduce_res=r),
        [x, bound],
        Tile((4, 8), nl.bfloat16),
        Tile((4, 1)),
    )
    assert np.isneginf(result.astype(np.float32)).all()
    assert (peak == FP32_MIN).all()


def test_range_select_continues_a_maximum():
    x, low, high = normal(4, 16), np.full((4, 1), 3, np.float32), np.full((4, 1), 12, np.float32)

    def body(o, r, a, b0, b1):
        for start, command in ((0, CMD.reset_reduce), (8, CMD.reduce)):
            part = slice(start, start + 8)
            nisa.range_select(o[:, part], a[:, part], nl.greater_equal, nl.less, b0, b1, command, r, nl.max, start)

    _, peak = values(body, [x, low, high], Tile((4, 16)), Tile((4, 1)))
    np.testing.assert_array_equal(peak[:, 0], x[:, 3:12].max(axis=1))


def test_range_select_constraints():
    x, bound = normal(8, 4), np.zeros((8, 1), np.float32)
    cases = [
        (ArgumentError, "comp_op0 is nl.not_equal", {"comp_op0": nl.not_equal}),
        (ArgumentError, "comp_op1 is nl.add", {"comp_op1": nl.add}),
        (ArgumentError, "reduce_op is nl.add; accepted: maximum", {"reduce_op": nl.add}),
        (ArgumentError, "on_false_value is 0.0; accepted: -3.4028235", {"on_false_value": 0.0}),
        (ArgumentError, "range_start is 1.5", {"range_start": 1.5}),
        (ArgumentError, r"range_start is \[1\]", {"range_start": [1]}),
        (ArgumentError, "on_false_value is None", {"on_false_value": None}),
        (OutOfBoundsError, "accepted: within 2\\^24", {"range_start": 1 << 24}),
        (DtypeError, "bound0 .* is int32; accepted: float32", {"bound0": Tile((8, 1), nl.int32)}),
        (ShapeError, "bound1 .* one element per partition", {"bound1": Tile((8, 2))}),
        (ShapeError, "bound0 has 4 partitions", {"bound0": Tile((4, 1))}),
        (DtypeError, "on_true_tile .* is int32", {"on_true_tile": Tile((8, 4), nl.int32)}),
        (ShapeError, "on_true_tile", {"on_true_tile": Tile((8, 3))}),
        (ArgumentError, "reduce_res with", {"reduce_res": Tile((8, 1)), "reduce_cmd": CMD.idle}),
        (DtypeError, "reduce_res .* is uint8", {"reduce_res": Tile((8, 1), nl.uint8)}),
        (ArgumentError, "bound0 is float", {"bound0": 0.0}),
    ]

    def body(arguments):
        def run(o, a, b):
            made = {k: v.make() if isinstance(v, Tile) else v for k, v in arguments.items()}
            chosen = {"on_true_tile": a, "comp_op0": nl.less, "comp_op1": nl.less, "bound0": b, "bound1": b} | made
            nisa.range_select(o, **chosen)

        return run

    for error, message, arguments in cases:
        with pytest.raises(error, match=message):
            values(body(arguments), [x, bound], Tile((8, 4)))
    for target in ("trn2", "trn3"):
        fine = {"range_start": (1 << 24) - 3, "on_false_value": -3.4028235e38, "reduce_cmd": CMD.idle}
        values(body(fine), [x, bound], Tile((8, 4)), target=target)
