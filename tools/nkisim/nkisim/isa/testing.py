"""Runs a few instructions on tiles made from arrays: what the tests of instructions share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import nki.isa as nisa
import nki.language as nl
from nkisim import machine
from nkisim.dtypes import DType
from nkisim.launch import run
from nkisim.options import Options
from nkisim.record import Record
from nkisim.tensor import NkiTensor


class Tile(NamedTuple):
    """A tile to be made: its shape, type and memory, and the partition it starts on."""

    shape: tuple[int, ...]
    dtype: DType = nl.float32
    buffer: Any = nl.sbuf
    start: int = 0

    def make(self) -> NkiTensor:
        """An unwritten tile."""
        partitions, *free = self.shape
        whole = nl.ndarray((self.start + partitions, *free), self.dtype, self.buffer)
        return whole[self.start :] if self.start else whole


class Given(NamedTuple):
    """An input tile: its values and where it lies. `dtype` is needed where the array's type does not tell it."""

    values: np.ndarray
    buffer: Any = nl.sbuf
    start: int = 0
    dtype: DType | None = None


class Result(NamedTuple):
    """Output arrays, and the records of the instructions of the body."""

    arrays: tuple[np.ndarray, ...]
    stream: list[Record]


def compute(
    body: Callable[..., Any],
    inputs: Sequence[np.ndarray | Given],
    outputs: Sequence[Tile],
    *,
    target: str = "trn3",
    numerics: bool = True,
) -> Result:
    """Loads the inputs, calls `body(*outputs, *inputs)` with tiles and stores the outputs.

    Inputs are arrays with the partition dimension first; their types decide the tiles' types.
    """
    given = [g if isinstance(g, Given) else Given(g) for g in inputs]
    span: list[int] = []

    def kernel(*arrays: NkiTensor) -> tuple[NkiTensor, ...]:
        tiles = [_load(array, g) for array, g in zip(arrays, given, strict=True)]
        results = [tile.make() for tile in outputs]
        stream = machine.core("a test").stream
        span.append(len(stream))
        body(*results, *tiles)
        span.append(len(stream))
        return tuple(_store(result) for result in results)

    finished = run(kernel, *[g.values for g in given], options=Options(target=target, numerics=numerics))
    return Result(finished.outputs, finished.cores[0].stream[span[0] : span[1]])


def values(body: Callable[..., Any], inputs: Sequence[np.ndarray | Given], *outputs: Tile, **options: Any) -> Any:
    """The output arrays of `compute`; the array itself where there is one."""
    arrays = compute(body, inputs, outputs, **options).arrays
    return arrays[0] if len(arrays) == 1 else arrays


def _load(array: NkiTensor, given: Given) -> NkiTensor:
    tile = Tile(array.shape, given.dtype or array.dtype, start=given.start).make()
    nisa.dma_copy(tile, array.view(tile.dtype))
    if given.buffer == nl.sbuf:
        return tile
    moved = Tile(array.shape, tile.dtype, given.buffer, given.start).make()
    nisa.tensor_copy(moved, tile)
    return moved


def _store(tile: NkiTensor) -> NkiTensor:
    if tile.buffer != nl.sbuf:
        moved = nl.ndarray(tile.shape, tile.dtype)
        nisa.tensor_copy(moved, tile)
        tile = moved
    array = nl.ndarray(tile.shape, tile.dtype, nl.shared_hbm)
    nisa.dma_copy(array, tile)
    return array
