"""Operators and broadcast operands of the elementwise instructions."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

import numpy as np

from nkisim import machine, memory
from nkisim.dtypes import DType
from nkisim.errors import ArgumentError, DtypeError, ShapeError
from nkisim.isa import rules
from nkisim.numerics import cast
from nkisim.numerics.alu import OPERATORS, Operator
from nkisim.tensor import NkiTensor

Looked = TypeVar("Looked")
_LANGUAGE = "nkisim.language"
_LARGEST = float(np.finfo(np.float32).max)
_REDUCTIONS = {"max": "maximum", "min": "minimum"}
"""Reducing functions that the documentation also names as operators."""


def language_name(call: str, parameter: str, op: Any) -> str:
    """Name of a `nki.language` function passed as an operator."""
    name = getattr(op, "__name__", None)
    if isinstance(op, Operator) or (name and str(getattr(op, "__module__", "")).startswith(_LANGUAGE)):
        return str(name)
    raise ArgumentError(f"{call}: {parameter} is {op!r}; accepted: an operator of nki.language, such as nl.add")


def operator(call: str, parameter: str, op: Any, kinds: tuple[str, ...]) -> Operator:
    """The operator that a `nki.language` function stands for, of one of the kinds accepted."""
    found = looked_up(_found, op)
    if found is None:
        found = _named(call, parameter, op)
    if found is None or found.kind not in kinds:
        _refuse(call, parameter, op, tuple(o.name for o in OPERATORS.values() if o.kind in kinds))
    return _on_target(call, parameter, found) if found.needs_trn3 else found


def operator_among(call: str, parameter: str, op: Any, names: tuple[str, ...]) -> Operator:
    """The operator that a `nki.language` function stands for, one of those named."""
    found = looked_up(_found, op)
    if found is None:
        found = _named(call, parameter, op)
    if found is None or found.name not in names:
        _refuse(call, parameter, op, names)
    return _on_target(call, parameter, found) if found.needs_trn3 else found


_found: dict[Any, Operator] = {}
"""Functions of `nki.language` that have been looked up before."""


def looked_up(table: dict[Any, Looked], op: Any) -> Looked | None:
    """What a table has under an operator; nothing under what has no hash."""
    try:
        return table.get(op)
    except TypeError:
        return None


def _named(call: str, parameter: str, op: Any) -> Operator | None:
    name = language_name(call, parameter, op)
    operator = OPERATORS.get(_REDUCTIONS.get(name, name))
    if operator is not None:
        _found[op] = operator
    return operator


def _refuse(call: str, parameter: str, op: Any, names: tuple[str, ...]) -> NoReturn:
    raise ArgumentError(f"{call}: {parameter} is nl.{op.__name__}; accepted: {', '.join(names)}")


def _on_target(call: str, parameter: str, op: Operator) -> Operator:
    hardware = machine.core(call).hardware
    rules.generation(f"{call}: {parameter} nl.{op.name}", hardware, hardware.supports_mx, "trn3")
    return op


def check_bits(call: str, op: Operator, **tensors: NkiTensor) -> None:
    """Bit operators take and give integers of one width, since they convert nothing."""
    if not op.is_bitvec:
        return
    widths = {tensor.dtype.itemsize for tensor in tensors.values()}
    for operand, tensor in tensors.items():
        if tensor.dtype.kind != "integer":
            raise DtypeError(f"{call}: {operand} is {tensor.dtype} with nl.{op.name}; accepted: integer types")
    if len(widths) > 1:
        given = ", ".join(f"{operand} {tensor.dtype}" for operand, tensor in tensors.items())
        raise DtypeError(f"{call}: {given} with nl.{op.name}; accepted: integers of one width, bits are not converted")


def bits(call: str, operand: str, tensor: NkiTensor, shape: tuple[int, ...]) -> np.ndarray:
    """An integer operand's bits as unsigned integers, in the shape of the result."""
    values = memory.read(call, operand, tensor)
    return values.reshape(shape).view(f"u{values.itemsize}")


def write_bits(dst: NkiTensor, values: np.ndarray) -> None:
    """Stores unsigned integers of dst's width as its bits."""
    memory.write(dst, np.ascontiguousarray(values).view(dst.dtype.storage))


def check_scalar(call: str, operand: str, value: Any, data: NkiTensor, dtypes: tuple[DType, ...] | None) -> None:
    """A scalar operand is a number, or a tile with one element for each partition of `data`."""
    if not isinstance(value, NkiTensor):
        if not rules.is_number(value):
            raise ArgumentError(f"{call}: {operand} is {value!r}; accepted: a number or a tile ({data.shape[0]}, 1)")
        return
    check_column(call, operand, value, data)
    if dtypes is not None:
        rules.dtype(call, operand, value, dtypes)


def check_column(call: str, operand: str, value: NkiTensor, data: NkiTensor) -> None:
    """A tile on-chip with one element for each partition of `data`."""
    rules.numeric(call, operand, value, machine.core(call).hardware, rules.ON_CHIP)
    rules.same_partitions(call, operand, value, "data", data)
    if value.size != value.shape[0]:
        raise ShapeError(
            f"{call}: {operand} {list(value.shape)}; accepted: one element per partition, ({data.shape[0]}, 1)"
        )


def constant(value: Any) -> np.float32:
    """A number as fp32; infinite where fp32 does not reach it."""
    if -_LARGEST <= value <= _LARGEST:
        return np.float32(value)
    try:
        with np.errstate(over="ignore"):
            return np.float32(value)
    except OverflowError:  # an integer that not even fp64 reaches
        return np.float32(np.inf if value > 0 else -np.inf)


def scalar(call: str, operand: str, value: Any, rank: int) -> Any:
    """A scalar operand's value, shaped to broadcast over the free dimensions."""
    if not isinstance(value, NkiTensor):
        return constant(value)
    return memory.read_fp32(call, operand, value).reshape(-1, *[1] * (rank - 1))


def shaped(
    call: str, operand: str, tensor: NkiTensor, shape: tuple[int, ...], chosen: np.ndarray | None = None
) -> np.ndarray:
    """A tensor operand's values in fp32, in the shape of the result.

    Args:
        chosen: elements (in the same order) whose values count, and so must have been written; None: all.
    """
    if chosen is None:
        values = cast.to_fp32(memory.read(call, operand, tensor))
    else:
        values = cast.to_fp32(memory.read_where(call, operand, tensor, chosen.reshape(tensor.shape)))
    return values if values.shape == shape else values.reshape(shape)


def regions(*values: Any) -> tuple[Any, ...]:
    """Regions of those operands that are tensors."""
    return tuple([v.region for v in values if isinstance(v, NkiTensor)])


def signature(value: Any) -> Any:
    """Signature of a tensor, type of everything else; what rules look at."""
    return value.signature if isinstance(value, NkiTensor) else type(value)


def signatures(*values: Any) -> tuple[Any, ...]:
    """The signature of each."""
    return tuple([v.signature if isinstance(v, NkiTensor) else type(v) for v in values])
