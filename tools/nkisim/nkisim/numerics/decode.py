"""Packed MX operands as fp32 matrices, and a bounded cache of them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from nkisim.dtypes import DType, float4_e2m1fn_x4
from nkisim.numerics import cast

LANES = 4
GROUP_PARTITIONS = 8
QUADRANT = 32
NEUTRAL_SCALE = 127


def _table(kind: DType) -> np.ndarray:
    """fp32 value of each byte: of a code, or of the two nibbles (low first) of packed fp4."""
    codes = np.arange(256, dtype=np.uint8)
    if kind is float4_e2m1fn_x4:
        nibbles = np.stack([codes & 0xF, codes >> 4], axis=-1).view(ml_dtypes.float4_e2m1fn)
        return nibbles.astype(np.float32)
    assert kind.lane is not None
    return codes.view(kind.lane.storage).astype(np.float32)


_tables: dict[DType, np.ndarray] = {}


def lanes(words: np.ndarray, kind: DType) -> np.ndarray:
    """Packed words [partitions, free] as fp32 [4 * partitions, free]: row `lane * partitions + partition`."""
    partitions, free = words.shape
    table = _tables.get(kind)
    if table is None:
        table = _tables[kind] = _table(kind)
    if words.strides[1] != words.itemsize:
        words = np.ascontiguousarray(words)
    data = words.view(np.uint8).reshape(partitions, free, words.itemsize)
    decoded = np.empty((LANES, partitions, free), np.float32)
    if kind is float4_e2m1fn_x4:
        for byte in range(2):
            pair = table[data[:, :, byte]]
            decoded[2 * byte], decoded[2 * byte + 1] = pair[..., 0], pair[..., 1]
    else:
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


def apply_scales(decoded: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Multiplies each group of 8 partitions x 4 lanes by 2 ** (exponent - 127).

    Args:
        decoded: fp32 [4 * partitions, free] as `lanes` gives it.
        exponents: e8m0 bytes [partitions / 8, free]; 255 is NaN.
    """
    if (exponents == NEUTRAL_SCALE).all():
        return decoded
    groups, free = exponents.shape
    factors = np.ldexp(np.float32(1), exponents.astype(np.int32) - NEUTRAL_SCALE)
    factors[exponents == 255] = np.nan
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

    def get(self, table: dict[Any, Decoded], key: Any) -> np.ndarray | None:
        """The operand kept under `key`, if it still is."""
        kept = table.get(key)
        if kept is None:
            return None
        self._order.move_to_end(kept.ticket)
        return kept.operand

    def put(self, table: dict[Any, Decoded], key: Any, operand: np.ndarray) -> None:
        """Keeps an operand that fits the limit."""
        if operand.nbytes > self._limit_bytes:
            return
        self._tickets += 1
        table[key] = Decoded(operand, self._tickets, self)
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

    def forget(self) -> None:
        """Tells the cache that the operand has left its table."""
        self.cache.forget(self.ticket, self.operand.nbytes)
