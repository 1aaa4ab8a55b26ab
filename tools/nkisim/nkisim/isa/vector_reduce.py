"""Elementwise instructions of the Vector Engine that reduce, or scan, into its reduce registers."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from nkisim import dtypes, machine, memory
from nkisim.enums import engine as Engine
from nkisim.enums import reduce_cmd as ReduceCommand
from nkisim.errors import ArgumentError, ShapeError
from nkisim.instruction import NkiInstruction
from nkisim.isa import accumulation, elementwise, indirection, operands, rules
from nkisim.numerics.alu import OPERATORS, Operator
from nkisim.tensor import NkiTensor

_SETTING = (ReduceCommand.reset_reduce, ReduceCommand.reduce, ReduceCommand.load_reduce)
_REDUCTIONS = ("add", "multiply", "maximum", "minimum")
_SCANS = ("add", "subtract", "multiply", "maximum", "minimum")
_ADD = OPERATORS["add"]
_MAX_EXPONENTIAL_DIMS = 4
_SUMS = (
    dtypes.float8_e4m3, dtypes.float8_e5m2, dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.tfloat32,
)  # fmt: skip
_EXPONENTIALS = (*_SUMS, dtypes.int8, dtypes.int16, dtypes.int32, dtypes.uint8, dtypes.uint16)
_EXPONENTS = (*(d for d in _EXPONENTIALS if d is not dtypes.tfloat32), dtypes.uint32)
_SCANNED = (
    dtypes.bfloat16, dtypes.float16, dtypes.float32, dtypes.float8_e4m3, dtypes.float8_e4m3fn, dtypes.float8_e5m2,
    dtypes.uint8, dtypes.uint16, dtypes.int8, dtypes.int16,
)  # fmt: skip


def exponential(
    dst: NkiTensor,
    src: NkiTensor,
    max_value: Any = 0.0,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: ReduceCommand = ReduceCommand.idle,
    reduce_init: Any = 0.0,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = exp(src - max_value)` in fp32 on the Vector Engine, and optionally the sum of that (trn3).

    Args:
        dst, src: tiles with as many partitions and elements per partition, of up to four dimensions.
        max_value: a number or an fp32 tile (partitions, 1).
        reduce_res: float tile (partitions, 1) that takes the reduce registers; not with idle.
        reduce_cmd: idle, after which the registers hold nothing defined; reset_reduce, reduce or load_reduce.
        reduce_init: with load_reduce, a number or an fp32 tile (partitions, 1) to start from.
    """
    call = "nisa.exponential"
    core = machine.core(call)
    try:
        key: Any = (
            call, dst.signature, src.signature, operands.signature(max_value), operands.signature(reduce_res),
            operands.signature(reduce_init), reduce_cmd,
        )  # fmt: skip
        passed = key in core.checked
    except (AttributeError, TypeError):
        key, passed = (), False
    if not passed:
        rules.generation(call, core.hardware, core.hardware.supports_mx, "trn3")
        rules.require_tensors(call, dst=dst, src=src)
        accumulation.require_command(call, reduce_cmd)
        rules.numeric(call, "src", src, core.hardware, rules.ON_CHIP)
        rules.numeric(call, "dst", dst, core.hardware, rules.ON_CHIP)
        rules.writable(call, "dst", dst)
        indirection.check(call, Engine.vector, dst, "src", src)
        rules.same_elements(call, "dst", dst, "src", src)
        rules.dtype(call, "dst", dst, _EXPONENTIALS)
        rules.dtype(call, "src", src, _EXPONENTS)
        for operand, tensor in (("dst", dst), ("src", src)):
            if len(tensor.shape) > _MAX_EXPONENTIAL_DIMS:
                raise ShapeError(f"{call}: {operand} {list(tensor.shape)}; accepted: up to four dimensions")
        operands.check_scalar(call, "max_value", max_value, src, (dtypes.float32,))
        accumulation.check_vector(call, src, reduce_cmd, (ReduceCommand.idle, *_SETTING), reduce_res, _SUMS)
        core.checked.add(key)
    accumulation.check_initial(call, src, reduce_cmd, "reduce_init", reduce_init, 0.0)
    reads = (src.region, *operands.regions(max_value, reduce_init))
    writes = (dst.region,) if reduce_res is None else (dst.region, reduce_res.region)
    issued = core.emit("exponential", Engine.vector, writes, reads, name, reduce_cmd)
    if core.numerics:
        values = operands.shaped(call, "src", src, dst.shape)
        with np.errstate(all="ignore"):
            results = np.exp(values - operands.scalar(call, "max_value", max_value, values.ndim))
        accumulation.finish_vector(call, core, dst, src, _ADD, reduce_cmd, results, reduce_res, reduce_init)
    return issued


def tensor_scalar_reduce(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: ReduceCommand = ReduceCommand.reset_reduce,
    reduce_init: Any = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = data <op0> operand0` in fp32 on the Vector Engine, and its reduction over all free dimensions.

    Args:
        dst, data: tiles with as many partitions and elements per partition.
        op0: an arithmetic operator, of two operands or one.
        operand0: a number or an fp32 tile (partitions, 1); None or 0 with a unary operator.
        reduce_op: add, multiply, max or min.
        reduce_res: float tile (partitions, 1) that takes the reduce registers, or None to leave them in the engine.
        reverse0: only False; the documentation says that it is not supported yet.
        reduce_cmd: reset_reduce, reduce or load_reduce.
        reduce_init: with load_reduce, a number or an fp32 tile (partitions, 1) to start from.
        reduce_res_negate: write the registers negated.
    """
    call = "nisa.tensor_scalar_reduce"
    core = machine.core(call)
    if reverse0 is not False or reduce_res_negate is not False:
        rules.flags(call, reverse0=reverse0, reduce_res_negate=reduce_res_negate)
    if reverse0:
        raise ArgumentError(f"{call}: reverse0 is {reverse0!r}; accepted: False, the instruction cannot swap its sides")
    try:
        key: Any = (
            call, op0, reduce_op, dst.signature, data.signature, operands.signature(operand0),
            operands.signature(reduce_res), operands.signature(reduce_init), reduce_cmd,
        )  # fmt: skip
        plan = core.plans.get(key)
    except (AttributeError, TypeError):
        key, plan = None, None
    if plan is None:
        rules.require_tensors(call, dst=dst, data=data)
        operator = operands.operator(call, "op0", op0, ("arithmetic", "unary"))
        reduction = operands.operator_among(call, "reduce_op", reduce_op, _REDUCTIONS)
        accumulation.require_command(call, reduce_cmd)
        rules.numeric(call, "data", data, core.hardware, rules.ON_CHIP)
        rules.numeric(call, "dst", dst, core.hardware, rules.ON_CHIP)
        rules.writable(call, "dst", dst)
        indirection.check(call, Engine.vector, dst, "data", data)
        rules.same_elements(call, "dst", dst, "data", data)
        elementwise.check_operand(call, "operand0", operator, operand0, data)
        accumulation.check(call, data, reduce_cmd, _SETTING, reduce_res)
        plan = core.plans[key] = operator, reduction, (operator.name, reduction.name)
    operator, reduction, detail = plan
    if operator.is_unary:
        elementwise.check_constant(call, "operand0", operator, operand0, data)
    accumulation.check_initial(call, data, reduce_cmd, "reduce_init", reduce_init, None)
    reads = (data.region, *operands.regions(operand0, reduce_init))
    writes = (dst.region,) if reduce_res is None else (dst.region, reduce_res.region)
    issued = core.emit("tensor_scalar_reduce", Engine.vector, writes, reads, name, detail)
    if core.numerics:
        values = operands.shaped(call, "data", data, dst.shape)
        results = elementwise.stage(call, operator, "operand0", operand0, values, swapped=False)
        accumulation.finish_vector(
            call, core, dst, data, reduction, reduce_cmd, results, reduce_res, reduce_init, negate=reduce_res_negate
        )
    return issued


def tensor_scalar_cumulative(
    dst: NkiTensor,
    src: NkiTensor,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: ReduceCommand = ReduceCommand.reset_reduce,
    name: str | None = None,
) -> NkiInstruction:
    """Running reduction `r = (src[i] <op0> imm0) <op1> r; dst[i] = r` along the free dimensions, in fp32.

    The reduce register r starts from the neutral value of op1, 0 with subtract. The documentation's pseudo code also
    knows a `reverse0`, which the call does not take.

    Args:
        dst, src: tiles with as many partitions and elements per partition, of fp8, 16-bit, fp32 or narrow integers.
        op0: an arithmetic operator.
        op1: add, subtract, multiply, max or min.
        imm0: a number or an fp32 tile (partitions, 1).
        imm1: with load_reduce, a number or an fp32 tile (partitions, 1) to start from.
        reduce_cmd: reset_reduce, reduce or load_reduce.
    """
    call = "nisa.tensor_scalar_cumulative"
    core = machine.core(call)
    try:
        key: Any = (
            call, op0, op1, reduce_cmd, dst.signature, src.signature, operands.signature(imm0),
            operands.signature(imm1),
        )  # fmt: skip
        plan = core.plans.get(key)
    except (AttributeError, TypeError):
        key, plan = None, None
    if plan is None:
        rules.require_tensors(call, dst=dst, src=src)
        operator = operands.operator(call, "op0", op0, ("arithmetic",))
        reduction = operands.operator_among(call, "op1", op1, _SCANS)
        accumulation.require_command(call, reduce_cmd)
        rules.numeric(call, "src", src, core.hardware, rules.ON_CHIP)
        rules.numeric(call, "dst", dst, core.hardware, rules.ON_CHIP)
        rules.writable(call, "dst", dst)
        indirection.check(call, Engine.vector, dst, "src", src)
        rules.same_elements(call, "dst", dst, "src", src)
        rules.dtype(call, "dst", dst, _SCANNED)
        rules.dtype(call, "src", src, _SCANNED)
        operands.check_scalar(call, "imm0", imm0, src, (dtypes.float32,))
        accumulation.check(call, src, reduce_cmd, _SETTING, None)
        plan = core.plans[key] = operator, reduction, (operator.name, reduction.name)
    operator, reduction, detail = plan
    accumulation.check_initial(call, src, reduce_cmd, "imm1", imm1, None)
    reads = (src.region, *operands.regions(imm0, imm1))
    issued = core.emit("tensor_scalar_cumulative", Engine.vector, (dst.region,), reads, name, detail)
    if core.numerics:
        rows = (src.shape[0], prod(src.shape[1:]))
        values = elementwise.stage(call, operator, "imm0", imm0, operands.shaped(call, "src", src, rows), swapped=False)
        command = ReduceCommand.reset if reduce_cmd is ReduceCommand.reset_reduce else reduce_cmd
        _start(call, core, src, reduction, command, imm1)
        results = _running(reduction, values, accumulation.current(call, core, Engine.vector, src))
        accumulation.load(core, Engine.vector, src, results[:, -1])
        memory.write(dst, results)
    return issued


def _start(call: str, core: machine.Core, src: NkiTensor, op: Operator, command: ReduceCommand, initial: Any) -> None:
    """What the register holds before the first element."""
    if command is ReduceCommand.reset:
        values = np.full(src.shape[0], op.identity, np.float32)
    elif command is ReduceCommand.load_reduce:
        values = np.broadcast_to(operands.scalar(call, "imm1", initial, 1), src.shape[:1])
    else:
        return
    accumulation.load(core, Engine.vector, src, values)


def _running(op: Operator, values: np.ndarray, register: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        if op.name != "subtract":
            results: np.ndarray = op.apply.accumulate(np.column_stack([register, values]), axis=1)  # type: ignore[attr-defined]
            return results[:, 1:]
        results = np.empty_like(values)
        for position in range(values.shape[1]):
            register = values[:, position] - register
            results[:, position] = register
    return results
