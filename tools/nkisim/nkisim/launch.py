"""Runs kernels: `jit`, `simulate`, and `run`, which also returns what was recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from common import hardware
from nkisim import border, capacity, machine
from nkisim.capacity import MemoryReport
from nkisim.errors import LaunchError
from nkisim.machine import Core, Launch
from nkisim.options import Options
from nkisim.record import Record
from nkisim.turns import Turns

MAX_CORES = 2


class Kernel:
    """A kernel function as `nki.jit` returns it: `kernel(...)`, or `kernel[lnc](...)` on that many cores.

    Called while another kernel runs, it is traced inline as part of it.
    """

    __name__: str

    def __init__(self, function: Callable[..., Any], lnc: int = 1) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.lnc = lnc

    def __getitem__(self, lnc: Any) -> Kernel:
        """The kernel on `lnc` cores, 1 or 2."""
        count = lnc[0] if isinstance(lnc, tuple) and len(lnc) == 1 else lnc
        if not isinstance(count, int) or not 1 <= count <= MAX_CORES:
            raise LaunchError(f"{self.__name__}[{lnc!r}]; accepted: 1 or {MAX_CORES} cores")
        return Kernel(self.function, count)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it on the simulator, or inline in the kernel that is running."""
        if machine.current is not None:
            return self.function(*args, **kwargs)
        return run(self, *args, **kwargs).outputs


def jit(fn: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
    """Marks a function as a kernel. See `Kernel` for what it returns.

    Args:
        fn: the function; None where `jit` is used with options, as in `@nki.jit(...)`.
        **kwargs: options of the vendor's compiler. They do not change what a simulation does.
    """
    return Kernel(fn) if fn is not None else Kernel


def simulate(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A callable that runs `kernel` on the CPU and returns numpy arrays, or torch tensors if it was given any.

    Arrays that the kernel writes to are updated in place, once the run has succeeded. The target is what
    NEURON_PLATFORM_TARGET_OVERRIDE names; NKI_PRECISE_FP=0 is not simulated yet.

    Args:
        kernel: a function, decorated with `nki.jit` or not, also as `kernel[lnc]`.
    """

    @functools.wraps(kernel)
    def simulated(*args: Any, **kwargs: Any) -> Any:
        return run(kernel, *args, **kwargs).outputs

    return simulated


@dataclass(frozen=True)
class CoreReport:
    """What one core did: its records in program order and its peaks of memory."""

    stream: list[Record]
    memory: MemoryReport


@dataclass(frozen=True)
class Run:
    """A finished simulation: the kernel's outputs (None without numerics) and a report per core."""

    outputs: Any
    cores: tuple[CoreReport, ...]


def run(kernel: Callable[..., Any], *args: Any, options: Options | None = None, **kwargs: Any) -> Run:
    """Runs a kernel on the CPU.

    Args:
        kernel: as for `simulate`.
        *args, **kwargs: the kernel's arguments; numpy arrays and torch tensors become HBM tensors, also inside
            lists, tuples and dictionaries.
        options: target and numerics; defaults from the environment.

    Raises:
        NkiValidationError: the kernel breaks a rule; the subclass says which.
    """
    chosen = options if options is not None else Options()
    launched = kernel if isinstance(kernel, Kernel) else Kernel(kernel)
    launch = Launch(chosen, hardware.get(chosen.target), launched.lnc)
    bound = border.bind(launched.function, args, kwargs)
    arguments = border.Arguments(bound, launch.hardware, numerics=chosen.numerics)
    cores = [Core(launch, number) for number in range(launched.lnc)]
    results: list[Any] = [None] * len(cores)

    def body(core: Core) -> None:
        results[core.program_id] = launched.function(*arguments.positional, **arguments.named)

    _run_cores(launch, cores, body)
    reports = tuple(CoreReport(core.stream, capacity.measure(core.stream, core.hardware)) for core in cores)
    outputs = arguments.outputs(results[0]) if chosen.numerics else None
    arguments.commit()
    return Run(outputs, reports)


def _run_cores(launch: Launch, cores: list[Core], body: Callable[[Core], None]) -> None:
    """One core runs in the caller's thread, where a debugger expects it; several take turns."""

    def with_turn(core: Core) -> None:
        before = machine.take_turn(core)
        try:
            body(core)
        finally:
            machine.take_turn(before)

    if len(cores) == 1:
        with_turn(cores[0])
        return
    turns = Turns([(f"core {core.program_id}", functools.partial(with_turn, core)) for core in cores])
    launch.wait = _waiting(turns)
    turns.run()


def _waiting(turns: Turns) -> Callable[[Callable[[], bool], str], None]:
    def wait(ready: Callable[[], bool], waits_for: str) -> None:
        me = machine.current
        try:
            turns.wait(ready, waits_for)
        finally:
            machine.take_turn(me)

    return wait
