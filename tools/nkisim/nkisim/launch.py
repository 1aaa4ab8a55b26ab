"""Runs kernels: `jit`, `simulate`, and `run`, `run_ranks`, `run_in_group`, which also return what was recorded."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nkisim import border, machine, schedule
from nkisim.errors import LaunchError
from nkisim.execution import Run, execute, prepare
from nkisim.options import Options
from nkisim.ranks.meeting import LocalWorld

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
        if type(count) is not int or not 1 <= count <= MAX_CORES:
            raise LaunchError(f"{self.__name__}[{lnc!r}]; accepted: 1 or {MAX_CORES} cores")
        return Kernel(self.function, count)

    def with_schedule(self, edges: schedule.Edges) -> Kernel:
        """The kernel with some of its instructions waiting for others: pairs of a name and what it waits for."""
        return Kernel(schedule.keeping(self.function, edges), self.lnc)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it on the simulator, or inline in the kernel that is running."""
        if machine.runs_here():
            return self.function(*args, **kwargs)
        return _run_one(self, args, kwargs, Options()).outputs


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
    NEURON_PLATFORM_TARGET_OVERRIDE names; NKI_PRECISE_FP=0 asks for fp32 values, see `nkisim.precision`.

    Args:
        kernel: a function, decorated with `nki.jit` or not, also as `kernel[lnc]`.
    """

    @functools.wraps(kernel)
    def simulated(*args: Any, **kwargs: Any) -> Any:
        return _run_one(kernel, args, kwargs, Options()).outputs

    return simulated


def run(kernel: Callable[..., Any], /, *args: Any, options: Options | None = None, **kwargs: Any) -> Run:
    """Runs a kernel on the CPU.

    Args:
        kernel: as for `simulate`.
        *args, **kwargs: the kernel's arguments; numpy arrays and torch tensors become HBM tensors, also inside
            lists, tuples and dictionaries.
        options: target and numerics; defaults from the environment.

    Raises:
        NkiValidationError: the kernel breaks a rule; the subclass says which.
    """
    return _run_one(kernel, args, kwargs, options or Options())


def _run_one(kernel: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> Run:
    launched = _kernel(kernel)
    (rank,) = prepare(launched.function, launched.lnc, options, [(args, kwargs)], LocalWorld(1))
    (finished,) = execute([rank])
    rank.arguments.commit()
    return finished


def run_ranks(
    kernel: Callable[..., Any],
    arguments_per_rank: Sequence[Sequence[Any] | Mapping[str, Any]],
    options: Options | None = None,
) -> list[Run]:
    """Runs a kernel on several ranks in this process, each on the cores that `kernel[lnc]` says.

    Args:
        kernel: as for `simulate`.
        arguments_per_rank: one entry per rank, from rank 0 on: a sequence of positional arguments or a mapping of
            named ones. Ranks may share an array that none of them writes to.
        options: as for `run`.

    Returns:
        The runs in rank order. Arrays that kernels write to are updated once every rank has succeeded.

    Raises:
        DivergenceError: ranks of a group disagree on a collective.
        DeadlockError: a rank waits for one that never comes; the message says who waits for what.
        NkiValidationError: as for `run`; a note names the rank.
    """
    launched = _kernel(kernel)
    if not isinstance(arguments_per_rank, (list, tuple)) or not arguments_per_rank:
        raise LaunchError(
            f"{launched.__name__}: arguments_per_rank is {arguments_per_rank!r}; accepted: a list, one entry per rank"
        )
    calls = [_call(number, given) for number, given in enumerate(arguments_per_rank)]
    ranks = prepare(launched.function, launched.lnc, options or Options(), calls, LocalWorld(len(calls)))
    finished = execute(ranks)
    border.commit_all([rank.arguments for rank in ranks])
    return finished


def run_in_group(
    kernel: Callable[..., Any], *args: Any, group: Any = None, options: Options | None = None, **kwargs: Any
) -> Run:
    """Runs a kernel as this process's rank of a torch.distributed group; every process of the group calls it.

    Args:
        kernel, args, kwargs: as for `run`.
        group: a gloo process group. None: the default one, made from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
            (as torchrun sets them) where there is none yet.
        options: as for `run`; `rank_timeout_seconds` bounds every wait for another rank.

    Returns:
        This rank's run, once every rank has succeeded: bit for bit what `run_ranks` gives.

    Raises:
        DivergenceError, DeadlockError: as for `run_ranks`.
        RankFailedError: another rank raised an error or died.
    """
    from nkisim.ranks.processes import ProcessWorld  # torch.distributed takes long to import

    launched, chosen = _kernel(kernel), options or Options()
    with ProcessWorld(group, chosen.rank_timeout_seconds) as world:
        (rank,) = prepare(launched.function, launched.lnc, chosen, [(args, kwargs)], world, world.rank)
        (finished,) = execute([rank])
    rank.arguments.commit()
    return finished


def outputs_per_rank(kernel: Callable[..., Any], lnc: int, inputs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What `kernel` returns on each rank, for runners that know ranks as (kernel, cores, inputs per rank).

    Args:
        inputs: named arguments of each rank. Arrays are copied: ranks share none, and nothing is written back.
    """
    private = [{name: _copied(value) for name, value in given.items()} for given in inputs]
    return [finished.outputs for finished in run_ranks(_kernel(kernel)[lnc], private)]


def _kernel(kernel: Callable[..., Any]) -> Kernel:
    launched = kernel if isinstance(kernel, Kernel) else Kernel(kernel)
    function = launched.function
    if not callable(function):
        raise LaunchError(f"{function!r} is not a kernel; accepted: a function")
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise LaunchError(f"{launched.__name__} is a generator or coroutine, which runs nothing; accepted: a function")
    return launched


def _call(number: int, given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(given, Mapping):
        return (), dict(given)
    if isinstance(given, (list, tuple)):
        return tuple(given), {}
    raise LaunchError(
        f"arguments_per_rank[{number}] is {type(given).__name__}; accepted: a tuple of arguments or a dictionary"
    )


def _copied(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item) for item in value)
    return value.copy() if hasattr(value, "__array__") and hasattr(value, "copy") else value
