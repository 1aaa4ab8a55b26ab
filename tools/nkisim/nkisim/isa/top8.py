"""The eight largest values of each partition, where they are, and their replacement, on the Vector Engine."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from nkisim import dtypes, machine, memory
from nkisim.enums import engine as Engine
from nkisim.errors import ArgumentError, ShapeError
from nkisim.instruction import NkiInstruction
from nkisim.isa import operands, rules
from nkisim.tensor import NkiTensor

_COUNT = 8
_ELEMENTS = (8, 16384)
_MAX_DIMS = 3
_INDICES = (dtypes.uint16, dtypes.uint32)


def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> NkiInstruction:
    """The 8 largest values of each partition, in fp32, largest first.

    Args:
        dst: tile (partitions, 8).
        src: tile of up to three dimensions with 8 to 16,384 elements per partition.
    """
    call = "nisa.max8"
    core = machine.core(call)
    rules.require_tensors(call, dst=dst, src=src)
    key = (call, dst.signature, src.signature)
    if key not in core.checked:
        _check_searched(call, core, "src", src)
        _check_eight(call, core, dst, src)
        core.checked.add(key)
    issued = core.emit("max8", Engine.vector, (dst.region,), (src.region,), name)
    if core.numerics:
        values = _rows(call, "src", src)
        ascending = np.sort(np.partition(values, -_COUNT, axis=1)[:, -_COUNT:], axis=1)
        memory.write(dst, np.ascontiguousarray(ascending[:, ::-1]))
    return issued


def nc_find_index8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Positions in each partition of 8 given values; all ones where a value does not occur.

    The first position of a value; where `vals` holds it several times, its next ones in ascending order, as the
    documentation of `nc_match_replace8` says of this call.

    Args:
        dst: uint16 or uint32 tile (partitions, 8).
        data: tile of up to three dimensions with 8 to 16,384 elements per partition.
        vals: tile of up to three dimensions with 8 elements per partition.
    """
    call = "nisa.nc_find_index8"
    core = machine.core(call)
    rules.require_tensors(call, dst=dst, data=data, vals=vals)
    key = (call, dst.signature, data.signature, vals.signature)
    if key not in core.checked:
        _check_searched(call, core, "data", data)
        _check_values(call, core, vals, data)
        _check_eight(call, core, dst, data)
        rules.dtype(call, "dst", dst, _INDICES)
        core.checked.add(key)
    issued = core.emit("nc_find_index8", Engine.vector, (dst.region,), (data.region, vals.region), name)
    if core.numerics:
        found = _positions(_rows(call, "data", data), _rows(call, "vals", vals), range(_COUNT))
        operands.write_bits(dst, found.astype(dst.dtype.storage))
    return issued


def nc_match_replace8(
    dst: NkiTensor,
    data: NkiTensor,
    vals: NkiTensor,
    imm: float,
    dst_idx: NkiTensor | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """`data` with one occurrence of each of 8 given values replaced by `imm`.

    `vals` are looked for from the last to the first, so that of equal ones the last takes the first occurrence.
    A value that does not occur replaces nothing, and its index is all ones, as `nc_find_index8` has it.

    Args:
        dst: tile with as many partitions and elements per partition as data; may be data itself.
        data: tile of up to three dimensions with 8 to 16,384 elements per partition.
        vals: tile of up to three dimensions with 8 elements per partition.
        imm: a number.
        dst_idx: uint16 or uint32 tile (partitions, 8) that takes the positions, or None.
    """
    call = "nisa.nc_match_replace8"
    core = machine.core(call)
    try:
        key = (call, dst.signature, data.signature, vals.signature, operands.signature(dst_idx), type(imm))
    except AttributeError:
        rules.require_tensors(call, dst=dst, data=data, vals=vals)
        raise
    if key not in core.checked:
        _check_searched(call, core, "data", data)
        _check_values(call, core, vals, data)
        rules.numeric(call, "dst", dst, core.hardware, rules.ON_CHIP)
        rules.writable(call, "dst", dst)
        rules.same_elements(call, "dst", dst, "data", data)
        if not rules.is_number(imm):
            raise ArgumentError(f"{call}: imm is {imm!r}; accepted: a number")
        if dst_idx is not None:
            rules.require_tensors(call, dst_idx=dst_idx)
            _check_eight(call, core, dst_idx, data, "dst_idx")
            rules.dtype(call, "dst_idx", dst_idx, _INDICES)
        core.checked.add(key)
    writes = (dst.region, *operands.regions(dst_idx))
    issued = core.emit("nc_match_replace8", Engine.vector, writes, (data.region, vals.region), name)
    if core.numerics:
        values = _rows(call, "data", data)
        found = _positions(values, _rows(call, "vals", vals), range(_COUNT - 1, -1, -1))
        results = values.copy()
        lanes, slots = np.nonzero(found >= 0)
        results[lanes, found[lanes, slots]] = operands.constant(imm)
        memory.write(dst, results)
        if dst_idx is not None:
            operands.write_bits(dst_idx, found.astype(dst_idx.dtype.storage))
    return issued


def _rows(call: str, operand: str, tensor: NkiTensor) -> np.ndarray:
    return operands.shaped(call, operand, tensor, (tensor.shape[0], prod(tensor.shape[1:])))


def _positions(data: np.ndarray, values: np.ndarray, order: Any) -> np.ndarray:
    """int64 [partitions, 8]: where each value is found, each position given once; -1 where it is not."""
    free = np.ones(data.shape, np.bool_)
    found = np.full(values.shape, -1, np.int64)
    for slot in order:
        matches = (data == values[:, slot : slot + 1]) & free
        first = matches.argmax(axis=1)
        lanes = np.nonzero(matches[np.arange(len(data)), first])[0]
        found[lanes, slot] = first[lanes]
        free[lanes, first[lanes]] = False
    return found


def _check_searched(call: str, core: machine.Core, operand: str, tensor: NkiTensor) -> None:
    rules.numeric(call, operand, tensor, core.hardware, rules.ON_CHIP)
    low, high = _ELEMENTS
    elements = prod(tensor.shape[1:])
    if len(tensor.shape) > _MAX_DIMS or not low <= elements <= high:
        raise ShapeError(
            f"{call}: {operand} {list(tensor.shape)} has {len(tensor.shape)} dimensions and {elements} elements per "
            f"partition; accepted: up to {_MAX_DIMS} dimensions, {low} to {high} elements"
        )


def _check_values(call: str, core: machine.Core, vals: NkiTensor, data: NkiTensor) -> None:
    rules.numeric(call, "vals", vals, core.hardware, rules.ON_CHIP)
    rules.same_partitions(call, "vals", vals, "data", data)
    if len(vals.shape) > _MAX_DIMS or prod(vals.shape[1:]) != _COUNT:
        raise ShapeError(
            f"{call}: vals {list(vals.shape)}; accepted: up to {_MAX_DIMS} dimensions, {_COUNT} elements per partition"
        )


def _check_eight(call: str, core: machine.Core, tensor: NkiTensor, data: NkiTensor, operand: str = "dst") -> None:
    rules.numeric(call, operand, tensor, core.hardware, rules.ON_CHIP)
    rules.writable(call, operand, tensor)
    if tensor.shape != (data.shape[0], _COUNT):
        raise ShapeError(f"{call}: {operand} {list(tensor.shape)}; accepted: ({data.shape[0]}, {_COUNT})")
