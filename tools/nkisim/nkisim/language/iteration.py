"""Loops: those that Python unrolls, those that the device runs, and blocks that keep their order."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from nkisim import machine
from nkisim.deprecated import warn
from nkisim.errors import ArgumentError
from nkisim.registers import VirtualRegister


def _unrolled(name: str, start: Any, stop: Any, step: Any) -> range:
    bounds = (start,) if stop is None else (start, stop, step)
    if stop is None and not (isinstance(step, int) and step == 1):
        bounds = (0, start, step)
    try:
        return range(*(operator.index(b) for b in bounds))
    except (TypeError, ValueError):
        raise ArgumentError(
            f"nl.{name}: start {start!r}, stop {stop!r}, step {step!r}; accepted: integers known when the kernel is "
            f"traced, step not 0 (registers: nl.fori_loop)"
        ) from None


def affine_range(start: Any, stop: Any = None, step: Any = 1) -> range:
    """Deprecated name of Python's `range`."""
    warn("nl.affine_range", "range")
    return _unrolled("affine_range", start, stop, step)


def sequential_range(start: Any, stop: Any = None, step: Any = 1) -> range:
    """Deprecated name of Python's `range`."""
    warn("nl.sequential_range", "range")
    return _unrolled("sequential_range", start, stop, step)


def static_range(start: Any, stop: Any = None, step: Any = 1) -> range:
    """Deprecated name of Python's `range`.

    The deep dive on dynamic loops calls it the default choice; this takes its reference, which deprecates it.
    """
    warn("nl.static_range", "range")
    return _unrolled("static_range", start, stop, step)


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[VirtualRegister]:
    """A loop that the device runs, `for i in nl.dynamic_range(...)`; each `i` is a register that only can be read.

    Args:
        start, stop: integers or registers; one alone is `stop`, from 0 on.
        step: a positive integer.

    Raises:
        ArgumentError, RegisterError: of a bound or the step.
        LoopError: within `nl.no_reorder`.
    """
    lower, upper = (0, start) if stop is None else (start, stop)
    core, values = _counted("nl.dynamic_range", lower, upper, step)
    return _looping(core, values)


def _looping(core: machine.Core, values: range) -> Iterator[VirtualRegister]:
    with core.loops.entered():
        for value in values:
            yield VirtualRegister(value, frozen=True)


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[VirtualRegister], Any], step: int = 1) -> None:
    """Runs `body_fun(i)` on the device for `i` from `lower` to below `upper`.

    `i` is a register that only can be read: one page of the documentation says that writing to it has no effect,
    another forbids it; this forbids it. Tensors made in the body end with it.

    Args:
        lower, upper: integers or registers.
        body_fun: returns None.
        step: a positive integer.

    Raises:
        ArgumentError, RegisterError: of a bound, the step or the body.
        LoopError: within `nl.no_reorder`, or a tensor made in the body is used after it.
    """
    call = "nl.fori_loop"
    core, values = _counted(call, lower, upper, step)
    _check_body(call, body_fun)
    with core.loops.entered(owns_tensors=True):
        for value in values:
            returned = body_fun(VirtualRegister(value, frozen=True))
            if returned is not None:
                raise ArgumentError(f"{call}: body_fun returned {returned!r}; accepted: None")


def while_loop(init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]) -> None:
    """Runs `register = body_fun(register)` on the device as long as the register is not 0, checked before each run.

    The body gets a copy of the register. Tensors made in the body end with it.

    Args:
        init: the first condition.
        body_fun: returns the next condition.

    Raises:
        ArgumentError, RegisterError: of the condition or the body.
        LoopError: within `nl.no_reorder`, or a tensor made in the body is used after it.
    """
    call = "nl.while_loop"
    core = machine.core(call)
    core.loops.check_allowed(call)
    _check_body(call, body_fun)
    condition = _register(call, "init", init)
    with core.loops.entered(owns_tensors=True):
        while condition.value(call):
            condition = _register(call, "what body_fun returned", body_fun(VirtualRegister(condition.state)))


def _register(call: str, what: str, value: Any) -> VirtualRegister:
    if not isinstance(value, VirtualRegister):
        raise ArgumentError(f"{call}: {what} is {value!r}; accepted: a register")
    return value


def _check_body(call: str, body_fun: Any) -> None:
    if not callable(body_fun):
        raise ArgumentError(f"{call}: body_fun is {body_fun!r}; accepted: a function of one register")


def _counted(call: str, lower: Any, upper: Any, step: Any) -> tuple[machine.Core, range]:
    core = machine.core(call)
    core.loops.check_allowed(call)
    if not isinstance(step, int) or step < 1:
        raise ArgumentError(f"{call}: step {step!r}; accepted: a positive integer known when the kernel is traced")
    return core, range(_bound(call, "lower bound", lower), _bound(call, "upper bound", upper), step)


def _bound(call: str, what: str, value: Any) -> int:
    if isinstance(value, VirtualRegister):
        return value.value(f"{call}: {what}")
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentError(f"{call}: {what} {value!r}; accepted: an integer or a register") from None


def no_reorder() -> AbstractContextManager[None]:
    """`with nl.no_reorder():` keeps the instructions issued inside, by any function, in program order.

    Loops that the device runs are not allowed inside.
    """
    return _in_order(machine.core("nl.no_reorder"))


@contextmanager
def _in_order(core: machine.Core) -> Iterator[None]:
    with core.loops.kept_in_order():
        yield
