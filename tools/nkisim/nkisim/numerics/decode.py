"""Packed MX operands as fp32 matrices, and a bounded cache of them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from nkisim.dtypes import DType, float4_e2m1fn_x4, float8_e8m0fnu
from nkisim.numerics import cast
from nkisim.numerics.mx import GROUP_PARTITIONS, LANES

QUADRANT = 32
NEUTRAL_SCALE = 127


def nibbles() -> np.ndarray:
    """fp32 values of the two fp4 numbers in each byte, the low one first: [256, 2]."""
    codes = np.arange(256, dtype=np.uint8)
    return np.stack([codes & 0xF, codes >> 4], axis=-1).view(ml_dtypes.float4_e2m1fn).astype(np.float32)


_NIBBLES = nibbles()


def lanes(words: np.ndarray, kind: DType) -> np.ndarray:
    """Packed words [partitions, free] as fp32 [4 * partitions, free]: row `lane * partitions + partition`."""
    partitions, free = words.shape
    if words.strides[1] != words.itemsize:
        words = np.ascontiguousarray(words)
    data = words.view(np.uint8).reshape(partitions, free, words.itemsize)
    decoded = np.empty((LANES, partitions, free), np.float32)
    if kind is float4_e2m1fn_x4:
        for byte in range(2):
            pair = _NIBBLES[data[:, :, byte]]
            decoded[2 * byte], decoded[2 * byte + 1] = pair[..., 0], pair[..., 1]
    else:
        assert kind.lane is not None
        table = cast.decoded_bytes(kind.lane.storage)
        for lane in range(LANES):
            np.take(table, data[:, :, lane], out=decoded[lane], mode="clip")
    return decoded.reshape(LANES * partitions, free)


def matrix(values: np.ndarray, halves: int) -> np.ndarray:
    """An operand [partitions, free...] of one element a word, as fp32 [halves * partitions, free / halves].

    Row `half * partitions + partition`: the first free dimension, of size `halves`, contracts as well.
    """
    partitions = len(values)
    flat = cast.to_fp32(values).reshape(partitions, halves, -1)
    return np.ascontiguousarray(flat.transpose(1, 0, 2)).reshape(halves * partitions, -1)


def scaled(words: np.ndarray, kind: DType, exponents: np.ndarray) -> np.ndarray:
    """Packed words [partitions, free] with their scales as an fp32 matrix [4 * partitions, free]."""
    return apply_scales(lanes(words, kind), exponents)


def apply_scales(decoded: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Multiplies each group of 8 partitions x 4 lanes by 2 ** (exponent - 127).

    Args:
        decoded: fp32 [4 * partitions, free] as `lanes` gives it.
        exponents: e8m0 bytes [partitions / 8, free]; 255 is NaN.
    """
    if (exponents == NEUTRAL_SCALE).all():
        return decoded
    groups, free = exponents.shape
    factors = cast.decoded_bytes(float8_e8m0fnu.storage).take(exponents, mode="clip")
    shaped = decoded.reshape(LANES, groups, GROUP_PARTITIONS, free)
    with np.errstate(over="ignore", invalid="ignore"):
        shaped *= factors[None, :, None, :]
    return decoded


class DecodeCache:
    """Remembers decoded operands, least recently used out first, within a number of bytes.

    An operand lives in the table of the storage it was decoded from, so that it goes when that is overwritten or
    freed; the cache only orders and bounds them.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._order: OrderedDict[int, tuple[dict[Any, Decoded], Any]] = OrderedDict()
        self._tickets = 0

    def get(self, table: dict[Any, Decoded], key: Any, scales: np.ndarray | None = None) -> np.ndarray | None:
        """The operand kept under `key`, if it still is, and was decoded with these very scales."""
        kept = table.get(key)
        if kept is None or kept.scales is not scales:
            return None
        self._order.move_to_end(kept.ticket)
        return kept.operand

    def put(self, table: dict[Any, Decoded], key: Any, operand: np.ndarray, scales: np.ndarray | None = None) -> None:
        """Keeps an operand that fits the limit."""
        if operand.nbytes > self._limit_bytes:
            return
        if key in table:
            table.pop(key).forget()
        self._tickets += 1
        table[key] = Decoded(operand, self._tickets, self, scales)
        self._order[self._tickets] = (table, key)
        self._held_bytes += operand.nbytes
        while self._held_bytes > self._limit_bytes:
            oldest, old_key = next(iter(self._order.values()))
            oldest.pop(old_key).forget()

    def forget(self, ticket: int, size_bytes: int) -> None:
        """Called when a kept operand leaves its table."""
        if self._order.pop(ticket, None) is not None:
            self._held_bytes -= size_bytes


class Decoded(NamedTuple):
    """A kept operand and its place in the cache's order."""

    operand: np.ndarray
    ticket: int
    cache: DecodeCache
    scales: np.ndarray | None

    def forget(self) -> None:
        """Tells the cache that the operand has left its table."""
        self.cache.forget(self.ticket, self.operand.nbytes)
