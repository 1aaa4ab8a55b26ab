"""Moves between registers and memory, and what the target is."""

from __future__ import annotations

from typing import Any

import numpy as np

from common import hardware
from nkisim import machine, memory
from nkisim.dtypes import DType
from nkisim.enums import engine as Engine
from nkisim.enums import nc_version
from nkisim.errors import ArgumentError, DtypeError, RegisterError, ShapeError
from nkisim.instruction import NkiInstruction
from nkisim.isa import rules
from nkisim.options import Options
from nkisim.registers import VirtualRegister
from nkisim.tensor import NkiTensor

_MAX_BYTES = 4
_MEMORIES = (rules.SBUF, *rules.HBM)
_RANGE = (-(1 << 31), (1 << 32) - 1)


def get_nc_version() -> nc_version:
    """Generation of the core that runs; outside a kernel, of the target that the environment names."""
    running = machine.current
    facts = running.hardware if running is not None else hardware.get(Options().target)
    return nc_version[facts.generation]


def get_nc_sub_version() -> int:
    """Silicon revision within the generation: 0, the first."""
    return 0


def register_alloc(x: Any = None) -> VirtualRegister:
    """A register.

    Args:
        x: what it holds at first: None for nothing, an integer, or a tensor of one element that is loaded into it
            (which the documentation leaves out and public kernels use).

    Raises:
        ArgumentError: `x` is none of these.
    """
    call = "nisa.register_alloc"
    machine.core(call)
    register = VirtualRegister()
    if isinstance(x, NkiTensor):
        _load(call, "x", register, x)
    elif x is not None:
        register.state = _immediate(call, "x", x, "None, an integer or a tensor of one element")
    return register


def register_move(dst: VirtualRegister, src: Any) -> None:
    """Sets a register to an integer or to what another register holds.

    Raises:
        ArgumentError: `src` is neither; RegisterError: `dst` is a loop variable, or `src` holds nothing.
    """
    call = "nisa.register_move"
    machine.core(call)
    _writable(call, dst)
    if isinstance(src, VirtualRegister):
        dst.state = src.state
    else:
        dst.state = _immediate(call, "src", src, "an integer or a register")


def register_load(dst: VirtualRegister, src: NkiTensor) -> NkiInstruction:
    """Loads the one element of a tensor in SBUF or HBM into a register. Floats become integers towards zero.

    Raises:
        ShapeError, DtypeError, WrongBufferError, UninitializedReadError: `src` is no such element.
        RegisterError: `dst` is a loop variable.
    """
    return _load("nisa.register_load", "src", dst, src)


def register_store(dst: NkiTensor, src: VirtualRegister) -> NkiInstruction:
    """Stores a register in the one element of a tensor in SBUF or HBM.

    Raises:
        ShapeError, DtypeError, WrongBufferError: `dst` is no such element.
        RegisterError: `src` holds nothing.
    """
    call = "nisa.register_store"
    core = machine.core(call)
    _check_element(call, core, "dst", dst)
    if not isinstance(src, VirtualRegister):
        raise ArgumentError(f"{call}: src is {src!r}; accepted: a register")
    issued = core.emit("register_store", Engine.sync, (dst.region,), ())
    if core.numerics:
        memory.write(dst, np.full(dst.shape, src.value(call), np.int64))
    return issued


def _load(call: str, operand: str, dst: VirtualRegister, src: NkiTensor) -> NkiInstruction:
    core = machine.core(call)
    _writable(call, dst)
    _check_element(call, core, operand, src)
    issued = core.emit("register_load", Engine.sync, (), (src.region,))
    dst.state = _whole(call, operand, memory.read(call, operand, src).reshape(()).item()) if core.numerics else None
    return issued


def _writable(call: str, register: Any) -> None:
    if not isinstance(register, VirtualRegister):
        raise ArgumentError(f"{call}: dst is {register!r}; accepted: a register of nisa.register_alloc")
    if register.frozen:
        raise RegisterError(f"{call}: dst is the variable of a dynamic loop; accepted: any other register")


def _whole(call: str, operand: str, value: Any) -> int:
    """A loaded number towards zero, which 32 bits hold."""
    if not _RANGE[0] - 1 < value < _RANGE[1] + 1:
        raise RegisterError(f"{call}: {operand} holds {value}; accepted: what 32 bits hold")
    return int(value)


def _check_element(call: str, core: machine.Core, operand: str, tensor: Any) -> None:
    try:
        key = call, operand, tensor.signature
    except AttributeError:
        rules.require_tensors(call, **{operand: tensor})
        raise
    if key not in core.checked:
        _element(call, operand, tensor)
        core.checked.add(key)


def _element(call: str, operand: str, tensor: NkiTensor) -> None:
    rules.buffer(call, operand, tensor, _MEMORIES)
    if tensor.size != 1:
        raise ShapeError(f"{call}: {operand} {tensor.name} {list(tensor.shape)}; accepted: one element")
    kind: DType = tensor.dtype
    if kind.itemsize > _MAX_BYTES or kind.kind not in ("integer", "boolean", "float"):
        raise DtypeError(f"{call}: {operand} {tensor.name} is {kind}; accepted: numbers of up to 32 bits")


def _immediate(call: str, operand: str, value: Any, accepted: str) -> int:
    if not rules.is_integer(value) or not _RANGE[0] <= value <= _RANGE[1]:
        raise ArgumentError(f"{call}: {operand} is {value!r}; accepted: {accepted} of 32 bits")
    return int(value)
