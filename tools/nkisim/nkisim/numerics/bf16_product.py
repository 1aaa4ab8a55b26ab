"""Products of MX operands in bf16 with fp32 sums, on CPUs with bf16 dot products: twice as fast as fp32, and exact.

An fp8 or fp4 number has at most 4 significant bits, and so has its product with a power of two: bf16 holds it. The
product of two bf16 numbers has at most 16 significant bits: fp32 holds it. What is left to round is the sum, in fp32
as before. Subnormal numbers, which these instructions take for zero, are kept out by `exact`.

torch offers bf16 products with fp32 results on the CPU only to its own operators, so this calls the block product
behind its attention kernels in the installed library. Where that is missing, `available()` is False.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common.tiling import round_up
from nkisim.dtypes import DType, float4_e2m1fn_x4, float8_e8m0fnu
from nkisim.numerics import cast, decode
from nkisim.numerics.mx import GROUP_PARTITIONS

_SYMBOL = "_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb"
"""at::native::cpublas::brgemm(M, N, K, lda, ldb, ldc, add_C, const BFloat16*, const BFloat16*, float*, is_vnni)."""
_RELEASE_SYMBOL = "_ZN2at6native7cpublas14brgemm_releaseEb"
_SMALLEST_EXPONENT = 81
"""e8m0 byte from which on every number of an operand is at least 2 ** -62, so that no product is subnormal."""

_ALL = slice(None)
_LIMITED = any(name in os.environ for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"))
"""Whether the instructions that oneDNN may use are limited from outside."""

_SLAB_WORDS = 1 << 20
_ALIGNMENT_WORDS = 16

_tables: dict[DType, np.ndarray] = {}
_slab = np.empty(0, np.uint32)


def exact(words: np.ndarray, exponents: np.ndarray) -> bool:
    """Whether bf16 arithmetic loses nothing: only blocks of zeros have scales below 2 ** -46."""
    low = exponents < _SMALLEST_EXPONENT
    if not low.any():
        return True
    blocks = words.reshape(len(exponents), GROUP_PARTITIONS, -1)
    return not blocks.transpose(0, 2, 1)[low].any()


def moving(words: np.ndarray, kind: DType, exponents: np.ndarray) -> np.ndarray:
    """Packed words [partitions, columns] and scales as pairs of bf16 numbers, uint32 [2 * partitions, columns].

    Pair `2 * partition + half` holds lanes `2 * half` and `2 * half + 1`. Empty where bf16 would not be exact.
    """
    if not exact(words, exponents):
        return np.empty((0, 0), np.uint32)
    partitions, columns = words.shape
    pairs = _decoded(_halves(words).transpose(0, 2, 1), kind)
    if (exponents != decode.NEUTRAL_SCALE).any():
        blocks = _as_bf16(pairs.reshape(len(exponents), 2 * GROUP_PARTITIONS, columns))
        _scale(blocks, _factors(exponents.repeat(2, axis=1))[:, None, :])
    return pairs.reshape(2 * partitions, columns)


def stationary(words: np.ndarray, kind: DType, exponents: np.ndarray) -> np.ndarray:
    """As `moving`, transposed: uint32 [columns, 2 * partitions]."""
    if not exact(words, exponents):
        return np.empty((0, 0), np.uint32)
    partitions, columns = words.shape
    pairs = _decoded(_halves(words).transpose(1, 0, 2), kind)
    if (exponents != decode.NEUTRAL_SCALE).any():
        blocks = _as_bf16(pairs.reshape(columns, len(exponents), 2 * GROUP_PARTITIONS))
        _scale(blocks, _factors(exponents.T)[:, :, None])
    return pairs.reshape(columns, 2 * partitions)


def _halves(words: np.ndarray) -> np.ndarray:
    """The two lower and the two upper lanes of each word: [partitions, columns, 2]."""
    return np.ascontiguousarray(words).view(f"u{words.itemsize // 2}").reshape(*words.shape, 2)


def _decoded(halves: np.ndarray, kind: DType) -> np.ndarray:
    pairs = _room(halves.shape)
    np.take(_table(kind), halves, out=pairs, mode="clip")
    return pairs


def _scale(numbers: torch.Tensor, factors: torch.Tensor) -> None:
    step = max(1, cast.SERIAL_ELEMENTS * len(numbers) // numbers.numel())
    for part, factor in zip(numbers.split(step), factors.split(step), strict=True):
        part.mul_(factor)


def _room(shape: tuple[int, ...]) -> np.ndarray:
    """Memory for an operand, uint32, in a slab that is freed with the last operand in it.

    numpy asks for huge pages for arrays of a slab's size. Small ones cost a third of the decoding.
    """
    global _slab
    size = prod(shape)
    if size > _slab.size:
        _slab = np.empty(max(size, _SLAB_WORDS), np.uint32)
    room, _slab = _slab[:size], _slab[round_up(size, _ALIGNMENT_WORDS) :]
    return room.reshape(shape)


def accumulate(left: np.ndarray, right: np.ndarray, target: np.ndarray, onto: bool, part: slice = _ALL) -> None:
    """`target = left @ right`, or `target +=` that.

    Args:
        left: [M, pairs] as `stationary` gives it; right: [pairs, N] as `moving` does.
        target: fp32 [M, N], written in place.
        onto: add to what is there.
        part: columns of the target; others are left alone.
    """
    right, target = right[:, part], target[:, part]
    if target.strides[1] != target.itemsize:
        total = np.empty(target.shape, np.float32)
        accumulate(left, right, total, False)
        np.add(target, total, out=target) if onto else np.copyto(target, total)
        return
    (rows, pairs), columns = left.shape, right.shape[1]
    _block_product(
        rows, columns, 2 * pairs, 2 * pairs, right.strides[0] // right.itemsize,
        target.strides[0] // target.itemsize, onto,
        left.ctypes.data, right.ctypes.data, target.ctypes.data, True,
    )  # fmt: skip
    _release(True)


def _table(kind: DType) -> np.ndarray:
    """The two bf16 numbers of each half of a packed word, as one uint32."""
    table = _tables.get(kind)
    if table is None:
        if kind is float4_e2m1fn_x4:
            numbers = decode.nibbles()
        else:
            assert kind.lane is not None
            codes = np.arange(1 << 16, dtype=np.uint16).view(np.uint8).reshape(-1, 2)
            numbers = cast.decoded_bytes(kind.lane.storage)[codes]
        bf16 = torch.from_numpy(numbers).bfloat16().view(torch.int16).numpy()
        table = _tables[kind] = np.ascontiguousarray(bf16).view(np.uint32)[:, 0]
    return table


def _as_bf16(pairs: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pairs.view(np.int16)).view(torch.bfloat16)


def _factors(exponents: np.ndarray) -> torch.Tensor:
    """Powers of two, which bf16 holds."""
    table = cast.decoded_bytes(float8_e8m0fnu.storage)
    return torch.from_numpy(table.take(exponents, mode="clip")).bfloat16()


def _find() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """The block product of the installed torch, where the CPU has the instructions and it computes what it should."""
    try:
        supported = torch.backends.mkldnn.is_available() and torch.cpu._is_avx512_bf16_supported()
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        product, release = getattr(library, _SYMBOL), getattr(library, _RELEASE_SYMBOL)
    except (AttributeError, OSError):
        return None
    size, address, flag = ctypes.c_int64, ctypes.c_void_p, ctypes.c_bool
    product.argtypes, product.restype = [size] * 6 + [flag, address, address, address, flag], None
    release.argtypes, release.restype = [flag], None
    return (product, release) if supported else None


_found = _find()
if _found is not None:
    _block_product, _release = _found


def available() -> bool:
    """Whether `accumulate` works here."""
    return _found is not None and torch.backends.mkldnn.enabled and not _LIMITED
