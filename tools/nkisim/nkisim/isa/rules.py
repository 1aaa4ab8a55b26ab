"""Rules that many instructions share. Each raises an error that names the call, the operand and what is accepted."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from common.hardware import Hardware
from nkisim import views
from nkisim.dtypes import DType
from nkisim.enums import MemoryRegion, engine
from nkisim.errors import (
    ArgumentError,
    DtypeError,
    EngineError,
    PartitionError,
    ShapeError,
    TargetError,
    WrongBufferError,
)
from nkisim.indirect import COLUMNS, ROWS
from nkisim.tensor import NkiTensor

SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum
ON_CHIP = (SBUF, PSUM)
HBM = (MemoryRegion.private_hbm, MemoryRegion.shared_hbm)
_PRIORITIES = range(4)
_CHOSEN_COLUMNS = {
    "nisa.activate2": ("dst", "data"),
    "nisa.activation": ("dst", "data"),
    "nisa.activation_reduce": ("dst", "data"),
    "nisa.exponential": ("dst", "src"),
    "nisa.nc_matmul": ("dst", "stationary", "moving"),
    "nisa.nc_matmul_mx": ("dst", "stationary", "moving", "stationary_scale", "moving_scale"),
    "nisa.tensor_copy": ("dst", "src"),
    "nisa.tensor_copy_predicated": ("dst", "predicate"),
    "nisa.tensor_reduce": ("dst", "data"),
    "nisa.tensor_scalar": ("dst", "data"),
    "nisa.tensor_scalar_cumulative": ("dst", "src"),
    "nisa.tensor_scalar_reduce": ("dst", "data"),
    "nisa.tensor_tensor": ("dst", "data1"),
}
"""Operands that may be views made by `indirect`."""
_NO_NUMBERS = (np.flexible, np.complexfloating, np.datetime64, np.timedelta64)
"""Scalars of numpy that no engine calculates with."""


def require_tensors(call: str, **operands: Any) -> None:
    """Every operand is a tensor."""
    for operand, value in operands.items():
        if not isinstance(value, NkiTensor):
            raise ArgumentError(f"{call}: {operand} is {type(value).__name__} {value!r}; accepted: an NkiTensor")


def is_number(value: Any) -> bool:
    """Whether it is a real number of Python, numpy or ml_dtypes; booleans are."""
    return isinstance(value, (int, float)) or (isinstance(value, np.generic) and not isinstance(value, _NO_NUMBERS))


def is_integer(value: Any) -> bool:
    """Whether it is an integer of Python or numpy; Python's booleans are."""
    return isinstance(value, int) or (isinstance(value, np.integer) and not isinstance(value, np.timedelta64))


def buffer(call: str, operand: str, tensor: NkiTensor, accepted: tuple[MemoryRegion, ...]) -> None:
    """The operand lies in one of the memories accepted."""
    if tensor.buffer not in accepted:
        names = " or ".join(m.value for m in accepted)
        raise WrongBufferError(f"{call}: {operand} {tensor.name} lies in {tensor.buffer.value}; accepted: {names}")
    if tensor.indirection is not None and tensor.indirection.kind == COLUMNS:
        _chosen_columns(call, operand, tensor)


def _chosen_columns(call: str, operand: str, tensor: NkiTensor) -> None:
    accepted = _CHOSEN_COLUMNS.get(call, ())
    if operand not in accepted:
        where = f"only {', '.join(accepted)}" if accepted else "no operand of this instruction"
        raise ArgumentError(f"{call}: {operand} {tensor.name} is a view made by indirect(); accepted: {where}")


def dtype(call: str, operand: str, tensor: NkiTensor, accepted: Iterable[DType]) -> None:
    """The operand has one of the types accepted."""
    names = tuple(accepted)
    if tensor.dtype not in names:
        raise DtypeError(f"{call}: {operand} {tensor.name} is {tensor.dtype}; accepted: {', '.join(names)}")


def same_dtype(call: str, operand: str, tensor: NkiTensor, other: str, reference: NkiTensor) -> None:
    """Two operands have the same type."""
    if tensor.dtype is not reference.dtype:
        raise DtypeError(f"{call}: {operand} is {tensor.dtype}, {other} is {reference.dtype}; accepted: the same type")


def partitions(call: str, operand: str, tensor: NkiTensor, hardware: Hardware) -> None:
    """An on-chip operand starts on a partition that its height allows.

    More than 64 partitions start at 0; 33 to 64 at 0 or 64; up to 32 at 0, 32, 64 or 96.
    """
    height, start = tensor.shape[0], tensor.start_partition
    if height > hardware.partitions:
        raise ShapeError(f"{call}: {operand} has {height} partitions; accepted: at most {hardware.partitions}")
    starts = hardware.start_partitions
    allowed = starts if height <= 32 else starts[::2] if height <= 64 else starts[:1]
    if start not in allowed:
        raise PartitionError(
            f"{call}: {operand} {tensor.name} has {height} partitions from start partition {start}; "
            f"accepted: {', '.join(map(str, allowed))}"
        )


def same_partitions(call: str, operand: str, tensor: NkiTensor, other: str, reference: NkiTensor) -> None:
    """Two operands have as many partitions."""
    if tensor.shape[0] != reference.shape[0]:
        raise ShapeError(
            f"{call}: {operand} has {tensor.shape[0]} partitions, {other} {reference.shape[0]}; "
            f"accepted: the same number"
        )


def same_elements(call: str, operand: str, tensor: NkiTensor, other: str, reference: NkiTensor) -> None:
    """Two operands have as many partitions, and as many elements in each."""
    same_partitions(call, operand, tensor, other, reference)
    if prod(tensor.shape[1:]) != prod(reference.shape[1:]):
        raise ShapeError(
            f"{call}: {operand} {list(tensor.shape)} has {prod(tensor.shape[1:])} elements per partition, "
            f"{other} {list(reference.shape)} has {prod(reference.shape[1:])}; accepted: the same number"
        )


def writable(call: str, operand: str, tensor: NkiTensor) -> None:
    """No element of a result is written twice, save by rows that an index chooses."""
    shape, strides = tensor.shape, tensor.strides
    if tensor.indirection is not None and tensor.indirection.kind == ROWS:
        shape, strides = shape[1:], strides[1:]
    if any(stride == 0 and size > 1 for stride, size in zip(strides, shape, strict=True)):
        raise ShapeError(
            f"{call}: {operand} {tensor.name} is a broadcast view {list(tensor.shape)}; accepted for results: "
            f"no broadcast dimension"
        )
    if views.overlaps_itself(shape, strides):
        raise ShapeError(
            f"{call}: {operand} {tensor.name} {list(tensor.shape)} with strides {list(tensor.strides)} shows elements "
            f"more than once; accepted for results: each element once"
        )


def tile(call: str, operand: str, tensor: NkiTensor, hardware: Hardware, accepted: tuple[MemoryRegion, ...]) -> None:
    """An operand of a compute engine: in a memory it reaches, at a partition it may start from."""
    buffer(call, operand, tensor, accepted)
    partitions(call, operand, tensor, hardware)


def numeric(call: str, operand: str, tensor: NkiTensor, hardware: Hardware, accepted: tuple[MemoryRegion, ...]) -> None:
    """A `tile` that the engine calculates with: packed types have no arithmetic."""
    tile(call, operand, tensor, hardware, accepted)
    if tensor.dtype.kind == "packed":
        raise DtypeError(f"{call}: {operand} {tensor.name} is {tensor.dtype}; accepted: any type but packed ones")


def choose_engine(call: str, asked: Any, accepted: tuple[engine, ...]) -> engine:
    """The engine asked for, or the first accepted one where the choice is left to the compiler."""
    if asked is engine.unknown:
        return accepted[0]
    if type(asked) is not engine or asked not in accepted:
        names = ", ".join(e.name for e in accepted)
        raise EngineError(f"{call}: engine {getattr(asked, 'name', asked)!r}; accepted: {names} or unknown")
    return asked


def flags(call: str, **given: Any) -> None:
    """Parameters that are True or False (or 1 or 0) when the kernel is traced."""
    for name, value in given.items():
        if not isinstance(value, (int, np.bool_)):
            raise ArgumentError(f"{call}: {name} {value!r}; accepted: True or False")


def gpsimd_reach(call: str, chosen: engine, **operands: Any) -> None:
    """GpSimd has no path to PSUM."""
    if chosen is engine.gpsimd:
        for operand, value in operands.items():
            if isinstance(value, NkiTensor) and value.buffer is PSUM:
                raise WrongBufferError(f"{call}: {operand} {value.name} lies in psum, which engine gpsimd cannot reach")


def not_both_in_psum(call: str, first: str, a: NkiTensor, second: str, b: NkiTensor) -> None:
    """The Vector Engine has one read port to PSUM."""
    if a.buffer is PSUM and b.buffer is PSUM:
        raise WrongBufferError(f"{call}: {first} and {second} both lie in psum; accepted: at most one of them")


def generation(call: str, hardware: Hardware, supported: bool, needs: str) -> None:
    """The instruction exists on the target."""
    if not supported:
        raise TargetError(f"{call}: target {hardware.name}; accepted: {needs}")


def supported_dtype(call: str, operand: str, kind: DType, hardware: Hardware) -> None:
    """OCP fp8 with its larger range, and the packed types, exist from trn3 on."""
    if hardware.supports_mx:
        return
    if kind == "float8_e4m3fn":
        raise TargetError(
            f"{call}: {operand} is float8_e4m3fn on {hardware.name}; accepted there: float8_e4m3 (max 240)"
        )
    if kind.kind in ("packed", "scale"):
        raise TargetError(f"{call}: {operand} is {kind} on {hardware.name}; accepted: trn3")


def priority(call: str, hardware: Hardware, value: Any) -> None:
    """A DMA's priority: none, or 0 to 3 from trn3 on."""
    if value is None:
        return
    generation(f"{call}: priority", hardware, hardware.supports_mx, "trn3")
    if type(value) is not int or value not in _PRIORITIES:
        raise ArgumentError(f"{call}: priority {value!r}; accepted: 0 to 3")
