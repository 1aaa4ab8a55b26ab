"""Tensors whose values are known when the kernel is traced."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np

from nkisim import dtypes, machine, memory, source, views
from nkisim.dtypes import DType, as_dtype
from nkisim.enums import MemoryRegion
from nkisim.errors import ArgumentError, DivergenceError, DtypeError, ShapeError
from nkisim.isa import rules, transfer
from nkisim.machine import Core
from nkisim.storage import Allocation, Storage
from nkisim.tensor import NkiTensor

_TYPES = (
    dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.int32, dtypes.int16, dtypes.int8, dtypes.uint32,
    dtypes.uint16, dtypes.uint8, dtypes.float8_e4m3fn, dtypes.float8_e5m2, dtypes.float8_e8m0fnu,
)  # fmt: skip


def shared_constant(constant: Any) -> NkiTensor:
    """A tensor in shared HBM that holds the data when the kernel starts; no instruction writes it.

    Args:
        constant: a numpy array, or the path of a `.npy` file.

    Raises:
        ArgumentError, DtypeError: it is neither, or its type is not supported.
        DivergenceError: the cores of a launch give the same call different data.
    """
    call = "nl.shared_constant"
    core = machine.core(call)
    values = _values(call, constant)
    kind = _dtype(call, values)
    site = source.current()
    core.constant_calls[site] += 1
    return _constant(core, (site, core.constant_calls[site]), values, kind)


def shared_identity_matrix(n: int, dtype: Any = dtypes.uint8, dst: NkiTensor | None = None) -> NkiTensor:
    """The n x n identity in SBUF, loaded by one DMA from a constant that all of the same size and type share.

    Args:
        n: rows and columns, up to 128.
        dtype: of the elements.
        dst: the tile to load it into; a new one where it is None.
    """
    call = "nl.shared_identity_matrix"
    core = machine.core(call)
    n = views.integer(n, f"{call}: n")
    if not 1 <= n <= core.hardware.partitions:
        raise ShapeError(f"{call}: n {n!r}; accepted: 1 to {core.hardware.partitions}")
    if dst is not None:
        rules.require_tensors(call, dst=dst)
    kind = as_dtype(dtype) if dst is None else dst.dtype
    if dst is not None and dst.shape != (n, n):
        raise ShapeError(f"{call}: dst {list(dst.shape)}; accepted: ({n}, {n})")
    constant = _constant(core, (call, n, kind), np.eye(n).astype(kind.storage), kind)
    tile = memory.create(call, (n, n), kind, MemoryRegion.sbuf) if dst is None else dst
    transfer.dma_copy(tile, constant)
    return tile


def _values(call: str, constant: Any) -> np.ndarray:
    if isinstance(constant, (str, PathLike)):
        try:
            constant = np.load(constant, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ArgumentError(f"{call}: cannot read {constant!r} as a .npy file: {error}") from None
    if not isinstance(constant, np.ndarray):
        raise ArgumentError(f"{call}: constant is {type(constant).__name__}; accepted: a numpy array or a .npy file")
    if not constant.ndim or not constant.size:
        raise ShapeError(f"{call}: shape {constant.shape}; accepted: at least one dimension, none of size 0")
    return constant


def _dtype(call: str, values: np.ndarray) -> DType:
    try:
        kind = as_dtype(values.dtype)
    except DtypeError:
        kind = None
    if kind not in _TYPES:
        raise DtypeError(f"{call}: constant is {values.dtype}; accepted: {', '.join(_TYPES)}")
    return kind


def _constant(core: Core, key: Any, values: np.ndarray, kind: DType) -> NkiTensor:
    """The launch's constant under `key`, the same for every core."""
    rules.supported_dtype("nl.shared_constant", "constant", kind, core.hardware)
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    constants = core.launch.constants
    if key not in constants:
        allocation = Allocation(
            -1, f"constant_{len(constants)}", MemoryRegion.shared_hbm, values.shape, kind, 1, data.nbytes, None,
            source.current(),
        )  # fmt: skip
        constants[key] = Storage(allocation, data if core.numerics else None, written=True), data
    storage, first = constants[key]
    known = storage.allocation
    if (known.shape, known.dtype) != (values.shape, kind) or not np.array_equal(first, data):
        raise DivergenceError(f"nl.shared_constant: core {core.program_id} gives other data than another core")
    return NkiTensor(values.shape, kind, storage, MemoryRegion.shared_hbm)
