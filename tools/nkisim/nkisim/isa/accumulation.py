"""The reduce registers of the Scalar and Vector Engines: one fp32 accumulator per lane, kept between instructions.

A lane is a partition of the instruction's input. Registers hold nothing until an instruction resets or loads them.
What is reduced are the fp32 results, before they are cast to the output's type.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim import dtypes, machine, memory
from nkisim.enums import engine as Engine
from nkisim.enums import reduce_cmd as ReduceCommand
from nkisim.errors import ArgumentError, UninitializedReadError
from nkisim.isa import operands, rules
from nkisim.numerics import alu
from nkisim.numerics.alu import Operator
from nkisim.tensor import NkiTensor

FLOATS = tuple(kind for kind in dtypes.ALL if kind.is_float)
_ACCUMULATING = (ReduceCommand.reduce, ReduceCommand.reset_reduce, ReduceCommand.load_reduce)


class ReduceRegisters:
    """The accumulators of one engine.

    Attributes:
        values: fp32, one per lane.
        known: lanes whose value the documentation defines.
    """

    def __init__(self, lanes: int) -> None:
        self.values = np.zeros(lanes, np.float32)
        self.known = np.zeros(lanes, np.bool_)


def _registers(core: machine.Core, on: Engine) -> ReduceRegisters:
    found = core.reduce_registers.get(on)
    if found is None:
        found = core.reduce_registers[on] = ReduceRegisters(core.hardware.partitions)
    return found


def _lanes(data: NkiTensor) -> slice:
    return slice(data.start_partition, data.start_partition + data.shape[0])


def require_command(call: str, command: Any) -> None:
    """The command is a member of `nisa.reduce_cmd`."""
    if not isinstance(command, ReduceCommand):
        raise ArgumentError(f"{call}: reduce_cmd is {command!r}; accepted: a member of nisa.reduce_cmd")


def accumulates(command: ReduceCommand) -> bool:
    """Whether the command reduces the instruction's results into the registers."""
    return command in _ACCUMULATING


def check(
    call: str,
    data: NkiTensor,
    command: Any,
    accepted: tuple[ReduceCommand, ...],
    result: Any,
    result_dtypes: tuple[dtypes.DType, ...] = FLOATS,
) -> None:
    """The command is one of those accepted, and `reduce_res` None or a tile with one element per partition."""
    if command not in accepted:
        names = ", ".join(f"reduce_cmd.{c.name}" for c in accepted)
        raise ArgumentError(f"{call}: reduce_cmd is {command!r}; accepted: {names}")
    if result is not None:
        rules.require_tensors(call, reduce_res=result)
        operands.check_column(call, "reduce_res", result, data)
        rules.writable(call, "reduce_res", result)
        rules.dtype(call, "reduce_res", result, result_dtypes)


def check_vector(
    call: str,
    data: NkiTensor,
    command: Any,
    accepted: tuple[ReduceCommand, ...],
    result: Any,
    result_dtypes: tuple[dtypes.DType, ...] = FLOATS,
) -> None:
    """`check`, and no result is asked for after `idle`, which leaves the Vector Engine's registers undefined."""
    check(call, data, command, accepted, result, result_dtypes)
    if result is not None and command is ReduceCommand.idle:
        raise ArgumentError(f"{call}: reduce_res with {command}; accepted: a command that sets the registers, or None")


def check_initial(call: str, data: NkiTensor, command: ReduceCommand, operand: str, value: Any, unset: Any) -> None:
    """The value to load is given exactly where the command loads it: a number or an fp32 tile (partitions, 1)."""
    if command is ReduceCommand.load_reduce:
        operands.check_scalar(call, operand, value, data, (dtypes.float32,))
    elif value is not None and not (rules.is_number(value) and value == unset):
        raise ArgumentError(f"{call}: {operand} is {value!r} with {command}; accepted: only with load_reduce")


def accumulate(
    call: str,
    core: machine.Core,
    on: Engine,
    data: NkiTensor,
    op: Operator | None,
    command: ReduceCommand,
    values: np.ndarray,
    initial: Any = None,
) -> None:
    """Does what the command says with an instruction's fp32 results [partitions, ...].

    Raises:
        UninitializedReadError: `reduce` onto registers that hold nothing.
    """
    if command is ReduceCommand.idle:
        return
    registers, lanes = _registers(core, on), _lanes(data)
    if command is ReduceCommand.load_reduce:
        registers.values[lanes] = np.reshape(operands.scalar(call, "the initial value", initial, 1), -1)
    elif command is ReduceCommand.reduce:
        _require_known(call, on, registers, lanes)
    else:
        registers.values[lanes] = op.identity if op is not None else 0
    registers.known[lanes] = True
    if accumulates(command):
        assert op is not None
        rows = alu.reduce_rows(op, values.reshape(values.shape[0], -1))
        registers.values[lanes] = alu.apply(op, registers.values[lanes], rows)


def current(call: str, core: machine.Core, on: Engine, data: NkiTensor) -> np.ndarray:
    """What the registers of the instruction's lanes hold.

    Raises:
        UninitializedReadError: nothing.
    """
    registers, lanes = _registers(core, on), _lanes(data)
    _require_known(call, on, registers, lanes)
    return registers.values[lanes]


def finish_vector(
    call: str,
    core: machine.Core,
    dst: NkiTensor,
    data: NkiTensor,
    op: Operator,
    command: ReduceCommand,
    results: np.ndarray,
    reduce_res: NkiTensor | None,
    initial: Any = None,
    *,
    negate: bool = False,
) -> None:
    """Accumulates an instruction's fp32 results, writes them to dst, and the registers to `reduce_res`."""
    if command is ReduceCommand.idle:
        forget(core, Engine.vector, data)
    accumulate(call, core, Engine.vector, data, op, command, results, initial)
    memory.write(dst, results)
    if reduce_res is not None:
        read_out(call, core, Engine.vector, data, reduce_res, negate=negate)


def load(core: machine.Core, on: Engine, data: NkiTensor, values: np.ndarray) -> None:
    """Sets the registers of the instruction's lanes."""
    registers, lanes = _registers(core, on), _lanes(data)
    registers.values[lanes] = values
    registers.known[lanes] = True


def forget(core: machine.Core, on: Engine, data: NkiTensor) -> None:
    """The instruction may have changed its lanes' registers, the documentation does not say to what."""
    _registers(core, on).known[_lanes(data)] = False


def read_out(call: str, core: machine.Core, on: Engine, data: NkiTensor, result: NkiTensor, *, negate: bool) -> None:
    """Writes the registers of the instruction's lanes to `reduce_res`."""
    values = current(call, core, on, data)
    memory.write(result, -values if negate else values.copy())


def _require_known(call: str, on: Engine, registers: ReduceRegisters, lanes: slice) -> None:
    if not registers.known[lanes].all():
        lane = lanes.start + int(np.argmin(registers.known[lanes]))
        raise UninitializedReadError(
            f"{call}: the reduce register of lane {lane} of engine {on.name} is read, and nothing has set it; "
            f"accepted: an instruction with reduce_cmd reset_reduce (or reset, load_reduce) on its lanes first"
        )
