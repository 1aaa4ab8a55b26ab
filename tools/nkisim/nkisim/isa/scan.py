"""Scans of the Vector Engine."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from nkisim import machine, memory
from nkisim.enums import engine as Engine
from nkisim.instruction import NkiInstruction
from nkisim.isa import operands, rules
from nkisim.numerics.alu import Operator
from nkisim.tensor import NkiTensor

_ARITHMETIC = ("arithmetic",)


def tensor_tensor_scan(
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """`r = (data0[i] <op0> r) <op1> data1[i]; dst[i] = r` along the free dimensions, in fp32, r starting as `initial`.

    Args:
        dst, data0, data1: tiles with as many partitions and elements per partition; the inputs not both in PSUM.
        initial: a number or a tile (partitions, 1).
        op0, op1: binary arithmetic operators.
        reverse0, reverse1: swap the sides of an operator.
    """
    call = "nisa.tensor_tensor_scan"
    core = machine.core(call)
    if reverse0 is not False or reverse1 is not False:
        rules.flags(call, reverse0=reverse0, reverse1=reverse1)
    try:
        key: Any = (call, op0, op1, dst.signature, data0.signature, data1.signature, operands.signature(initial))
        plan = core.plans.get(key)
    except (AttributeError, TypeError):
        key, plan = None, None
    if plan is None:
        rules.require_tensors(call, dst=dst, data0=data0, data1=data1)
        first = operands.operator(call, "op0", op0, _ARITHMETIC)
        second = operands.operator(call, "op1", op1, _ARITHMETIC)
        for operand, tensor in (("dst", dst), ("data0", data0), ("data1", data1)):
            rules.numeric(call, operand, tensor, core.hardware, rules.ON_CHIP)
        rules.writable(call, "dst", dst)
        rules.same_elements(call, "data1", data1, "data0", data0)
        rules.same_elements(call, "dst", dst, "data0", data0)
        rules.not_both_in_psum(call, "data0", data0, "data1", data1)
        operands.check_scalar(call, "initial", initial, data0, None)
        plan = core.plans[key] = first, second, (first.name, second.name)
    first, second, detail = plan
    reads = (data0.region, data1.region, *operands.regions(initial))
    issued = core.emit("tensor_tensor_scan", Engine.vector, (dst.region,), reads, name, detail)
    if core.numerics:
        rows = (data0.shape[0], prod(data0.shape[1:]))
        left = np.ascontiguousarray(operands.shaped(call, "data0", data0, rows).T)
        right = np.ascontiguousarray(operands.shaped(call, "data1", data1, rows).T)
        start = np.broadcast_to(operands.scalar(call, "initial", initial, 1), rows[:1])
        memory.write(dst, _scan(first, second, left, right, start, reverse0=reverse0, reverse1=reverse1).T)
    return issued


def _scan(
    first: Operator,
    second: Operator,
    left: np.ndarray,
    right: np.ndarray,
    state: np.ndarray,
    *,
    reverse0: bool,
    reverse1: bool,
) -> np.ndarray:
    """Steps along the first axis."""
    results = np.empty_like(left)
    with np.errstate(all="ignore"):
        for position, (x, y) in enumerate(zip(left, right, strict=True)):
            middle = first.apply(state, x) if reverse0 else first.apply(x, state)
            state = second.apply(y, middle) if reverse1 else second.apply(middle, y)
            results[position] = state
    return results
