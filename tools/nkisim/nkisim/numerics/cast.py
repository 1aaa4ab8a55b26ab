"""Conversions between the stored types and fp32, in which every engine computes.

Rounding is to nearest even, once. Beyond the largest number fp16, e5m2 and e4m3 give infinity and e4m3fn, which has
none, gives NaN; beyond includes what would round to the next number. Other libraries saturate there; the hardware's
documentation does not say, and a NaN is seen where a saturated number is not. Integers saturate, and take NaN as 0.
e8m0 holds powers of two: numbers round to the nearest, and zero and negative ones become NaN.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

from nkisim.dtypes import DType, tfloat32

_E4M3FN = np.dtype(ml_dtypes.float8_e4m3fn)
_E4M3FN_OVERFLOW = 464
_TF32_DROPPED_BITS = 13
_TORCH: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(ml_dtypes.bfloat16): torch.bfloat16,
    np.dtype(np.float16): torch.float16,
    np.dtype(ml_dtypes.float8_e5m2): torch.float8_e5m2,
    _E4M3FN: torch.float8_e4m3fn,
}
"""Types that torch converts as ml_dtypes and numpy do, ten times faster; the tests compare all of their codes."""

SERIAL_ELEMENTS = 1 << 15
"""Beyond these torch starts threads, whose joining takes longer than the conversion, above all on a busy machine."""

_decoded: dict[np.dtype[Any], np.ndarray] = {}


def to_fp32(values: np.ndarray) -> np.ndarray:
    """Exact for every type of up to 24 significant bits; 32-bit integers are rounded to nearest even."""
    kind = values.dtype
    if kind == np.float32:
        return values
    if kind.itemsize == 1 and kind.kind not in "iub":
        return decoded_bytes(kind).take(values.view(np.uint8), mode="clip")
    if kind in _TORCH:
        converted = np.empty(values.shape, np.float32)
        _convert(_as_torch(converted), _as_torch(values))
        return converted
    return values.astype(np.float32)


def decoded_bytes(kind: np.dtype[Any]) -> np.ndarray:
    """fp32 value of each of the 256 codes of an 8-bit type."""
    table = _decoded.get(kind)
    if table is None:
        table = _decoded[kind] = np.arange(256, dtype=np.uint8).view(kind).astype(np.float32)
    return table


def store(target: np.ndarray, values: np.ndarray, dtype: DType) -> None:
    """Writes `values` into `target`, which holds `dtype`.

    Equal types are copied bit by bit and integers to integers exactly, saturating; anything else goes through fp32.
    """
    kind = target.dtype
    if kind == values.dtype and dtype is not tfloat32:
        np.copyto(target, values)
    elif kind.kind in "iu":
        _store_integers(target, values)
    elif kind.kind == "b":
        np.copyto(target, values != 0)
    else:
        _store_floats(target, to_fp32(values), dtype)


def _store_integers(target: np.ndarray, values: np.ndarray) -> None:
    limits = np.iinfo(target.dtype)
    if values.dtype.kind not in "iub":
        values = np.nan_to_num(np.rint(to_fp32(values).astype(np.float64)), nan=0.0)
    np.copyto(target, values.clip(limits.min, limits.max) if values.dtype.kind != "b" else values, casting="unsafe")


def _store_floats(target: np.ndarray, values: np.ndarray, dtype: DType) -> None:
    if dtype is tfloat32:
        np.copyto(target, round_to_tf32(values))
    elif target.dtype in _TORCH:
        _convert(_as_torch(target), _as_torch(values))
        if target.dtype == _E4M3FN:
            over = np.abs(values) > _E4M3FN_OVERFLOW
            if over.any():
                target[over] = np.copysign(np.float32(np.nan), values[over]).astype(_E4M3FN)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(target, values.astype(target.dtype))


def _convert(target: torch.Tensor, source: torch.Tensor) -> None:
    if target.ndim < 2 or target.numel() <= SERIAL_ELEMENTS:
        target.copy_(source)
        return
    rows = max(1, SERIAL_ELEMENTS * len(target) // target.numel())
    for start in range(0, len(target), rows):
        target[start : start + rows].copy_(source[start : start + rows])


def _as_torch(values: np.ndarray) -> torch.Tensor:
    """The array as a tensor that shares its memory; a copy where it may not be written."""
    if not values.flags.writeable:
        values = values.copy()
    kind = _TORCH.get(values.dtype)
    if kind is None:
        return torch.from_numpy(values)
    return torch.from_numpy(values.view(f"i{values.itemsize}")).view(kind)


def round_to_tf32(values: np.ndarray) -> np.ndarray:
    """fp32 rounded to a mantissa of 10 bits, to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    half = np.uint32((1 << (_TF32_DROPPED_BITS - 1)) - 1)
    odd = (bits >> np.uint32(_TF32_DROPPED_BITS)) & np.uint32(1)
    rounded = (bits + half + odd) & np.uint32(~((1 << _TF32_DROPPED_BITS) - 1) & 0xFFFFFFFF)
    return np.where(np.isfinite(values), rounded.view(np.float32), values)
