"""Chains of collectives over several ranks in one process, against numpy on one array per rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import nki
import nki.collectives
import nki.isa
import nki.language
from fuzz import formats
from fuzz.operators import BY_NAME
from fuzz.session import MismatchError, shown
from fuzz.view_model import Draw
from nkisim import Options, run_ranks
from nkisim.errors import DivergenceError, NkiValidationError

Array = np.ndarray
_TYPES = ("float32", "bfloat16", "float16", "float8_e5m2")
_MODULES = {"nki": nki, "nisa": nki.isa, "nl": nki.language, "ncc": nki.collectives}
_MOST_STEPS = 4


class Step(NamedTuple):
    """A collective: its statement, which has `{src}` and `{dst}` in it, and what each rank has afterwards."""

    statement: str
    results: list[Array]


@dataclass
class Ranks:
    """What every rank has so far, as fp64 numbers that the type holds, and how ranks are grouped."""

    draw: Draw
    dtype: str
    groups: list[list[int]]
    held: list[Array]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of each rank's array."""
        return self.held[0].shape

    @property
    def size(self) -> int:
        """Of each group."""
        return len(self.groups[0])

    def each(self, of_group: Callable[[list[Array], int], Array]) -> list[Array]:
        """What ranks get: a function of their group's arrays and their position in it."""
        results = list(self.held)
        for group in self.groups:
            arrays = [self.held[rank] for rank in group]
            for position, rank in enumerate(group):
                results[rank] = of_group(arrays, position)
        return results

    def rounded(self, values: Array) -> Array:
        """As the type holds them."""
        return formats.converted(values, BY_NAME[self.dtype])


def _reduced(ranks: Ranks, arrays: list[Array], op: str) -> Array:
    """In the group's order, each sum in fp32, rounded to the type once."""
    total = arrays[0]
    with np.errstate(all="ignore"):
        for array in arrays[1:]:
            if op == "add":
                total = formats.fp32(total + array)
            else:
                total = np.minimum(total, array) if op == "minimum" else np.maximum(total, array)
    return ranks.rounded(total)


def _all_reduce(ranks: Ranks) -> Step:
    op = ranks.draw(st.sampled_from(("add", "minimum", "maximum")))
    return Step(
        f"ncc.all_reduce([{{src}}], [{{dst}}], groups, nl.{op})",
        ranks.each(lambda arrays, _: _reduced(ranks, arrays, op)),
    )


def _all_gather(ranks: Ranks) -> Step:
    return Step("ncc.all_gather([{src}], [{dst}], groups, 0)", ranks.each(lambda arrays, _: np.concatenate(arrays)))


def _reduce_scatter(ranks: Ranks) -> Step:
    op = ranks.draw(st.sampled_from(("add", "maximum")))
    return Step(
        f"ncc.reduce_scatter([{{src}}], [{{dst}}], groups, 0, nl.{op})",
        ranks.each(lambda arrays, mine: np.split(_reduced(ranks, arrays, op), ranks.size)[mine]),
    )


def _all_to_all(ranks: Ranks) -> Step:
    return Step(
        "ncc.all_to_all([{src}], [{dst}], groups, 0)",
        ranks.each(lambda arrays, mine: np.concatenate([np.split(a, ranks.size)[mine] for a in arrays])),
    )


def _permute(ranks: Ranks) -> Step:
    """Every rank sends to one; `{dst}` is written whole, since each is the target of one."""
    targets = ranks.draw(st.permutations(range(len(ranks.held))))
    results = list(ranks.held)
    for source, target in enumerate(targets):
        results[target] = ranks.held[source]
    return Step(f"ncc.collective_permute([{{src}}], [{{dst}}], {list(enumerate(targets))})", results)


def _drawn_step(ranks: Ranks) -> Step:
    splits = ranks.shape[0] % ranks.size == 0
    kinds = [_all_reduce, _permute]
    if ranks.shape[0] * ranks.size <= 64:
        kinds.append(_all_gather)
    if splits:
        kinds += [_reduce_scatter, _all_to_all]
    step: Step = ranks.draw(st.sampled_from(kinds))(ranks)
    return step


def _statements(step: Step, number: int, shapes: tuple[tuple[int, ...], ...], dtype: str, on_chip: bool) -> list[str]:
    """A step from tensor `t<number>` to the next, in HBM or by way of SBUF."""
    before, after = shapes
    made = [f"t{number + 1} = nl.ndarray({after}, nl.{dtype}, buffer=nl.shared_hbm)"]
    if not on_chip:
        return [*made, step.statement.format(src=f"t{number}", dst=f"t{number + 1}")]
    return [
        *made,
        f"s{number} = nl.ndarray({before}, nl.{dtype})",
        f"d{number} = nl.ndarray({after}, nl.{dtype})",
        f"nisa.dma_copy(s{number}, t{number})",
        step.statement.format(src=f"s{number}", dst=f"d{number}"),
        f"nisa.dma_copy(t{number + 1}, d{number})",
    ]


def collectives(draw: Draw) -> int:
    """One kernel on two to four ranks; returns its collectives.

    Raises:
        MismatchError: says where a rank's result differs, with the kernel.
    """
    groups = draw(st.sampled_from(([[0, 1]], [[1, 0]], [[0, 1, 2]], [[2, 0], [3, 1]], [[0], [1]], [[3, 0, 1, 2]])))
    lnc, dtype = draw(st.sampled_from((1, 1, 2))), draw(st.sampled_from(_TYPES))
    shape = (draw(st.integers(1, 12)), draw(st.integers(1, 9)))
    ranks = Ranks(draw, dtype, groups, _numbers(sum(map(len, groups)), shape, dtype, draw(st.integers(0, 255))))
    inputs = [array.astype(BY_NAME[dtype].storage) for array in ranks.held]
    lines = [
        f"groups = ncc.ReplicaGroup({groups})",
        f"t0 = nl.ndarray({shape}, nl.{dtype}, buffer=nl.shared_hbm)",
        "nisa.dma_copy(t0, x)",
    ]
    steps = draw(st.integers(1, _MOST_STEPS))
    for number in range(steps):
        before, step = ranks.shape, _drawn_step(ranks)
        ranks.held = step.results
        on_chip = "all_to_all" not in step.statement and "permute" not in step.statement and draw(st.booleans())
        lines += _statements(step, number, (before, ranks.shape), dtype, on_chip)
    differs = ranks.size > 1 and draw(st.integers(0, 9)) == 0
    if differs:
        lines.append(f"ncc.all_reduce([t{steps}], [t{steps}], groups, nl.add if rank else nl.maximum)")
    kernel = _kernel([*lines, f"return t{steps}"])
    arguments = list(enumerate(inputs))
    if differs:
        _refused(kernel, arguments, lnc)
        return steps
    _compare(kernel, arguments, lnc, ranks.held)
    return steps


def _kernel(lines: list[str]) -> str:
    return "def kernel(rank, x):\n    " + "\n    ".join(lines)


def _ran(source: str, arguments: list[Any], lnc: int, *, numerics: bool = True) -> list[Any]:
    environment: dict[str, Any] = dict(_MODULES)
    exec(source, environment)
    kernel = nki.jit(environment["kernel"])[lnc]
    return run_ranks(kernel, arguments, Options(target="trn3", numerics=numerics))


def _refused(source: str, arguments: list[Any], lnc: int) -> None:
    try:
        _ran(source, arguments, lnc)
    except NkiValidationError as error:
        if isinstance(error, DivergenceError):
            return
        raise MismatchError(f"expected DivergenceError, got {error!r}\n{_program(source, arguments, lnc)}") from error
    raise MismatchError(f"expected DivergenceError, got no error\n{_program(source, arguments, lnc)}")


def _compare(source: str, arguments: list[Any], lnc: int, expected: list[Array]) -> None:
    try:
        runs = _ran(source, arguments, lnc)
        timed = _ran(source, arguments, lnc, numerics=False)
    except Exception as error:
        program = _program(source, arguments, lnc)
        raise MismatchError(f"raised {type(error).__name__}: {error}\n{program}") from error
    for rank, (finished, untimed, values) in enumerate(zip(runs, timed, expected, strict=True)):
        found = formats.decoded(finished.outputs)
        if not np.array_equal(found, values, equal_nan=True):
            program = _program(source, arguments, lnc)
            raise MismatchError(f"rank {rank} has\n{found}\nexpected\n{values}\n{program}")
        for core, other in zip(finished.cores, untimed.cores, strict=True):
            if [shown(r) for r in core.stream] != [shown(r) for r in other.stream]:
                program = _program(source, arguments, lnc)
                raise MismatchError(f"a timing-only run records other instructions\n{program}")


def _program(source: str, arguments: list[Any], lnc: int) -> str:
    given = "[" + ", ".join(f"({rank}, np.array({x.tolist()}).astype(nl.{x.dtype}))" for rank, x in arguments) + "]"
    return (
        "import numpy as np\n\nimport nki\nimport nki.collectives as ncc\nimport nki.isa as nisa\n"
        f"import nki.language as nl\nfrom nkisim import run_ranks\n\n\n{source}\n\n\n"
        f"run_ranks(nki.jit(kernel)[{lnc}], {given})\n"
    )


def _numbers(count: int, shape: tuple[int, ...], dtype: str, seed: int) -> list[Array]:
    random = np.random.default_rng((seed, count, *shape))
    values = random.standard_normal((count, *shape)) * np.exp2(random.integers(-4, 5, (count, *shape)))
    return list(formats.converted(formats.fp32(values), BY_NAME[dtype]))
