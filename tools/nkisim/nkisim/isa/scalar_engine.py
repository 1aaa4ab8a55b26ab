"""Activation functions of the Scalar Engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim import machine, memory
from nkisim.dtypes import float32
from nkisim.enums import engine as Engine
from nkisim.enums import reduce_cmd as ReduceCommand
from nkisim.errors import ArgumentError, NotSimulatedError
from nkisim.instruction import NkiInstruction
from nkisim.isa import operands, rules
from nkisim.numerics.activations import FUNCTIONS
from nkisim.tensor import NkiTensor


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
    """`dst = op(data * scale + bias)` in fp32 on the Scalar Engine.

    Args:
        dst, data: tiles with as many partitions and elements per partition.
        op: an activation function of `nki.language`.
        bias: a number or a tile (partitions, 1).
        scale: a number or an fp32 tile (partitions, 1).
        reduce_op, reduce_res, reduce_cmd: reductions are not simulated yet.
    """
    call = "nisa.activation"
    core = machine.core(call)
    rules.require_tensors(call, dst=dst, data=data)
    if reduce_op is not None or reduce_res is not None or reduce_cmd is not ReduceCommand.idle:
        raise NotSimulatedError(f"{call} with a reduction is not simulated yet")
    function = operands.language_name(call, "op", op)
    if function not in FUNCTIONS:
        raise ArgumentError(f"{call}: op is nl.{function}; accepted: {', '.join(FUNCTIONS)}")
    key = (call, function, dst.signature, data.signature, *operands.signatures(bias, scale))
    if key not in core.checked:
        rules.tile(call, "data", data, core.hardware, rules.ON_CHIP)
        rules.tile(call, "dst", dst, core.hardware, rules.ON_CHIP)
        rules.writable(call, "dst", dst)
        rules.same_elements(call, "dst", dst, "data", data)
        operands.check_scalar(call, "scale", scale, data, (float32,))
        if bias is not None:
            operands.check_scalar(call, "bias", bias, data, None)
        core.checked.add(key)
    issued = core.emit(
        "activation", Engine.scalar, (dst.region,), (data.region, *operands.regions(scale, bias)), name, function
    )
    if core.numerics:
        with np.errstate(all="ignore"):
            values = operands.shaped(call, "data", data, dst.shape)
            values = values * operands.scalar(call, "scale", scale, values.ndim)
            if bias is not None:
                values = values + operands.scalar(call, "bias", bias, values.ndim)
            memory.write(dst, FUNCTIONS[function](values))
    return issued
