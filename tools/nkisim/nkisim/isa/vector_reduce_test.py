"""Vector instructions with reduce registers: values, registers, and each documented constraint in a pair."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim.errors import ArgumentError, DtypeError, ShapeError, TargetError, UninitializedReadError
from nkisim.isa.testing import Given, Tile, compute, values

RNG = np.random.default_rng(17)
BF16 = ml_dtypes.bfloat16
CMD = nisa.reduce_cmd


def normal(*shape, dtype=np.float32):
    return RNG.normal(0, 1, shape).astype(dtype)


def made(arguments):
    return {k: v.make() if isinstance(v, Tile) else v for k, v in arguments.items()}


# exponential


def test_exponential_and_its_sum():
    x, peak = normal(90, 3, 20, dtype=BF16), normal(90, 1)
    result, total = values(
        lambda o, r, a, m: nisa.exponential(o, a, m, r, CMD.reset_reduce),
        [Given(x, nl.psum), peak],
        Tile((90, 60), nl.float8_e5m2),
        Tile((90, 1)),
    )
    exact = np.exp(x.astype(np.float64).reshape(90, 60) - peak)
    wanted = np.exp(x.astype(np.float32).reshape(90, 60) - peak).astype(ml_dtypes.float8_e5m2)
    np.testing.assert_array_equal(result.astype(np.float32), wanted.astype(np.float32))
    np.testing.assert_allclose(total[:, 0], exact.sum(axis=1), rtol=2e-6)


def test_exponential_continues_loads_and_forgets_its_sum():
    x, start = normal(8, 6), normal(8, 1)

    def body(o, r, s, a, b):
        nisa.exponential(o, a, reduce_cmd=CMD.load_reduce, reduce_init=b)
        nisa.exponential(o, a, 1.0, r, CMD.reduce)
        nisa.exponential(o, a, reduce_res=s, reduce_cmd=CMD.load_reduce, reduce_init=2.0)

    _, chained, loaded = values(body, [x, start], Tile((8, 6)), Tile((8, 1)), Tile((8, 1)))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(chained, start + (np.exp(wide) + np.exp(wide - 1)).sum(axis=1, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(loaded, 2 + np.exp(wide).sum(axis=1, keepdims=True), rtol=1e-6)

    def after_idle(o, a):
        nisa.exponential(o, a, reduce_cmd=CMD.reset_reduce)
        nisa.exponential(o, a)
        nisa.exponential(o, a, reduce_cmd=CMD.reduce)

    with pytest.raises(UninitializedReadError, match="reduce register of lane 0 of engine vector"):
        values(after_idle, [x], Tile((8, 6)))


def test_exponential_constraints():
    x = normal(8, 4)
    cases = [
        (ShapeError, "dst", Tile((8, 5)), {}),
        (ShapeError, "dst has 7 partitions", Tile((7, 4)), {}),
        (DtypeError, "dst .* is uint32", Tile((8, 4), nl.uint32), {}),
        (DtypeError, "dst .* is float8_e4m3fn", Tile((8, 4), nl.float8_e4m3fn), {}),
        (DtypeError, "src .* is tfloat32", Tile((8, 4)), {"src": Tile((8, 4), nl.tfloat32)}),
        (ShapeError, "dst .* up to four dimensions", Tile((8, 1, 2, 1, 2)), {}),
        (DtypeError, "max_value .* is bfloat16; accepted: float32", Tile((8, 4)),
         {"max_value": Tile((8, 1), nl.bfloat16)}),
        (ArgumentError, "reduce_init is 1.0 with reduce_cmd", Tile((8, 4)), {"reduce_init": 1.0}),
        (ArgumentError, "reduce_init is 1.0", Tile((8, 4)), {"reduce_init": 1.0, "reduce_cmd": CMD.reset_reduce}),
        (ArgumentError, "reduce_cmd is .*reset", Tile((8, 4)), {"reduce_cmd": CMD.reset}),
        (ArgumentError, "reduce_res with", Tile((8, 4)), {"reduce_res": Tile((8, 1))}),
        (DtypeError, "reduce_res .* is int32", Tile((8, 4)),
         {"reduce_res": Tile((8, 1), nl.int32), "reduce_cmd": CMD.reset_reduce}),
        (ShapeError, "reduce_res", Tile((8, 4)), {"reduce_res": Tile((4, 1)), "reduce_cmd": CMD.reset_reduce}),
    ]  # fmt: skip
    for error, message, tile, arguments in cases:
        with pytest.raises(error, match=message):
            values(lambda o, a, g=arguments: nisa.exponential(o, **({"src": a} | made(g))), [x], tile)
    for kind in (nl.int8, nl.tfloat32):
        values(lambda o, a: nisa.exponential(o, a, reduce_init=0.0), [x], Tile((8, 1, 2, 2), kind))
    with pytest.raises(TargetError, match="exponential: target trn2; accepted: trn3"):
        values(lambda o, a: nisa.exponential(o, a), [x], Tile((8, 4)), target="trn2")


# tensor_scalar_reduce


@pytest.mark.parametrize(
    ("op", "function"), [(nl.add, np.add), (nl.multiply, np.multiply), (nl.max, np.maximum), (nl.minimum, np.minimum)]
)
@pytest.mark.parametrize("negate", [False, True])
def test_tensor_scalar_reduce(op, function, negate):
    x, column = normal(33, 2, 7, dtype=BF16), normal(33, 1)
    result, total = values(
        lambda o, r, a, c: nisa.tensor_scalar_reduce(o, a, nl.subtract, c, op, r, reduce_res_negate=negate),
        [x, column],
        Tile((33, 14), nl.bfloat16),
        Tile((33, 1), buffer=nl.psum),
    )
    wide = (x.astype(np.float32) - column[..., None]).reshape(33, 14)
    np.testing.assert_array_equal(result, wide.astype(BF16))
    wanted = function.reduce(wide.astype(np.float64), axis=1, keepdims=True)
    np.testing.assert_allclose(total, -wanted if negate else wanted, rtol=1e-4, atol=1e-6)


def test_tensor_scalar_reduce_chains_without_being_changed_by_negate():
    x, y = normal(8, 5), normal(8, 5)

    def body(o, first, second, loaded, a, b):
        nisa.tensor_scalar_reduce(o, a, nl.multiply, 1.0, nl.max, first, reduce_res_negate=True)
        nisa.tensor_scalar_reduce(o, b, nl.abs, None, nl.max, second, reduce_cmd=CMD.reduce)
        nisa.tensor_scalar_reduce(o, b, nl.abs, 0, nl.add, loaded, reduce_cmd=CMD.load_reduce, reduce_init=first)

    column = Tile((8, 1))
    _, first, second, loaded = values(body, [x, y], Tile((8, 5)), column, column, column)
    np.testing.assert_array_equal(first[:, 0], -x.max(axis=1))
    np.testing.assert_array_equal(second[:, 0], np.maximum(x.max(axis=1), np.abs(y).max(axis=1)))
    np.testing.assert_allclose(loaded, first + np.abs(y).sum(axis=1, keepdims=True), rtol=1e-5)


def test_the_vector_instructions_share_registers():
    x = normal(8, 5)

    def body(o, r, a):
        nisa.tensor_scalar_cumulative(o, a, nl.add, nl.max, 0.0)
        nisa.tensor_scalar_reduce(o, a, nl.add, 5.0, nl.max, r, reduce_cmd=CMD.reduce)

    _, total = values(body, [x], Tile((8, 5)), Tile((8, 1)))
    np.testing.assert_array_equal(total[:, 0], (x + 5).max(axis=1))


def test_tensor_scalar_reduce_constraints():
    x = normal(8, 4)
    base: dict[str, Any] = {"op0": nl.add, "operand0": 1.0, "reduce_op": nl.add}
    cases = [
        (ArgumentError, "op0 is nl.bitwise_and", {"op0": nl.bitwise_and}),
        (ArgumentError, "reduce_op is nl.subtract; accepted: add", {"reduce_op": nl.subtract}),
        (ArgumentError, "reverse0 is True", {"reverse0": True}),
        (ArgumentError, "operand0 is 1.0 with nl.abs", {"op0": nl.abs}),
        (DtypeError, "operand0 .* is bfloat16; accepted: float32", {"operand0": Tile((8, 1), nl.bfloat16)}),
        (ArgumentError, "reduce_cmd is .*idle", {"reduce_cmd": CMD.idle}),
        (ArgumentError, "reduce_init is None", {"reduce_cmd": CMD.load_reduce}),
        (ArgumentError, "reduce_init is 1.0 with", {"reduce_init": 1.0}),
        (DtypeError, "reduce_init", {"reduce_cmd": CMD.load_reduce, "reduce_init": Tile((8, 1), nl.bfloat16)}),
        (ShapeError, "reduce_res", {"reduce_res": Tile((8, 4))}),
    ]
    for error, message, arguments in cases:
        with pytest.raises(error, match=message):
            values(lambda o, a, g=arguments: nisa.tensor_scalar_reduce(o, a, **(base | made(g))), [x], Tile((8, 4)))
    loaded = base | {"reduce_cmd": CMD.load_reduce, "reduce_init": 1.0}
    values(lambda o, a: nisa.tensor_scalar_reduce(o, a, **loaded), [x], Tile((8, 4)))
    with pytest.raises(UninitializedReadError, match="reduce register"):
        values(lambda o, a: nisa.tensor_scalar_reduce(o, a, **base, reduce_cmd=CMD.reduce), [x], Tile((8, 4)))


# tensor_scalar_cumulative


@pytest.mark.parametrize("op", [nl.add, nl.subtract, nl.multiply, nl.max, nl.min])
@pytest.mark.parametrize("command", [CMD.reset_reduce, CMD.load_reduce])
def test_tensor_scalar_cumulative_by_the_documented_loop(op, command):
    x, column, start = normal(20, 3, 4, dtype=np.float16), normal(20, 1), normal(20, 1)
    result = values(
        lambda o, a, c, s: nisa.tensor_scalar_cumulative(
            o, a, nl.multiply, op, c, s if command is CMD.load_reduce else None, command
        ),
        [x, column, start],
        Tile((20, 12)),
    )
    initial = {"add": 0, "subtract": 0, "multiply": 1, "max": -np.inf, "min": np.inf}[op.__name__]
    apply = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "max": np.maximum, "min": np.minimum}
    register = start[:, 0] if command is CMD.load_reduce else np.full(20, initial, np.float32)
    for i, values_now in enumerate((x.astype(np.float32) * column[..., None]).reshape(20, 12).T):
        register = apply[op.__name__](values_now, register)
        np.testing.assert_allclose(result[:, i], register, rtol=1e-6)


def test_tensor_scalar_cumulative_continues():
    x = normal(8, 10)

    def body(o, a):
        nisa.tensor_scalar_cumulative(o[:, :4], a[:, :4], nl.add, nl.add, 1.0)
        nisa.tensor_scalar_cumulative(o[:, 4:], a[:, 4:], nl.add, nl.add, 1.0, reduce_cmd=CMD.reduce)

    np.testing.assert_allclose(
        values(body, [x], Tile((8, 10))), np.cumsum(x + 1, axis=1, dtype=np.float64), rtol=1e-5, atol=1e-5
    )
    with pytest.raises(UninitializedReadError, match="reduce register"):
        values(
            lambda o, a: nisa.tensor_scalar_cumulative(o, a, nl.add, nl.add, 1.0, reduce_cmd=CMD.reduce),
            [x],
            Tile((8, 10)),
        )


def test_tensor_scalar_cumulative_constraints():
    x = normal(8, 4)
    base: dict[str, Any] = {"op0": nl.add, "op1": nl.add, "imm0": 1.0}
    cases = [
        (ArgumentError, "op0 is nl.bitwise_and", Tile((8, 4)), {"op0": nl.bitwise_and}),
        (ArgumentError, "op1 is nl.logical_and; accepted: add", Tile((8, 4)), {"op1": nl.logical_and}),
        (DtypeError, "dst .* is int32", Tile((8, 4), nl.int32), {}),
        (DtypeError, "src .* is uint32", Tile((8, 4)), {"src": Tile((8, 4), nl.uint32)}),
        (DtypeError, "imm0 .* is bfloat16", Tile((8, 4)), {"imm0": Tile((8, 1), nl.bfloat16)}),
        (ArgumentError, "imm1 is 1.0 with", Tile((8, 4)), {"imm1": 1.0}),
        (ArgumentError, "imm1 is None", Tile((8, 4)), {"reduce_cmd": CMD.load_reduce}),
        (ArgumentError, "reduce_cmd is .*idle", Tile((8, 4)), {"reduce_cmd": CMD.idle}),
        (ShapeError, "dst", Tile((8, 5)), {}),
    ]
    for error, message, tile, arguments in cases:
        with pytest.raises(error, match=message):
            values(
                lambda o, a, g=arguments: nisa.tensor_scalar_cumulative(o, **({"src": a} | base | made(g))), [x], tile
            )
    values(lambda o, a: nisa.tensor_scalar_cumulative(o, a, **base), [x], Tile((8, 4), nl.int16))


def test_timing_only_runs_record_the_same():
    def body(o, r, a):
        nisa.exponential(o, a, reduce_res=r, reduce_cmd=CMD.reduce)
        nisa.tensor_scalar_reduce(o, a, nl.add, 1.0, nl.add, r)
        nisa.tensor_scalar_cumulative(o, a, nl.add, nl.add, 1.0)

    ran = compute(body, [normal(8, 4)], [Tile((8, 4)), Tile((8, 1))], numerics=False)
    assert [(r.op, len(r.writes)) for r in ran.stream] == [
        ("exponential", 2), ("tensor_scalar_reduce", 2), ("tensor_scalar_cumulative", 1),
    ]  # fmt: skip
