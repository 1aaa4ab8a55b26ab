"""Random tiles. The generators are described in `nkisim.isa.random`."""

from __future__ import annotations

from typing import Any

from nkisim import memory
from nkisim.dtypes import as_dtype, uint32
from nkisim.enums import MemoryRegion
from nkisim.isa import elementwise
from nkisim.isa import random as generators
from nkisim.language import compose, movement, operators
from nkisim.tensor import NkiTensor

_KEPT_BITS = 24


def random_seed(seed: NkiTensor) -> None:
    """Seeds what `rand` and `dropout` draw from; `seed` is a 32-bit tile (1, 1)."""
    generators.set_rng_seed(seed)


def rand(shape: Any, dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """A new tensor, uniform in [0, 1): the upper 24 of 32 random bits over 2**24, cast to `dtype`.

    In HBM the tensor has up to 128 rows, which are drawn in SBUF.
    """
    result = memory.create("nl.rand", shape, dtype, buffer, name)
    drawn = result.shape if len(result.shape) > 1 else (1, *result.shape)
    bits = compose.new(drawn, uint32)
    generators.rng(bits)
    kept = operators.right_shift(bits, 32 - _KEPT_BITS)
    if result.on_chip:
        elementwise.tensor_scalar(result, kept, operators.multiply, 2.0**-_KEPT_BITS)
    else:
        movement.store(result, operators.multiply(kept, 2.0**-_KEPT_BITS, as_dtype(dtype)))
    return result


def dropout(x: NkiTensor, rate: Any, dtype: Any = None) -> NkiTensor:
    """`x` with each element made 0 with probability `rate`.

    Args:
        x: a tile.
        rate: a number, or a tile (partitions, 1).
        dtype: of the result, by default that of `x`.
    """
    x = compose.tile("nl.dropout", "x", x)
    dropped = compose.new(x.shape, x.dtype)
    generators.dropout(dropped, x, rate)
    return compose.cast(dropped, as_dtype(dtype) if dtype is not None else x.dtype)
