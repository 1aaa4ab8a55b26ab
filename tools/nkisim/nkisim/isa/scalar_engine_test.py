"""Activations of the Scalar Engine: values, reduce registers, and each documented constraint in a pair."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest
import torch

import nki.isa as nisa
import nki.language as nl
from nkisim.errors import (
    ArgumentError,
    DtypeError,
    NotSimulatedError,
    ShapeError,
    TargetError,
    UninitializedReadError,
    ValueRangeWarning,
    WrongBufferError,
)
from nkisim.isa.testing import Given, Tile, compute, values

RNG = np.random.default_rng(5)
BF16 = ml_dtypes.bfloat16
CMD = nisa.reduce_cmd


def normal(*shape, dtype=np.float32):
    return RNG.normal(0, 2, shape).astype(dtype)


def torch_gelu(x):
    return torch.nn.functional.gelu(torch.from_numpy(x.astype(np.float64))).numpy()


def test_scale_then_bias_then_function_in_fp32():
    x, scale, bias = normal(65, 3, 5, dtype=BF16), normal(65, 1), normal(65, 1, dtype=BF16)
    result = values(
        lambda o, a, s, b: nisa.activation(o, nl.gelu, a, bias=b, scale=s),
        [x, scale, bias],
        Tile((65, 15), nl.float32, nl.psum),
    )
    inner = x.astype(np.float32) * scale[..., None] + bias.astype(np.float32)[..., None]
    np.testing.assert_allclose(result, torch_gelu(inner).reshape(65, 15), rtol=2e-5, atol=1e-9)


def test_constants_integers_and_other_start_partitions():
    x = RNG.integers(-100, 100, (30, 8), np.int8)
    result = values(
        lambda o, a: nisa.activation(o, nl.square, a, bias=1, scale=0.5),
        [Given(x, nl.psum, start=32)],
        Tile((30, 8), nl.int16, start=64),
    )
    np.testing.assert_array_equal(result, np.rint((x.astype(np.float32) * 0.5 + 1) ** 2))


def test_sum_is_of_fp32_results_before_the_cast():
    x = normal(128, 4, 100)
    result, total = values(
        lambda o, r, a: nisa.activation(o, nl.exp, a, reduce_op=nl.add, reduce_res=r, reduce_cmd=CMD.reset_reduce),
        [x],
        Tile((128, 4, 100), nl.bfloat16),
        Tile((128, 1)),
    )
    exact = np.exp(x.astype(np.float64))
    np.testing.assert_array_equal(result, np.exp(x).astype(BF16))
    np.testing.assert_allclose(total[:, 0], exact.sum(axis=(1, 2)), rtol=2e-6)


def test_registers_persist_between_instructions_until_reset():
    x, y = normal(32, 10), normal(32, 6)

    def body(o, both, again, fresh, a, b):
        nisa.activation(o, nl.copy, a, reduce_op=nl.add, reduce_cmd=CMD.reset_reduce)
        nisa.activation(o, nl.relu, a)
        nisa.activation(o[:, :6], nl.copy, b, reduce_op=nl.add, reduce_res=both, reduce_cmd=CMD.reduce)
        nisa.activation(o, nl.relu, a, reduce_res=again)
        nisa.activation(o, nl.relu, a, reduce_cmd=CMD.reset)
        nisa.activation(o[:, :6], nl.copy, b, reduce_op=nl.add, reduce_res=fresh, reduce_cmd=CMD.reduce)

    column = Tile((32, 1))
    _, both, again, fresh = values(body, [Given(x, start=32), Given(y, start=32)], Tile((32, 10)), *[column] * 3)
    wanted = x.sum(axis=1, dtype=np.float64) + y.sum(axis=1, dtype=np.float64)
    np.testing.assert_allclose(both[:, 0], wanted, atol=1e-5)
    np.testing.assert_array_equal(again, both)
    np.testing.assert_allclose(fresh[:, 0], y.sum(axis=1, dtype=np.float64), atol=1e-5)


def test_lanes_are_the_partitions_of_the_input():
    x = normal(64, 4)

    def body(o, r, a):
        nisa.activation(o[:32], nl.copy, a[:32], reduce_op=nl.add, reduce_cmd=CMD.reset_reduce)
        nisa.activation(o[32:], nl.copy, a[32:], reduce_op=nl.add, reduce_cmd=CMD.reset_reduce)
        nisa.activation(o, nl.copy, a, reduce_op=nl.add, reduce_res=r, reduce_cmd=CMD.reduce)

    _, total = values(body, [x], Tile((64, 4)), Tile((64, 1)))
    np.testing.assert_allclose(total[:, 0], 2 * x.sum(axis=1, dtype=np.float64), atol=1e-5)


def test_registers_that_nothing_set_are_not_read():
    x = normal(64, 4)
    with pytest.raises(UninitializedReadError, match="reduce register of lane 0 of engine scalar"):
        values(lambda o, a: nisa.activation(o, nl.exp, a, reduce_op=nl.add, reduce_cmd=CMD.reduce), [x], Tile((64, 4)))
    with pytest.raises(UninitializedReadError, match="reduce register of lane 0"):
        values(lambda o, r, a: nisa.activation(o, nl.exp, a, reduce_res=r), [x], Tile((64, 4)), Tile((64, 1)))

    def half(o, r, a):
        nisa.activation(o[:32], nl.exp, a[:32], reduce_op=nl.add, reduce_cmd=CMD.reset_reduce)
        nisa.activation(o, nl.exp, a, reduce_op=nl.add, reduce_res=r, reduce_cmd=CMD.reduce)

    with pytest.raises(UninitializedReadError, match="lane 32"):
        values(half, [x], Tile((64, 4)), Tile((64, 1)))


def test_reading_the_registers_out_is_an_instruction():
    ran = compute(
        lambda o, r, a: nisa.activation(o, nl.exp, a, reduce_op=nl.add, reduce_res=r, reduce_cmd=CMD.reset_reduce),
        [normal(8, 4)],
        [Tile((8, 4)), Tile((8, 1))],
    )
    assert [r.op for r in ran.stream] == ["activation", "read_reduce_registers"]
    assert {r.engine for r in ran.stream} == {nisa.engine.scalar}


def test_activation_reduce():
    x, bias = normal(70, 9), normal(70, 1)
    result, total = values(
        lambda o, r, a, b: nisa.activation_reduce(o, nl.square, a, nl.add, r, bias=b, scale=0.5),
        [x, bias],
        Tile((70, 9)),
        Tile((70, 1), nl.bfloat16),
    )
    wanted = np.square(x * np.float32(0.5) + bias)
    np.testing.assert_array_equal(result, wanted)
    np.testing.assert_array_equal(total, wanted.sum(axis=1, keepdims=True).astype(BF16))
    values(lambda o, a: nisa.activation_reduce(o, nl.square, a, nl.add, None), [x], Tile((70, 9)))
    with pytest.raises(ArgumentError, match=r"activation_reduce: reduce_op is nl.maximum; accepted: add"):
        values(lambda o, r, a: nisa.activation_reduce(o, nl.exp, a, nl.maximum, r), [x], Tile((70, 9)), Tile((70, 1)))


def test_activation_constraints():
    x, column = normal(16, 8), normal(16, 1)
    cases = [
        (ArgumentError, "op is nl.add", {"op": nl.add}),
        (ArgumentError, "op is nl.cos", {"op": nl.cos}),
        (NotSimulatedError, "accepted: nisa.activate2", {"op": nl.prelu}),
        (DtypeError, "scale .* is bfloat16; accepted: float32", {"scale": "narrow"}),
        (DtypeError, "bias .* is tfloat32", {"bias": "tf32"}),
        (ShapeError, "bias .* accepted: one element per partition", {"bias": "wide"}),
        (ArgumentError, "bias is 'x'", {"bias": "x"}),
        (ArgumentError, "reduce_op is None with", {"reduce_cmd": CMD.reset_reduce}),
        (ArgumentError, "reduce_op is nl.maximum; accepted: add", {"reduce_op": nl.maximum}),
        (ArgumentError, "reduce_cmd is .*load_reduce", {"reduce_op": nl.add, "reduce_cmd": CMD.load_reduce}),
        (ArgumentError, "reduce_cmd is 3; accepted: a member", {"reduce_op": nl.add, "reduce_cmd": 3}),
        (ArgumentError, r"reduce_cmd is \[\]", {"reduce_cmd": []}),
        (ArgumentError, r"op is \[\]", {"op": []}),
        (ShapeError, "reduce_res .* accepted: one element", {"reduce_res": "wide", "reduce_cmd": CMD.reset}),
        (DtypeError, "reduce_res .* is int32", {"reduce_res": "words", "reduce_cmd": CMD.reset}),
    ]

    def body(arguments):
        def run(o, a, c):
            special = {"wide": a, "narrow": nl.ndarray((16, 1), nl.bfloat16), "tf32": nl.ndarray((16, 1), nl.tfloat32),
                       "words": nl.ndarray((16, 1), nl.int32)}  # fmt: skip
            chosen = {k: special.get(v, v) if isinstance(v, str) else v for k, v in arguments.items()}
            nisa.activation(o, data=a, **{"op": nl.exp, "bias": c} | chosen)

        return run

    for error, message, arguments in cases:
        with pytest.raises(error, match=message):
            values(body(arguments), [x, column], Tile((16, 8)))
    values(body({"reduce_op": nl.add, "reduce_cmd": CMD.reset_reduce}), [x, column], Tile((16, 8)))


def test_activation_shapes_and_memories():
    x = normal(16, 8)
    for shape in ((16, 7), (15, 8)):
        with pytest.raises(ShapeError, match="dst"):
            values(lambda o, a: nisa.activation(o, nl.exp, a), [x], Tile(shape))
    with pytest.raises(WrongBufferError, match=r"data .* lies in shared_hbm"):
        values(
            lambda o, a: nisa.activation(o, nl.exp, nl.ndarray((16, 8), nl.float32, nl.shared_hbm)), [x], Tile((16, 8))
        )
    values(lambda o, a: nisa.activation(o, nl.exp, a), [x], Tile((16, 2, 4)))


def test_values_outside_the_valid_range_are_warned_about_once_a_line():
    x = np.array([[0.0, 1.0]], np.float32)

    def body(o, a):
        for _ in range(3):
            nisa.activation(o, nl.rsqrt, a)

    with pytest.warns(ValueRangeWarning, match=r"nl.rsqrt of 0, outside its valid range \[2\^-87, 2\^97\]") as caught:
        result = values(body, [x], Tile((1, 2)))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(result, [[np.inf, 1]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values(lambda o, a: nisa.activation(o, nl.rsqrt, a, bias=1e-6), [x], Tile((1, 2)))


def test_sin_does_not_reduce_its_argument():
    with pytest.warns(ValueRangeWarning, match=r"nl.sin of 9"):
        result = values(lambda o, a: nisa.activation(o, nl.sin, a), [np.array([[9.0, 1.0]], np.float32)], Tile((1, 2)))
    np.testing.assert_allclose(result, [[27.65, np.sin(1.0)]], atol=0.005)


# activate2


@pytest.mark.parametrize(
    ("op0", "op1", "wanted"),
    [
        (nl.multiply, nl.add, lambda x, a, b: x * a + b),
        (nl.multiply, nl.subtract, lambda x, a, b: x * a - b),
        (nl.multiply, nl.bypass, lambda x, a, b: x * a),
        (nl.add, nl.bypass, lambda x, a, b: x + a),
        (nl.subtract, nl.bypass, lambda x, a, b: x - a),
        (nl.bypass, nl.bypass, lambda x, a, b: x),
    ],
)
def test_stages_of_activate2(op0, op1, wanted):
    x, first, second = normal(33, 7), normal(33, 1), normal(33, 1)
    result = values(lambda o, a, b, c: nisa.activate2(o, nl.tanh, a, b, c, op0, op1), [x, first, second], Tile((33, 7)))
    np.testing.assert_allclose(result, np.tanh(wanted(x, first, second)), rtol=1e-6)


def test_activate2_swaps_sides_and_takes_a_slope():
    x, slope = normal(33, 7), normal(33, 1)
    result = values(
        lambda o, a: nisa.activate2(o, nl.copy, a, 2.0, 3.0, nl.multiply, nl.subtract, reverse0=True, reverse1=True),
        [x],
        Tile((33, 7)),
    )
    np.testing.assert_array_equal(result, 3 - 2 * x)
    result = values(
        lambda o, a, s: nisa.activate2(o, nl.prelu, a, 0, 0, nl.bypass, nl.bypass, relu_param=s),
        [x, slope],
        Tile((33, 7)),
    )
    np.testing.assert_array_equal(result, np.where(x > 0, x, slope * x))


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        (nl.add, lambda x: x.sum(axis=1)),
        (nl.maximum, lambda x: x.max(axis=1)),
        (nl.minimum, lambda x: x.min(axis=1)),
        (nl.abs_max, lambda x: x[np.arange(len(x)), np.abs(x).argmax(axis=1)]),
        (nl.abs_min, lambda x: x[np.arange(len(x)), np.abs(x).argmin(axis=1)]),
    ],
)
def test_reductions_of_activate2_start_from_their_identity(op, wanted):
    x = normal(40, 21) - 5

    def body(o, r, a):
        for part, command in ((a[:, :10], CMD.reset_reduce), (a[:, 10:], CMD.reduce)):
            nisa.activate2(o[:, : part.shape[1]], nl.copy, part, 0, 0, nl.bypass, nl.bypass, reduce_op=op,
                           reduce_res=r, reduce_cmd=command)  # fmt: skip

    _, result = values(lambda o, r, a: (nisa.memset(o, 0), body(o, r, a)), [x], Tile((40, 21)), Tile((40, 1)))
    np.testing.assert_allclose(result[:, 0], wanted(x), rtol=1e-6)


def test_activate2_constraints():
    x, column = normal(8, 4), normal(8, 1)
    bypass = {"op0": nl.bypass, "op1": nl.bypass}
    cases = [
        (ArgumentError, "op0 nl.add, op1 nl.multiply", {"op0": nl.add, "op1": nl.multiply}),
        (ArgumentError, "op0 nl.bypass, op1 nl.add", {"op0": nl.bypass, "op1": nl.add}),
        (ArgumentError, "op0 nl.maximum", {"op0": nl.maximum, "op1": nl.bypass}),
        (ArgumentError, "reverse0 with bypass", bypass | {"reverse0": True}),
        (ArgumentError, "reverse1 with bypass", {"op0": nl.add, "op1": nl.bypass, "reverse1": True}),
        (ArgumentError, "reduce_op is nl.multiply", bypass | {"reduce_op": nl.multiply}),
        (DtypeError, "imm1 is bfloat16, imm0 is float32", {"imm1": "narrow"}),
        (ArgumentError, "imm0 is None", {"imm0": None}),
    ]

    def body(arguments):
        def run(o, a, c, n):
            chosen = {"imm0": c, "imm1": c, "op0": nl.multiply, "op1": nl.add} | arguments
            nisa.activate2(o, nl.exp, a, **{k: n if v == "narrow" else v for k, v in chosen.items()})

        return run

    inputs = [x, column, normal(8, 1, dtype=BF16)]
    for error, message, arguments in cases:
        with pytest.raises(error, match=message):
            values(body(arguments), inputs, Tile((8, 4)))
    values(body({}), inputs, Tile((8, 4)))
    with pytest.raises(TargetError, match="activate2: target trn2; accepted: trn3"):
        values(body({}), inputs, Tile((8, 4)), target="trn2")


def test_timing_only_runs_record_the_same():
    def body(o, r, a):
        nisa.activation(o, nl.exp, a, reduce_op=nl.add, reduce_res=r, reduce_cmd=CMD.reduce)
        nisa.activate2(o, nl.exp, a, 1.0, 0.0, nl.multiply, nl.add)

    ran = compute(body, [normal(8, 4)], [Tile((8, 4)), Tile((8, 1))], numerics=False)
    assert [r.op for r in ran.stream] == ["activation", "read_reduce_registers", "activate2"]
