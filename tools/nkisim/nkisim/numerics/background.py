"""Matrix products that other threads compute while the kernel goes on, until somebody looks at the result.

A product is cut into as many blocks of columns as torch has threads. The products of one tile stay in order within
each block, and no sum is cut, so that results do not depend on the threads. Who needs a result computes blocks of it
too. What nobody looks at is computed as well, and soon after a run nothing is left to do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

Multiply = Callable[[np.ndarray, bool, slice], None]
"""Writes columns of a product to those of a target, or with True adds them to what is there."""

_changed = threading.Condition()
"""Guards everything below, and tells of new products and of finished ones."""
_unfinished: dict[Products, None] = {}
_workers = 0
_LEAST_COLUMNS = 32
"""Of a block: fewer are not worth another thread."""
_MOST_PER_TILE = 64
"""Products of one tile that may wait, each of which keeps its operands from being freed."""


class _Product(NamedTuple):
    multiply: Multiply
    target: np.ndarray
    onto: bool


class Products:
    """Products into the same columns of one tile, in order.

    Attributes:
        columns: first column and number of columns of every target, and the step between them.
    """

    def __init__(self, columns: tuple[int, int, int]) -> None:
        self.columns = columns
        blocks = max(1, min(torch.get_num_threads(), columns[1] // _LEAST_COLUMNS))
        self._issued: list[_Product] = []
        self._done = [0] * blocks
        self._claimed = [False] * blocks

    def add(self, multiply: Multiply, target: np.ndarray, onto: bool) -> None:
        """One more product. The target has `columns`, and is looked at only after `finish`."""
        if len(self._done) == 1:
            multiply(target, onto, slice(None))
            return
        if len(self._issued) == _MOST_PER_TILE:
            self.finish()
        with _changed:
            self._issued.append(_Product(multiply, target, onto))
            _unfinished[self] = None
            _start_workers(len(self._done) - 1)
            _changed.notify()

    def finish(self) -> None:
        """Returns when every product is there."""
        while self in _unfinished:
            block = self._claim()
            if block is not None:
                self._compute(block)
                continue
            with _changed:
                _changed.wait_for(lambda: self not in _unfinished or self._free() is not None)

    def _free(self) -> int | None:
        for block, done in enumerate(self._done):
            if done < len(self._issued) and not self._claimed[block]:
                return block
        return None

    def _claim(self) -> int | None:
        with _changed:
            block = self._free()
            if block is not None:
                self._claimed[block] = True
            return block

    def _compute(self, block: int) -> None:
        """Computes a claimed block of all products issued so far."""
        blocks, columns = len(self._done), self.columns[1]
        part = slice(columns * block // blocks, columns * (block + 1) // blocks)
        issued = len(self._issued)
        for product in self._issued[self._done[block] : issued]:
            product.multiply(product.target, product.onto, part)
        with _changed:
            self._done[block], self._claimed[block] = issued, False
            if min(self._done) == len(self._issued):
                _unfinished.pop(self, None)
                self._issued.clear()
                self._done = [0] * blocks
            _changed.notify_all()


def _start_workers(wanted: int) -> None:
    global _workers
    while _workers < wanted:
        _workers += 1
        threading.Thread(target=_work, name="nkisim products", daemon=True).start()


def _work() -> None:
    while True:
        with _changed:
            _changed.wait_for(lambda: _next() is not None)
            found = _next()
            assert found is not None
            products, block = found
            products._claimed[block] = True
        products._compute(block)


def _next() -> tuple[Products, int] | None:
    for products in _unfinished:
        block = products._free()
        if block is not None:
            return products, block
    return None


def _after_fork() -> None:
    """A child process has none of its parent's other threads, and maybe their lock."""
    global _workers, _changed
    _workers, _changed = 0, threading.Condition()
    _unfinished.clear()


os.register_at_fork(after_in_child=_after_fork)
