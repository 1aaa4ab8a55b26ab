"""Marsaglia's xorwow generator, for many lanes at once."""

from __future__ import annotations

import numpy as np

WORDS = 6
"""x, y, z, w, v and the counter d."""
_WEYL = np.uint32(362437)


def spread(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """States (*shape, 6) that differ in every lane, from one seed (by splitmix64)."""
    count = int(np.prod(shape)) * WORDS
    with np.errstate(over="ignore"):
        z = np.uint64(seed & 0xFFFFFFFF) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(32)).astype(np.uint32).reshape(*shape, WORDS)


def draw(states: np.ndarray, steps: int) -> np.ndarray:
    """The next `steps` numbers of each lane; the states advance in place.

    Args:
        states: uint32 (lanes, streams, 6).

    Returns:
        uint32 (lanes, steps, streams).
    """
    lanes, streams, _ = states.shape
    drawn = np.empty((steps, lanes, streams), np.uint32)
    x, y, z, w, v, d = (np.ascontiguousarray(states[..., word]) for word in range(WORDS))
    with np.errstate(over="ignore"):
        for numbers in drawn:
            t = x ^ (x >> np.uint32(2))
            x, y, z, w = y, z, w, v
            v = (v ^ (v << np.uint32(4))) ^ (t ^ (t << np.uint32(1)))
            d = d + _WEYL
            np.add(v, d, out=numbers)
    for word, values in enumerate((x, y, z, w, v, d)):
        states[..., word] = values
    return drawn.transpose(1, 0, 2)
