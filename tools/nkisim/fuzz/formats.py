"""Rounding to the types of NKI, written from their definitions on fp64 numbers.

Independent of the simulator's casts, which use other packages. A number is a multiple of a power of two that its
exponent decides; ties go to the even multiple.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nkisim.dtypes import DType


class Float(NamedTuple):
    """A binary floating-point format.

    Attributes:
        mantissa_bits: stored ones.
        least_exponent: of normal numbers.
        largest: finite number.
        has_inf: whether it overflows to infinity; else to NaN.
    """

    mantissa_bits: int
    least_exponent: int
    largest: float
    has_inf: bool = True


FLOATS = {
    "float32": Float(23, -126, (2 - 2.0**-23) * 2.0**127),
    "tfloat32": Float(10, -126, (2 - 2.0**-10) * 2.0**127),
    "bfloat16": Float(7, -126, (2 - 2.0**-7) * 2.0**127),
    "float16": Float(10, -14, 65504.0),
    "float8_e5m2": Float(2, -14, 57344.0),
    "float8_e4m3": Float(3, -6, 240.0),
    "float8_e4m3fn": Float(3, -6, 448.0, has_inf=False),
}
PACKED = {"float8_e4m3fn_x4": "float8_e4m3fn", "float8_e5m2_x4": "float8_e5m2", "float4_e2m1fn_x4": "float4_e2m1fn"}
INTEGERS = {"int8": (8, True), "int16": (16, True), "int32": (32, True), "uint8": (8, False), "uint16": (16, False),
            "uint32": (32, False)}  # fmt: skip


FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of e2m1 by code."""


def of_codes(codes: np.ndarray, dtype: str) -> np.ndarray:
    """What 8-bit codes of a floating-point type stand for."""
    kind = FLOATS[dtype]
    bits = kind.mantissa_bits
    exponents, mantissas = (codes & 0x7F) >> bits, (codes & ((1 << bits) - 1)).astype(np.float64)
    magnitudes = np.where(
        exponents == 0,
        np.ldexp(mantissas, kind.least_exponent - bits),
        np.ldexp(mantissas + (1 << bits), exponents.astype(np.int32) - 1 + kind.least_exponent - bits),
    )
    if kind.has_inf:
        top = exponents == 0x7F >> bits
        magnitudes = np.where(top, np.where(mantissas == 0, np.inf, np.nan), magnitudes)
    else:
        magnitudes = np.where(codes & 0x7F == 0x7F, np.nan, magnitudes)
    return np.where(codes & 0x80, -magnitudes, magnitudes)


def codes_of(values: np.ndarray, dtype: str) -> np.ndarray:
    """8-bit codes of numbers that a floating-point type holds."""
    positive = of_codes(np.arange(128, dtype=np.uint8), dtype)
    finite = positive[np.isfinite(positive)]
    found = np.searchsorted(finite, np.abs(values)).astype(np.uint8)
    return np.where(np.signbit(values), found | 0x80, found).astype(np.uint8)


def of_e8m0(codes: np.ndarray) -> np.ndarray:
    """Block scales: powers of two, and NaN."""
    return np.where(codes == 255, np.nan, np.ldexp(1.0, codes.astype(np.int32) - 127))


def limits(dtype: DType) -> tuple[int, int]:
    """Least and greatest integer."""
    bits, signed = INTEGERS[dtype]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """fp64 numbers to the nearest ones of a floating-point type, as fp64."""
    kind = FLOATS[dtype]
    with np.errstate(all="ignore"):
        _, exponents = np.frexp(values)
        exponents = np.maximum(exponents - 1, kind.least_exponent)
        step = np.ldexp(1.0, exponents - kind.mantissa_bits)
        nearest = np.where(np.isfinite(values), np.rint(values / step) * step, values)
        over = np.abs(nearest) > kind.largest
        beyond = np.copysign(np.inf, nearest) if kind.has_inf else np.full_like(nearest, np.nan)
    return np.where(over, beyond, nearest)


def fp32(values: np.ndarray) -> np.ndarray:
    """fp64 numbers rounded to fp32, as fp64."""
    return rounded(values, "float32")


def converted(values: np.ndarray, dtype: DType) -> np.ndarray:
    """fp32 numbers (as fp64) as a type holds them, as fp64: integers saturate, NaN becomes 0 there."""
    if dtype in FLOATS:
        return rounded(values, dtype)
    if dtype == "bool":
        return (values != 0).astype(np.float64)
    low, high = limits(dtype)
    return np.clip(np.rint(np.where(np.isnan(values), 0.0, values)), low, high)


def decoded(array: np.ndarray) -> np.ndarray:
    """Stored elements as fp64, exactly."""
    return array.astype(np.float64)
