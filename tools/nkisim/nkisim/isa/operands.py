"""Operators and broadcast operands of the elementwise instructions."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim import machine, memory
from nkisim.dtypes import DType
from nkisim.enums import MemoryRegion
from nkisim.errors import ArgumentError, DtypeError, ShapeError
from nkisim.isa import rules
from nkisim.numerics import cast
from nkisim.numerics.alu import OPERATORS, Operator
from nkisim.tensor import NkiTensor

PSUM = MemoryRegion.psum
_LANGUAGE = "nkisim.language"


def language_name(call: str, parameter: str, op: Any) -> str:
    """Name of a `nki.language` function passed as an operator."""
    name = getattr(op, "__name__", None)
    if name is None or not str(getattr(op, "__module__", "")).startswith(_LANGUAGE):
        raise ArgumentError(f"{call}: {parameter} is {op!r}; accepted: an operator of nki.language, such as nl.add")
    return str(name)


def operator(call: str, parameter: str, op: Any, kinds: tuple[str, ...]) -> Operator:
    """The operator that a `nki.language` function stands for, of one of the kinds accepted."""
    found = OPERATORS.get(language_name(call, parameter, op))
    if found is None or found.kind not in kinds:
        names = ", ".join(o.name for o in OPERATORS.values() if o.kind in kinds)
        raise ArgumentError(f"{call}: {parameter} is nl.{getattr(op, '__name__', op)}; accepted: {names}")
    return found


def check_integers(call: str, op: Operator, **tensors: NkiTensor) -> None:
    """Bit operators take and give integers."""
    if op.kind == "bitvec":
        for operand, tensor in tensors.items():
            if tensor.dtype.kind != "integer":
                raise DtypeError(f"{call}: {operand} is {tensor.dtype} with nl.{op.name}; accepted: integer types")


def check_scalar(call: str, operand: str, value: Any, data: NkiTensor, dtypes: tuple[DType, ...] | None) -> None:
    """A scalar operand is a number, or a tile with one element for each partition of `data`."""
    if not isinstance(value, NkiTensor):
        if not isinstance(value, (int, float, np.generic)):
            raise ArgumentError(f"{call}: {operand} is {value!r}; accepted: a number or a tile ({data.shape[0]}, 1)")
        return
    hardware = machine.core(call).hardware
    rules.tile(call, operand, value, hardware, rules.ON_CHIP)
    rules.same_partitions(call, operand, value, "data", data)
    if value.size != value.shape[0]:
        raise ShapeError(
            f"{call}: {operand} {list(value.shape)}; accepted: one element per partition, ({data.shape[0]}, 1)"
        )
    if dtypes is not None:
        rules.dtype(call, operand, value, dtypes)


def scalar(call: str, operand: str, value: Any, rank: int) -> Any:
    """A scalar operand's value, shaped to broadcast over the free dimensions."""
    if not isinstance(value, NkiTensor):
        return np.float32(value)
    return memory.read_fp32(call, operand, value).reshape(-1, *[1] * (rank - 1))


def shaped(call: str, operand: str, tensor: NkiTensor, shape: tuple[int, ...]) -> np.ndarray:
    """A tensor operand's values in fp32, in the shape of the result."""
    values = cast.to_fp32(memory.read(call, operand, tensor))
    return values if values.shape == shape else values.reshape(shape)


def regions(*values: Any) -> tuple[Any, ...]:
    """Regions of those operands that are tensors."""
    return tuple(v.region for v in values if isinstance(v, NkiTensor))


def signatures(*values: Any) -> tuple[Any, ...]:
    """Signatures of tensors, types of everything else; what rules look at."""
    return tuple(v.signature if isinstance(v, NkiTensor) else type(v) for v in values)
