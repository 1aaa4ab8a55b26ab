"""Instructions with random operands, and what each has to do, from its documentation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fuzz import formats
from fuzz.oracle import Effect, Fault, Operand, Result, copied, exact, moved, within
from fuzz.session import Session, apart, writable
from nkisim.dtypes import ALL, DType

Array = np.ndarray
_FP32_ERROR = 2.0**-23
_BY_NAME = {str(dtype): dtype for dtype in ALL}
_UNINITIALIZED = Fault("UninitializedReadError")


def _floats_beside(session: Session) -> tuple[DType, ...]:
    """Types of results: those of arguments, and tf32."""
    return (*session.dtypes, _BY_NAME["tfloat32"])


def _missing(*operands: Operand) -> bool:
    return any(operand.unwritten().any() for operand in operands)


# Operators on fp64 numbers that fp32 holds: value, and where the value is not documented.


def _ordered(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], tuple[Array, Array]]:
    return lambda x, y: (np.asarray(function(x, y), np.float64), np.isnan(x) | np.isnan(y))


def _plain(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], tuple[Array, Array]]:
    return lambda x, y: (function(x, y), np.zeros(np.broadcast(x, y).shape, np.bool_))


def _extreme(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], tuple[Array, Array]]:
    """Of +0 and -0 either may come out."""
    return lambda x, y: (function(x, y), np.isnan(x) | np.isnan(y) | ((x == 0) & (y == 0)))


def _by_size(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], tuple[Array, Array]]:
    return lambda x, y: (
        np.where(function(np.abs(x), np.abs(y)), x, y),
        np.isnan(x) | np.isnan(y) | ((np.abs(x) == np.abs(y)) & (x != y)) | ((x == 0) & (y == 0)),
    )


BINARY: dict[str, Callable[[Array, Array], tuple[Array, Array]]] = {
    "add": _plain(lambda x, y: x + y),
    "subtract": _plain(lambda x, y: x - y),
    "multiply": _plain(lambda x, y: x * y),
    "maximum": _extreme(lambda x, y: np.where(x > y, x, y)),
    "minimum": _extreme(lambda x, y: np.where(x < y, x, y)),
    "equal": _ordered(lambda x, y: x == y),
    "not_equal": _ordered(lambda x, y: x != y),
    "greater": _ordered(lambda x, y: x > y),
    "greater_equal": _ordered(lambda x, y: x >= y),
    "less": _ordered(lambda x, y: x < y),
    "less_equal": _ordered(lambda x, y: x <= y),
    "logical_and": _ordered(lambda x, y: (x != 0) & (y != 0)),
    "logical_or": _ordered(lambda x, y: (x != 0) | (y != 0)),
    "logical_xor": _ordered(lambda x, y: (x != 0) ^ (y != 0)),
    "abs_max": _by_size(lambda x, y: x > y),
    "abs_min": _by_size(lambda x, y: x < y),
}
_ONLY_TRN3 = ("abs_max", "abs_min")
UNARY: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "square": lambda x: x * x,
    "relu": lambda x: np.where(np.isnan(x), x, np.where(x > 0, x, 0.0)),
    "reciprocal": lambda x: 1.0 / x,
}
BITS: dict[str, Callable[[Array, Array], Array]] = {
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | y,
    "bitwise_xor": lambda x, y: x ^ y,
    "left_shift": lambda x, y: x << y,
    "right_shift": lambda x, y: x >> y,
}
FUNCTIONS: dict[str, Callable[[float], float]] = {
    "copy": lambda x: x,
    "square": lambda x: x * x,
    "relu": lambda x: x if x > 0 else 0.0,
    "abs": abs,
    "sign": lambda x: float((x > 0) - (x < 0)),
    "exp": lambda x: math.exp(x) if x < 700 else math.inf,
    "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)) if x > -700 else 0.0,
    "erf": math.erf,
    "softplus": lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x))),
}
_RELATIVE = 2.0**-19
_TINY = 2.0**-126


def _operators(session: Session) -> list[str]:
    return [name for name in BINARY if session.target != "trn2" or name not in _ONLY_TRN3]


def _applied(name: str, x: Array, y: Array) -> tuple[Array, Array]:
    with np.errstate(all="ignore"):
        values, free = BINARY[name](x, y)
        return formats.fp32(values), free


def dma_copy(session: Session) -> None:
    """HBM to and from SBUF, in any shapes."""
    if session.chance(2):
        src = session.source_operand(session.dtypes, ("sbuf",))
    else:
        src = session.views_of(session.sample(t for t in session.tensors.values() if t.buffer == "shared_hbm"), 3)
    size = src.model.array.size
    if session.chance(2):
        shape = tuple(int(n) for n in src.shape) if session.chance(2) else (size,)
        dst = session.tile(shape, session.sample(session.dtypes), session.sample(("shared_hbm", "private_hbm")))
    else:
        partitions = session.sample([p for p in (1, 2, 4, 32, 128) if size % p == 0])
        dst = session.result(partitions, size // partitions, session.dtypes, ("sbuf",))
    if apart(dst, src):
        session.call("dma_copy", lambda: copied(dst, src, through_fp32=False), dst=dst, src=src)


def tensor_copy(session: Session) -> None:
    """On any engine."""
    src = session.source_operand(session.dtypes)
    dst = session.result(src.shape[0], src.elements, _floats_beside(session))
    if not apart(dst, src):
        return
    engines = ["vector", "scalar", "unknown"]
    if "psum" not in (dst.tensor.buffer, src.tensor.buffer):
        engines.append("gpsimd")
    session.call(
        "tensor_copy",
        lambda: copied(dst, src, through_fp32=True),
        dst=dst,
        src=src,
        engine=f"nisa.engine.{session.sample(engines)}",
    )


def memset(session: Session) -> None:
    """A constant that the type holds."""
    dst = session.result(
        session.sample((1, 3, 32, 128)), session.integer(1, 16), (*_floats_beside(session), _BY_NAME["bool"])
    )
    if dst.dtype in formats.INTEGERS:
        value: float = session.integer(*formats.limits(dst.dtype))
    else:
        value = session.sample((0, 1, -1, 0.1, -2.5, 1000.7, 3e5, 448.0, 1e-7))

    def effect() -> Effect:
        if dst.dtype in formats.INTEGERS:
            return [Result(dst, bits=np.full(dst.shape, value, dst.dtype.storage))]
        return [exact(dst, formats.fp32(np.full(dst.shape, float(value))))]

    session.call("memset", effect, dst=dst, value=repr(value))


def tensor_tensor(session: Session) -> None:
    """Arithmetic in fp32, or exactly for 32-bit integers on GpSimd."""
    data1 = session.source_operand(session.dtypes)
    data2 = session.like(data1, session.dtypes)
    dst = session.result(data1.shape[0], data1.elements, _floats_beside(session))
    if not (apart(dst, data1) and apart(dst, data2)):
        return
    op = session.sample(_operators(session))
    wide = all(o.dtype in ("int32", "uint32") for o in (dst, data1, data2))
    in_psum = "psum" in (dst.tensor.buffer, data1.tensor.buffer, data2.tensor.buffer)
    asked = session.sample(("unknown", "vector") if in_psum else ("unknown", "vector", "gpsimd"))
    wraps = wide and (asked == "gpsimd" or (asked == "unknown" and not in_psum))

    def effect() -> Effect:
        if _missing(data1, data2):
            return _UNINITIALIZED
        if wraps:
            return [Result(dst, bits=_wrapped(op, data1.integers(), data2.integers(), dst.dtype))]
        values, free = _applied(op, data1.rows(), data2.rows())
        return [exact(dst, values, free)]

    session.call(
        "tensor_tensor", effect, dst=dst, data1=data1, data2=data2, op=f"nl.{op}", engine=f"nisa.engine.{asked}"
    )


def _wrapped(op: str, x: Array, y: Array, dtype: DType) -> Array:
    """32-bit integers, modulo 2^32."""
    with np.errstate(all="ignore"):
        if op == "multiply":
            values = (x.astype(np.uint64) * y.astype(np.uint64)).astype(np.int64)
        elif op in ("add", "subtract"):
            values = x + y if op == "add" else x - y
        elif op in ("maximum", "minimum"):
            values = np.maximum(x, y) if op == "maximum" else np.minimum(x, y)
        elif op in ("abs_max", "abs_min"):
            values = np.where(np.abs(x) > np.abs(y) if op == "abs_max" else np.abs(x) < np.abs(y), x, y)
        else:
            values = BINARY[op](x.astype(np.float64), y.astype(np.float64))[0].astype(np.int64)
    return (values & 0xFFFFFFFF).astype(np.uint32).view(dtype.storage)


def tensor_tensor_bits(session: Session) -> None:
    """Bit operators on integers of one width."""
    width = session.sample((1, 2, 4))
    kinds = tuple(d for d in session.dtypes if d in formats.INTEGERS and d.itemsize == width)
    data1 = session.source_operand(kinds)
    data2 = session.like(data1, kinds)
    dst = session.result(data1.shape[0], data1.elements, kinds)
    if not (apart(dst, data1) and apart(dst, data2)):
        return
    op = session.sample(BITS)

    def effect() -> Effect:
        if _missing(data1, data2):
            return _UNINITIALIZED
        x, y = (np.array(o.model.array).reshape(dst.shape).view(f"u{width}") for o in (data1, data2))
        free = y >= 8 * width if "shift" in op else None
        with np.errstate(all="ignore"):
            return [Result(dst, bits=BITS[op](x, y).view(dst.dtype.storage), free=free)]

    session.call("tensor_tensor", effect, dst=dst, data1=data1, data2=data2, op=f"nl.{op}")


def _scalar(session: Session, partitions: int) -> tuple[Any, Callable[[], Array], list[Operand]]:
    """A number, or an fp32 tile (partitions, 1): its source, its values (partitions or 1, 1), and the tile if any."""
    if session.chance(2):
        tile = session.loaded(partitions, 1, _BY_NAME["float32"])
        return tile, tile.rows, [tile]
    number = session.sample((0.0, 1.0, -1.0, 0.5, 2.0, -3.25, 1e-3, 0.1, 7, 300))
    return repr(number), lambda: formats.fp32(np.array([[float(number)]])), []


def _stage(
    session: Session, index: int, partitions: int
) -> tuple[dict[str, Any], Callable[[Array], tuple[Array, Array]], list[Operand]]:
    """An operator with its operand: parameters, function of the values so far, tiles that it reads."""
    if session.chance(4):
        name = session.sample(UNARY)

        def single(x: Array) -> tuple[Array, Array]:
            with np.errstate(all="ignore"):
                return formats.fp32(UNARY[name](x)), np.zeros(x.shape, np.bool_)

        return {f"op{index}": f"nl.{name}", f"operand{index}": session.sample(("None", "0"))}, single, []
    name = session.sample(_operators(session))
    shown, values, tiles = _scalar(session, partitions)
    reverse = session.chance(3)

    def pair(x: Array) -> tuple[Array, Array]:
        return _applied(name, values(), x) if reverse else _applied(name, x, values())

    return {f"op{index}": f"nl.{name}", f"operand{index}": shown, f"reverse{index}": repr(reverse)}, pair, tiles


def tensor_scalar(session: Session) -> None:
    """One or two stages."""
    data = session.source_operand(session.dtypes)
    parameters, first, tiles = _stage(session, 0, data.shape[0])
    stages = [first]
    if session.chance(2):
        more, second, others = _stage(session, 1, data.shape[0])
        parameters |= more
        stages.append(second)
        tiles += others
    dst = session.result(data.shape[0], data.elements, _floats_beside(session))
    if not all(apart(dst, o) for o in (data, *tiles)):
        return

    def effect() -> Effect:
        if _missing(data, *tiles):
            return _UNINITIALIZED
        values, free = data.rows(), np.zeros((data.shape[0], data.elements), np.bool_)
        for stage in stages:
            values, undocumented = stage(values)
            free = free | undocumented
        return [exact(dst, values, free)]

    session.call("tensor_scalar", effect, dst=dst, data=data, **parameters)


def tensor_scalar_bits(session: Session) -> None:
    """A bit operator with an integer."""
    kinds = tuple(d for d in session.dtypes if d in formats.INTEGERS)
    data = session.source_operand(kinds)
    bits = 8 * data.dtype.itemsize
    dst = session.result(data.shape[0], data.elements, tuple(d for d in kinds if d.itemsize == data.dtype.itemsize))
    if not apart(dst, data):
        return
    op, number = session.sample(BITS), session.integer(0, bits - 1)

    def effect() -> Effect:
        if _missing(data):
            return _UNINITIALIZED
        x = np.array(data.model.array).reshape(dst.shape).view(f"u{data.dtype.itemsize}")
        return [Result(dst, bits=BITS[op](x, x.dtype.type(number)).view(dst.dtype.storage))]

    session.call("tensor_scalar", effect, dst=dst, data=data, op0=f"nl.{op}", operand0=repr(number))


def scalar_tensor_tensor(session: Session) -> None:
    """(data op0 operand0) op1 operand1."""
    data = session.source_operand(session.dtypes)
    other = session.like(data, session.dtypes)
    dst = session.result(data.shape[0], data.elements, _floats_beside(session))
    shown, values, tiles = _scalar(session, data.shape[0])
    if not all(apart(dst, o) for o in (data, other, *tiles)):
        return
    op0, op1 = session.sample(_operators(session)), session.sample(_operators(session))
    swap0, swap1 = session.chance(3), session.chance(3)

    def effect() -> Effect:
        if _missing(data, other, *tiles):
            return _UNINITIALIZED
        x, y, z = data.rows(), values(), other.rows()
        inner, free = _applied(op0, y, x) if swap0 else _applied(op0, x, y)
        outer, more = _applied(op1, z, inner) if swap1 else _applied(op1, inner, z)
        return [exact(dst, outer, free | more)]

    session.call(
        "scalar_tensor_tensor", effect, dst=dst, data=data, op0=f"nl.{op0}", operand0=shown, op1=f"nl.{op1}",
        operand1=other, reverse0=repr(swap0), reverse1=repr(swap1),
    )  # fmt: skip


def reciprocal(session: Session) -> None:
    """1 / data."""
    data = session.source_operand(session.dtypes)
    dst = session.result(data.shape[0], data.elements, _floats_beside(session))
    if not apart(dst, data):
        return

    def effect() -> Effect:
        if _missing(data):
            return _UNINITIALIZED
        with np.errstate(all="ignore"):
            return [exact(dst, formats.fp32(1.0 / data.rows()))]

    session.call("reciprocal", effect, dst=dst, data=data)


def activation(session: Session) -> None:
    """A function of data * scale + bias."""
    data = session.source_operand(session.dtypes)
    dst = session.result(data.shape[0], data.elements, _floats_beside(session))
    scale, scales, tiles = _scalar(session, data.shape[0])
    bias, biases, others = _scalar(session, data.shape[0])
    if not all(apart(dst, o) for o in (data, *tiles, *others)):
        return
    op = session.sample(FUNCTIONS)

    def effect() -> Effect:
        if _missing(data, *tiles, *others):
            return _UNINITIALIZED
        with np.errstate(all="ignore"):
            inputs = formats.fp32(formats.fp32(data.rows() * scales()) + biases())
            free = ~np.isfinite(inputs)
            safe = np.where(free, 0.0, inputs)
            values = np.array([FUNCTIONS[op](float(x)) for x in safe.reshape(-1)]).reshape(safe.shape)
            width = (
                np.zeros_like(values) if op in ("copy", "relu", "abs", "sign") else np.abs(values) * _RELATIVE + _TINY
            )
            low, high = values - width, values + width
        return [Result(dst, np.where(np.isnan(low), values, low), np.where(np.isnan(high), values, high), free=free)]

    session.call("activation", effect, dst=dst, op=f"nl.{op}", data=data, bias=bias, scale=scale)


def tensor_reduce(session: Session) -> None:
    """The last free dimensions."""
    op = session.sample(
        ("add", "maximum", "minimum", "multiply", "subtract", "bitwise_and", "bitwise_or", "logical_or")
    )
    bitwise = op in BITS
    kinds = tuple(d for d in session.dtypes if d in formats.INTEGERS) if bitwise else session.dtypes
    data = session.source_operand(kinds)
    rank = len(data.shape)
    first = session.integer(1, rank - 1)
    left = int(np.prod(data.shape[1:first]))
    outputs = tuple(d for d in kinds if d.itemsize == data.dtype.itemsize) if bitwise else _floats_beside(session)
    dst = session.result(data.shape[0], left, outputs)
    if not apart(dst, data):
        return
    negate = not bitwise and session.chance(3)
    axis = tuple(range(first, rank)) if session.chance(2) else tuple(range(first - rank, 0))

    def effect() -> Effect:
        if _missing(data):
            return _UNINITIALIZED
        groups = (data.shape[0], left, -1)
        if bitwise:
            bits = np.array(data.model.array).reshape(groups).view(f"u{data.dtype.itemsize}")
            reduced = np.bitwise_and.reduce(bits, axis=2) if op == "bitwise_and" else np.bitwise_or.reduce(bits, axis=2)
            return [Result(dst, bits=reduced.view(dst.dtype.storage))]
        return [_reduced(dst, op, data.values().reshape(groups), -1.0 if negate else 1.0)]

    session.call("tensor_reduce", effect, dst=dst, op=f"nl.{op}", data=data, axis=repr(axis), negate=repr(negate))


def _reduced(dst: Operand, op: str, values: Array, sign: float) -> Result:
    count = values.shape[2]
    free = ~np.isfinite(values).all(2)
    with np.errstate(all="ignore"):
        if op in ("maximum", "minimum"):
            found = values.max(2) if op == "maximum" else values.min(2)
            return exact(dst, sign * found, free | (found == 0))
        if op == "logical_or":
            return exact(dst, sign * (values != 0).any(2), free)
        if op == "multiply":
            found = values.prod(2)
            sizes = np.cumprod(np.abs(values), axis=2)
            free |= (sizes.max(2) > 1e37) | ((sizes > 0).all(2) & (sizes.min(2) < 1e-35))
            return within(dst, sign * found, np.abs(found) * count * _FP32_ERROR, free)
        found = values.sum(2) if op == "add" else 2 * values[:, :, 0] - values.sum(2)
        sizes = np.abs(values).sum(2)
        return within(dst, sign * found, sizes * count * _FP32_ERROR, free | (sizes > 1e37))


def max8(session: Session) -> None:
    """The eight largest of each partition."""
    partitions, elements = session.sample((1, 4, 33, 128)), session.integer(8, 24)
    src = session.loaded(partitions, elements, session.sample(session.dtypes), dims=1)
    dst = session.tile((partitions, 8), session.sample(session.dtypes), "sbuf")

    def effect() -> Effect:
        rows = src.rows()
        found = -np.sort(-rows, axis=1)[:, :8]
        free = np.isnan(rows).any(1)[:, None] | (found == 0)
        return [exact(dst, found, free)]

    session.call("max8", effect, dst=dst, src=src)


def tensor_partition_reduce(session: Session) -> None:
    """Across partitions, on GpSimd."""
    op = session.sample(("add", "maximum"))
    data = session.source_operand(session.dtypes, ("sbuf",))
    dst = session.result(1, data.elements, _floats_beside(session), ("sbuf",))
    if not apart(dst, data):
        return

    def effect() -> Effect:
        if _missing(data):
            return _UNINITIALIZED
        return [_reduced(dst, op, data.rows().T[None], 1.0)]

    session.call("tensor_partition_reduce", effect, dst=dst, op=f"nl.{op}", data=data)


def _scan(op: str, values: Array, register: Array, swapped: bool) -> tuple[Array, Array]:
    return _applied(op, values, register) if swapped else _applied(op, register, values)


def tensor_tensor_scan(session: Session) -> None:
    """r = (data0 op0 r) op1 data1."""
    data0 = session.source_operand(session.dtypes)
    data1 = session.like(data0, session.dtypes)
    dst = session.result(data0.shape[0], data0.elements, _floats_beside(session))
    shown, initial, tiles = _scalar(session, data0.shape[0])
    if not all(apart(dst, o) for o in (data0, data1, *tiles)):
        return
    op0, op1 = (session.sample(("add", "subtract", "multiply", "maximum", "minimum")) for _ in range(2))

    def effect() -> Effect:
        if _missing(data0, data1, *tiles):
            return _UNINITIALIZED
        x, y = data0.rows(), data1.rows()
        register = np.broadcast_to(initial(), (x.shape[0], 1))[:, 0]
        free = np.zeros(x.shape[0], np.bool_)
        columns, unknown = [], []
        for column in range(x.shape[1]):
            inner, first = _applied(op0, x[:, column], register)
            register, second = _applied(op1, inner, y[:, column])
            free = free | first | second
            columns.append(register)
            unknown.append(free)
        return [exact(dst, np.stack(columns, 1), np.stack(unknown, 1))]

    session.call(
        "tensor_tensor_scan", effect, dst=dst, data0=data0, data1=data1, initial=shown, op0=f"nl.{op0}", op1=f"nl.{op1}"
    )


def nc_matmul(session: Session) -> None:
    """Products, also accumulating."""
    if not session.psum_left():
        return
    contraction, rows = session.sample((1, 3, 32, 64, 100, 128)), session.integer(1, 24)
    columns = session.integer(1, 24)
    narrow = [d for d in session.dtypes if d in formats.FLOATS and d != "float32"]
    kinds = [(a, b) for a in narrow for b in narrow if {a, b} != {"float8_e4m3", "float8_e4m3fn"}]
    left_kind, right_kind = session.sample([*kinds, (_BY_NAME["float32"], _BY_NAME["float32"])])
    stationary = session.loaded(contraction, rows, left_kind)
    moving = session.loaded(contraction, columns, right_kind)
    accepted = ["float32"] if session.target == "trn2" else ["float32", "bfloat16"]
    dst = session.result(rows, columns, tuple(_BY_NAME[n] for n in accepted), ("psum",))
    accumulate = session.sample((None, None, False, True))
    foreign = session.target == "trn2" and dst.tensor.written.any() and accumulate is not False
    if foreign:
        return

    def effect() -> Effect:
        unwritten = dst.unwritten()
        if accumulate is not False and unwritten.any() and (accumulate or not unwritten.all()):
            return Fault("AccumulationError")
        x, y = stationary.rows(), moving.rows()
        with np.errstate(all="ignore"):
            product, sizes = x.T @ y, np.abs(x).T @ np.abs(y)
        if accumulate is not False and not unwritten.any():
            with np.errstate(all="ignore"):
                product, sizes = product + dst.rows(), sizes + np.abs(dst.rows())
        return [within(dst, product, sizes * (contraction + 2) * _FP32_ERROR, ~np.isfinite(sizes) | (sizes > 1e37))]

    session.call("nc_matmul", effect, dst=dst, stationary=stationary, moving=moving, accumulate=repr(accumulate))


def nc_transpose(session: Session) -> None:
    """Bit by bit, on either engine."""
    data = session.source_operand(session.dtypes, ("sbuf",))
    rows, columns = data.shape[0], data.elements
    on_tensor = session.chance(2) and session.psum_left() and data.dtype.itemsize > 1 and columns <= 128
    if not on_tensor and (rows > 32 or columns > 32):
        return
    dst = session.result(columns, rows, (data.dtype,), ("psum",) if on_tensor else ("sbuf",))
    if not apart(dst, data):
        return

    def effect() -> Effect:
        flat = np.array(data.model.array).reshape(rows, columns)
        return moved(dst, data, flat.T.copy(), data.unwritten().reshape(rows, columns).T)

    engine = "tensor" if on_tensor else "vector"
    session.call("nc_transpose", effect, dst=dst, data=data, engine=f"nisa.engine.{engine}")


def iota(session: Session) -> None:
    """An affine pattern."""
    sizes = [session.integer(1, 4) for _ in range(session.integer(1, 4))]
    pattern = [[session.integer(-3, 5), size] for size in sizes]
    partitions = session.sample((1, 4, 32, 128))
    kinds = tuple(_BY_NAME[n] for n in ("int32", "float32", "bfloat16"))
    dst = session.result(partitions, int(np.prod(sizes)), kinds, ("sbuf",))
    offset, multiplier = session.integer(-20, 20), session.integer(-3, 9)

    def effect() -> Effect:
        return [exact(dst, _affine(pattern, offset, multiplier, partitions).astype(np.float64))]

    session.call(
        "iota", effect, dst=dst, pattern=repr(pattern), offset=repr(offset), channel_multiplier=repr(multiplier)
    )


def _affine(pattern: list[list[int]], offset: int, multiplier: int, partitions: int) -> Array:
    values = np.arange(partitions)[:, None] * multiplier + offset
    for step, size in pattern:
        values = (values[:, :, None] + np.arange(size) * step).reshape(partitions, -1)
    return values


def affine_select(session: Session) -> None:
    """Elements chosen by position."""
    data = session.source_operand(session.dtypes, ("sbuf",))
    dst = session.result(data.shape[0], data.elements, (*session.dtypes,), ("sbuf",))
    if not apart(dst, data):
        return
    op = session.sample(("equal", "not_equal", "greater", "greater_equal", "less", "less_equal"))
    pattern, offset, multiplier = (
        [[session.integer(-2, 3), data.elements]],
        session.integer(-9, 9),
        session.integer(-2, 2),
    )
    fill = session.sample((0, 1, 2.5, -1))

    def effect() -> Effect:
        places = _affine(pattern, offset, multiplier, data.shape[0]).astype(np.float64)
        chosen = BINARY[op](places, np.zeros_like(places))[0] != 0
        if (data.unwritten().reshape(chosen.shape) & chosen).any():
            return _UNINITIALIZED
        other = formats.fp32(np.full(chosen.shape, float(fill)))
        values = np.where(chosen, data.rows(), other)
        if dst.dtype is not data.dtype:
            return [exact(dst, values)]
        wide = dst.dtype in ("int32", "uint32")
        return [exact(dst, values, chosen if wide else None)]

    session.call(
        "affine_select", effect, dst=dst, pattern=repr(pattern), channel_multiplier=repr(multiplier),
        on_true_tile=data, on_false_value=repr(fill), cmp_op=f"nl.{op}", offset=repr(offset),
    )  # fmt: skip


def tensor_copy_predicated(session: Session) -> None:
    """A copy where a predicate holds."""
    dst = session.source_operand(session.dtypes)
    if not writable(dst):
        return
    predicate = session.like(dst, tuple(_BY_NAME[n] for n in ("uint8", "uint16", "uint32")))
    src = session.like(dst, (dst.dtype,))
    if not (apart(dst, src) and apart(dst, predicate)):
        return
    reverse = session.chance(2)

    def effect() -> Effect:
        if _missing(predicate):
            return _UNINITIALIZED
        chosen = (np.array(predicate.model.array).reshape(dst.shape) != 0) != reverse
        if (src.unwritten().reshape(dst.shape) & chosen).any():
            return _UNINITIALIZED
        bits = np.array(src.model.array).reshape(dst.shape)
        return [Result(dst, bits=bits, kept=~chosen)]

    session.call("tensor_copy_predicated", effect, dst=dst, src=src, predicate=predicate, reverse_pred=repr(reverse))


def gather(session: Session) -> None:
    """Rows of a table in HBM, chosen by an index tile."""
    count, width = session.sample((1, 3, 8, 32)), session.integer(1, 12)
    table = session.part_of(f"x_{session.sample(session.dtypes)}", session.integer(0, 100), 8 * width)
    index = session.tile((count, 1), _BY_NAME["int32"], "sbuf")
    numbers = session.part_of("x_rows", session.integer(0, 100), count)
    session.call("dma_copy", lambda: copied(index, numbers, through_fp32=False), dst=index, src=numbers)
    dst = session.result(count, width, (table.dtype,), ("sbuf",))

    def effect() -> Effect:
        rows = np.array(table.model.array).reshape(8, width)
        chosen = rows[index.integers()[:, 0]]
        return [Result(dst, bits=chosen.reshape(dst.shape))]

    session.call(
        "dma_copy", effect, dst=dst, src=f"{table.source}.reshape((8, {width})).vector_select(0, {index.source})"
    )


def scatter(session: Session) -> None:
    """Rows of a table in HBM, written by an index tile; of equal ones the last stays."""
    count, width = session.sample((1, 3, 8, 32)), session.integer(1, 12)
    src = session.loaded(count, width, session.sample(session.dtypes))
    table = session.tile((8, width), src.dtype, "private_hbm")
    index = session.tile((count, 1), _BY_NAME["int32"], "sbuf")
    numbers = session.part_of("x_rows", session.integer(0, 100), count)
    session.call("dma_copy", lambda: copied(index, numbers, through_fp32=False), dst=index, src=numbers)

    def effect() -> Effect:
        bits, kept = np.array(table.model.array), np.ones(table.shape, np.bool_)
        for row, values in zip(index.integers()[:, 0], np.array(src.model.array).reshape(count, width), strict=True):
            bits[row], kept[row] = values, False
        return [Result(table, bits=bits, kept=kept)]

    session.call("dma_copy", effect, dst=f"{table.source}.vector_select(0, {index.source})", src=src)


def at_register(session: Session) -> None:
    """A copy from a place that a register holds."""
    src = session.source_operand(session.dtypes)
    dims = [d for d, n in enumerate(src.shape) if d and src.model.array.strides[d]]
    if not dims:
        return
    dim = session.sample(dims)
    position = session.integer(0, src.shape[dim] - 1)
    chosen = src.model.array.take(position, axis=dim)
    dst = session.result(src.shape[0], chosen.size // src.shape[0], (src.dtype,))
    if not apart(dst, src):
        return

    def effect() -> Effect:
        unwritten = src.unwritten().take(position, axis=dim)
        return moved(
            dst,
            src,
            np.array(src.model.array.take(position, axis=dim)).reshape(dst.shape),
            unwritten.reshape(dst.shape),
        )

    session.call("tensor_copy", effect, dst=dst, src=f"{src.source}.select({dim}, nisa.register_alloc({position}))")


INSTRUCTIONS: tuple[Callable[[Session], None], ...] = (
    activation, affine_select, at_register, dma_copy, gather, iota, max8, memset, nc_matmul, nc_transpose, reciprocal,
    scalar_tensor_tensor, scatter, tensor_copy, tensor_copy_predicated, tensor_partition_reduce, tensor_reduce,
    tensor_scalar, tensor_scalar_bits, tensor_tensor, tensor_tensor_bits, tensor_tensor_scan,
)  # fmt: skip
