"""Activation functions of the Scalar Engine."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from nkisim import machine, memory, source
from nkisim.dtypes import float32, tfloat32
from nkisim.enums import engine as Engine
from nkisim.enums import reduce_cmd as ReduceCommand
from nkisim.errors import ArgumentError, DtypeError, NotSimulatedError, ValueRangeWarning
from nkisim.instruction import NkiInstruction
from nkisim.isa import accumulation, indirection, operands, rules
from nkisim.numerics import activations
from nkisim.numerics.activations import FUNCTIONS, RANGES
from nkisim.numerics.alu import OPERATORS, Operator
from nkisim.tensor import NkiTensor

_COMMANDS = (ReduceCommand.idle, ReduceCommand.reset, ReduceCommand.reduce, ReduceCommand.reset_reduce)
_REDUCTIONS = ("add",)
_REDUCTIONS_OF_ACTIVATE2 = ("add", "maximum", "minimum", "abs_max", "abs_min")
_BYPASS = "bypass"
_STAGES = (
    ("multiply", "add"), ("multiply", "subtract"), ("multiply", _BYPASS),
    ("add", _BYPASS), ("subtract", _BYPASS), (_BYPASS, _BYPASS),
)  # fmt: skip


def activation(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: ReduceCommand = ReduceCommand.idle,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = op(data * scale + bias)` in fp32 on the Scalar Engine, and optionally the sum of that per partition.

    The sum is kept in the engine's reduce registers; reading them out is an instruction of its own. The documentation
    also writes `reduce_regs += reduce_op(reduce_regs, ...)`, which would count what is there twice; this adds once,
    as the text has it. Functions are exact outside their valid range too, with a ValueRangeWarning, except `sin`,
    which goes on as a cubic.

    Args:
        dst, data: tiles with as many partitions and elements per partition.
        op: an activation function of `nki.language`; `nl.prelu` has its slope in `nisa.activate2` only.
        bias: a number or a tile (partitions, 1), of any type but tfloat32.
        scale: a number or an fp32 tile (partitions, 1).
        reduce_op: `nl.add`; needed where reduce_cmd reduces.
        reduce_res: tile (partitions, 1) that takes the registers, or None to leave them in the engine.
        reduce_cmd: idle, reset, reduce or reset_reduce.

    Raises:
        WrongBufferError, DtypeError, ShapeError, PartitionError, ArgumentError: the operands do not suit.
        UninitializedReadError: an operand, or a reduce register, that nothing has written.
    """
    return _activate("nisa.activation", dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmd, name)


def activation_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    reduce_op: Any,
    reduce_res: NkiTensor | None,
    bias: Any = None,
    scale: Any = 1.0,
    name: str | None = None,
) -> NkiInstruction:
    """`nisa.activation` with `reduce_cmd.reset_reduce`, kept by the vendor for older kernels."""
    command = ReduceCommand.reset_reduce
    return _activate("nisa.activation_reduce", dst, op, data, bias, scale, reduce_op, reduce_res, command, name)


def _activate(
    call: str,
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any,
    scale: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None,
    reduce_cmd: ReduceCommand,
    name: str | None,
) -> NkiInstruction:
    core = machine.core(call)
    try:
        key = (
            call, op, dst.signature, data.signature, operands.signature(bias), operands.signature(scale),
            operands.signature(reduce_res), reduce_op, reduce_cmd,
        )  # fmt: skip
        plan = core.plans.get(key)
    except (AttributeError, TypeError):
        key, plan = None, None
    if plan is None:
        plan = _plan(call, core, dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmd)
        core.plans[key] = plan
    short, function, reduction = plan
    reads = (data.region, *operands.regions(scale, bias))
    issued = core.emit(short, Engine.scalar, (dst.region,), reads, name, function)
    if reduce_res is not None:
        issued = _read_out(core, reduce_res, name)
    if core.numerics:
        with np.errstate(all="ignore"):
            values = operands.shaped(call, "data", data, dst.shape)
            if isinstance(scale, NkiTensor) or scale != 1:
                values = values * operands.scalar(call, "scale", scale, values.ndim)
            if bias is not None:
                values = values + operands.scalar(call, "bias", bias, values.ndim)
            _warn_outside(call, core, function, values)
            results = FUNCTIONS[function](values)
        _finish(call, core, dst, data, results, reduction, reduce_res, reduce_cmd)
    return issued


def _plan(
    call: str,
    core: machine.Core,
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any,
    scale: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None,
    reduce_cmd: ReduceCommand,
) -> tuple[str, str, Operator | None]:
    """Checks the operands; the record's name, the function's and the reduction."""
    function = _function(call, op)
    if function == "prelu":
        raise NotSimulatedError(f"{call} with nl.prelu, whose slope it does not take; accepted: nisa.activate2")
    accumulation.require_command(call, reduce_cmd)
    reduction = None
    if reduce_op is not None or reduce_cmd is not ReduceCommand.idle:
        reduction = _reduction(call, reduce_op, reduce_cmd, _REDUCTIONS)
    rules.require_tensors(call, dst=dst, data=data)
    _check_tiles(call, core, dst, data)
    operands.check_scalar(call, "scale", scale, data, (float32,))
    if bias is not None:
        operands.check_scalar(call, "bias", bias, data, None)
        _check_bias_dtype(call, bias)
    accumulation.check(call, data, reduce_cmd, _COMMANDS, reduce_res)
    return call.removeprefix("nisa."), function, reduction


def _read_out(core: machine.Core, reduce_res: NkiTensor, name: str | None) -> NkiInstruction:
    """The instruction that reads the reduce registers out."""
    return core.emit("read_reduce_registers", Engine.scalar, (reduce_res.region,), (), name)


def _finish(
    call: str,
    core: machine.Core,
    dst: NkiTensor,
    data: NkiTensor,
    results: np.ndarray,
    reduction: Operator | None,
    reduce_res: NkiTensor | None,
    command: ReduceCommand,
) -> None:
    accumulation.accumulate(call, core, Engine.scalar, data, reduction, command, results)
    memory.write(dst, results)
    if reduce_res is not None:
        accumulation.read_out(call, core, Engine.scalar, data, reduce_res, negate=False)


def _function(call: str, op: Any) -> str:
    known = operands.looked_up(_names, op)
    if known is not None:
        return known
    name = operands.language_name(call, "op", op)
    if name not in FUNCTIONS and name != "prelu":
        raise ArgumentError(f"{call}: op is nl.{name}; accepted: {', '.join(FUNCTIONS)}, prelu")
    _names[op] = name
    return name


_names: dict[Any, str] = {}
"""Functions of `nki.language` that have been looked up before."""


def _reduction(call: str, op: Any, command: ReduceCommand, accepted: tuple[str, ...]) -> Operator | None:
    if op is not None:
        return operands.operator_among(call, "reduce_op", op, accepted)
    if accumulation.accumulates(command):
        raise ArgumentError(f"{call}: reduce_op is None with {command}; accepted: {', '.join(accepted)}")
    return None


def _check_tiles(call: str, core: machine.Core, dst: NkiTensor, data: NkiTensor) -> None:
    rules.numeric(call, "data", data, core.hardware, rules.ON_CHIP)
    rules.numeric(call, "dst", dst, core.hardware, rules.ON_CHIP)
    rules.writable(call, "dst", dst)
    indirection.check(call, Engine.scalar, dst, "data", data)
    rules.same_elements(call, "dst", dst, "data", data)


def _check_bias_dtype(call: str, bias: Any) -> None:
    if isinstance(bias, NkiTensor) and bias.dtype is tfloat32:
        raise DtypeError(f"{call}: bias {bias.name} is tfloat32; accepted: any other type")


def _warn_outside(call: str, core: machine.Core, function: str, values: np.ndarray) -> None:
    """Warns once a kernel line and run of inputs that the hardware's approximation does not cover."""
    valid = RANGES.get(function)
    if valid is None:
        return
    value = valid.first_outside(values)
    where = source.current()
    if value is None or where is None or (function, where) in core.warned:
        return
    core.warned.add((function, where))
    message = f"{call}: nl.{function} of {value:g}, outside its valid range {valid.text}; the chip's result is invalid"
    warnings.warn_explicit(message, ValueRangeWarning, where.code.co_filename, where.line)


def activate2(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    imm0: Any,
    imm1: Any,
    op0: Any,
    op1: Any,
    relu_param: Any = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: ReduceCommand = ReduceCommand.idle,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = op((data <op0> imm0) <op1> imm1)` in fp32 on the Scalar Engine, with an optional reduction (trn3).

    Args:
        dst, data, op, reduce_res, reduce_cmd: as for `nisa.activation`.
        imm0, imm1: numbers or tiles (partitions, 1); of one type where both are tiles.
        op0, op1: multiply with add, subtract or bypass; add, subtract or bypass with bypass.
        relu_param: slope of `nl.prelu` for negative values; a number or a tile (partitions, 1).
        reverse0, reverse1: swap the sides of an operator, which is not bypass.
        reduce_op: add, maximum, minimum, abs_max or abs_min.

    Raises:
        TargetError: on trn2; otherwise as `nisa.activation`.
    """
    call = "nisa.activate2"
    core = machine.core(call)
    if reverse0 is not False or reverse1 is not False:
        rules.flags(call, reverse0=reverse0, reverse1=reverse1)
    try:
        scalars = operands.signatures(imm0, imm1, relu_param, reduce_res)
        flags = bool(reverse0), bool(reverse1)
        key: Any = (call, op, dst.signature, data.signature, scalars, op0, op1, flags, reduce_op, reduce_cmd)
        plan = core.plans.get(key)
    except (AttributeError, TypeError):
        key, plan = None, None
    if plan is None:
        rules.generation(call, core.hardware, core.hardware.supports_mx, "trn3")
        rules.require_tensors(call, dst=dst, data=data)
        function = _function(call, op)
        stages = (_stage(call, "op0", op0), _stage(call, "op1", op1))
        accumulation.require_command(call, reduce_cmd)
        reduction = _reduction(call, reduce_op, reduce_cmd, _REDUCTIONS_OF_ACTIVATE2)
        _check_tiles(call, core, dst, data)
        _check_stages(call, data, stages, imm0, imm1, reverse0, reverse1)
        operands.check_scalar(call, "relu_param", relu_param, data, None)
        accumulation.check(call, data, reduce_cmd, _COMMANDS, reduce_res)
        plan = core.plans[key] = function, stages, reduction
    function, stages, reduction = plan
    reads = (data.region, *operands.regions(imm0, imm1, relu_param))
    issued = core.emit("activate2", Engine.scalar, (dst.region,), reads, name, (function, *stages))
    if reduce_res is not None:
        issued = _read_out(core, reduce_res, name)
    if core.numerics:
        values = operands.shaped(call, "data", data, dst.shape)
        for stage, operand, imm, swapped in ((stages[0], "imm0", imm0, reverse0), (stages[1], "imm1", imm1, reverse1)):
            values = _apply_stage(call, stage, operand, imm, values, swapped=swapped)
        _warn_outside(call, core, function, values)
        with np.errstate(all="ignore"):
            if function == "prelu":
                slope = operands.scalar(call, "relu_param", relu_param, values.ndim)
                results = activations.prelu(values, slope)
            else:
                results = FUNCTIONS[function](values)
        _finish(call, core, dst, data, results, reduction, reduce_res, reduce_cmd)
    return issued


def _stage(call: str, parameter: str, op: Any) -> str:
    """Name of the operator of a stage; None stands for bypass, as "to be set" suggests."""
    return _BYPASS if op is None else operands.language_name(call, parameter, op)


def _check_stages(
    call: str, data: NkiTensor, stages: tuple[str, str], imm0: Any, imm1: Any, reverse0: bool, reverse1: bool
) -> None:
    if stages not in _STAGES:
        pairs = ", ".join(f"({first}, {second})" for first, second in _STAGES)
        raise ArgumentError(f"{call}: op0 nl.{stages[0]}, op1 nl.{stages[1]}; accepted: {pairs}")
    for operand, stage, swapped in (("reverse0", stages[0], reverse0), ("reverse1", stages[1], reverse1)):
        if swapped and stage == _BYPASS:
            raise ArgumentError(f"{call}: {operand} with {_BYPASS}; accepted: with an operator")
    operands.check_scalar(call, "imm0", imm0, data, None)
    operands.check_scalar(call, "imm1", imm1, data, None)
    if isinstance(imm0, NkiTensor) and isinstance(imm1, NkiTensor):
        rules.same_dtype(call, "imm1", imm1, "imm0", imm0)


def _apply_stage(call: str, stage: str, operand: str, imm: Any, values: np.ndarray, *, swapped: bool) -> np.ndarray:
    if stage == _BYPASS:
        return values
    other = operands.scalar(call, operand, imm, values.ndim)
    apply = OPERATORS[stage].apply
    with np.errstate(all="ignore"):
        result: np.ndarray = apply(other, values) if swapped else apply(values, other)
    return result
