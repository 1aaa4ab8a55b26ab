"""Prepares the ranks of a run, executes them, and reports what they did."""

from __future__ import annotations

import functools
import gc
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from common import hardware
from nkisim import border, capacity, machine
from nkisim.capacity import MemoryReport
from nkisim.errors import DeadlockError, DivergenceError
from nkisim.machine import Core, Launch
from nkisim.numerics.decode import DecodeCache
from nkisim.options import Options
from nkisim.ranks.meeting import World
from nkisim.record import Record, accesses
from nkisim.turns import POLL_SECONDS, Turns


@dataclass(frozen=True)
class CoreReport:
    """What one core did.

    Attributes:
        stream: its records in program order.
        memory: its peaks of memory.
        dependencies: positions in the stream that the instruction at a position was made to wait for.
        ordered: (first, last + 1) positions of the blocks that `nl.no_reorder` keeps in order.
    """

    stream: list[Record]
    memory: MemoryReport
    dependencies: dict[int, list[int]]
    ordered: list[tuple[int, int]]


@dataclass(frozen=True)
class Run:
    """A finished simulation: the kernel's outputs (None without numerics) and a report per core."""

    outputs: Any
    cores: tuple[CoreReport, ...]


@dataclass
class Rank:
    """One rank before and while it runs.

    Attributes:
        function: the kernel.
        arguments: what it is called with.
        results: what it returned, per core.
    """

    function: Callable[..., Any]
    launch: Launch
    arguments: border.Arguments
    cores: list[Core]
    results: list[Any] = field(default_factory=list)

    def bodies(self) -> list[tuple[str, Callable[[], None]]]:
        """What each core runs, by name."""
        return [(self.launch.place(core.program_id), functools.partial(self._body, core)) for core in self.cores]

    def _body(self, core: Core) -> None:
        machine.take_turn(core)
        self.results[core.program_id] = self.function(*self.arguments.positional, **self.arguments.named)

    def report(self) -> Run:
        """Checks what can be checked only at the end."""
        for shared in self.launch.watched:
            shared.settle()
        for core in self.cores:
            core.loops.check_tensors()
        for core, result in zip(self.cores[1:], self.results[1:], strict=True):
            if not border.same_result(self.results[0], result):
                raise DivergenceError(
                    f"{self.launch.place(0)} returns {self.results[0]!r}, {self.launch.place(core.program_id)} "
                    f"{result!r}; accepted: the same"
                )
        cores = tuple(self._report(core) for core in self.cores)
        self.arguments.check_written()
        own = self._own(self.cores[0])
        outputs = self.arguments.outputs(self.results[0], own) if self.launch.options.numerics else None
        return Run(outputs, cores)

    def _report(self, core: Core) -> CoreReport:
        touched, own = accesses(core.stream), self._own(core)
        for region, first, _ in touched:
            if id(region.allocation) not in own:
                border.refuse_foreign(region.allocation, f"{core.stream[first].op} at {core.stream[first].site}")
        memory = capacity.measure(core.stream, touched, core.hardware)
        return CoreReport(core.stream, memory, core.dependencies, core.loops.ordered)

    def _own(self, core: Core) -> set[int]:
        """Identities of the allocations that a core may use: those it made, the arguments and the constants."""
        given = [storage.allocation for storage in self.arguments.storages]
        constants = [storage.allocation for storage, _ in self.launch.constants.values()]
        return set(map(id, (*core.allocations, *given, *constants)))


def prepare(
    function: Callable[..., Any],
    lnc: int,
    options: Options,
    arguments: Sequence[tuple[tuple[Any, ...], dict[str, Any]]],
    world: World,
    first: int = 0,
) -> list[Rank]:
    """The ranks of this process, ready to run.

    Args:
        arguments: positional and named arguments of each rank.
        first: number of the first of them in `world`.
    """
    chip, decoded = hardware.get(options.target), DecodeCache(options.decode_cache_bytes)
    ranks = []
    for number, (args, kwargs) in enumerate(arguments, first):
        launch = Launch(options, chip, lnc, decoded, number, world)
        bound = border.bind(function, args, kwargs)
        given = border.Arguments(bound, chip, options)
        for storage in given.storages:
            launch.watch(storage)
        ranks.append(Rank(function, launch, given, [Core(launch, n) for n in range(lnc)], [None] * lnc))
    return ranks


_one_at_a_time = threading.Lock()
"""Held by the thread that simulates: the current core is the process's."""


def execute(ranks: list[Rank]) -> list[Run]:
    """Runs ranks to their end. One core runs in the caller's thread, where a debugger expects it; several take turns.

    Where another thread simulates, this one waits for it; a kernel that starts a simulation of its own does not.

    The caller's arrays are as before; `Rank.arguments.commit` writes to them.
    """
    if machine.runs_here():
        return _execute(ranks)
    with _one_at_a_time:
        return _execute(ranks)


def _execute(ranks: list[Rank]) -> list[Run]:
    bodies = [body for rank in ranks for body in rank.bodies()]
    before = machine.current
    # A stream is many small tuples that no cycle holds; looking for cycles among them would cost more than they do.
    collecting = gc.isenabled()
    gc.disable()
    try:
        if len(bodies) == 1:
            name, body = bodies[0]
            ranks[0].launch.wait = functools.partial(_wait_alone, name)
            body()
        else:
            turns = Turns(bodies, functools.partial(machine.take_turn, None))
            for rank in ranks:
                rank.launch.wait = functools.partial(_wait_in_turn, turns)
            turns.run()
    finally:
        machine.take_turn(before)
        if collecting:
            gc.enable()
    return [rank.report() for rank in ranks]


def _wait_in_turn(turns: Turns, ready: Callable[[], bool], waits_for: object, *, outside: bool = False) -> None:
    me = machine.current
    try:
        turns.wait(ready, waits_for, outside=outside)
    finally:
        machine.take_turn(me)


def _wait_alone(name: str, ready: Callable[[], bool], waits_for: object, *, outside: bool = False) -> None:
    while not ready():
        if not outside:
            raise DeadlockError(f"{name} waits for {waits_for}, and nothing else runs")
        time.sleep(POLL_SECONDS)
