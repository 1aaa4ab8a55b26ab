"""What an instruction accepts does not depend on what passed before, which the simulator remembers by its operands."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from common_calls import common_calls

import nki.isa
import nki.language
from nki.language import NkiTensor
from nkisim import Options, machine, run
from nkisim.errors import NkiValidationError

nisa: Any = nki.isa
nl: Any = nki.language

Call = tuple[list[Any], dict[str, Any]]
_NO_NUMBERS = (np.str_("a"), np.complex64(1), np.timedelta64(1, "s"), np.void(b"ab"))
_STRANGERS = (None, "x", 1.0, True, 0, np.float64(1), np.int64(1), 10**400, [1], object, *_NO_NUMBERS)
_OPTIONS = (
    *(nisa.engine.vector, nisa.engine.gpsimd, nisa.engine.tensor, nisa.engine.scalar),
    *(nisa.reduce_cmd.reduce, nisa.reduce_cmd.load_reduce, nisa.reduce_cmd.idle),
    *(nisa.oob_mode.skip, nisa.dge_mode.none, nisa.dge_mode.hwdge, nl.add, nl.maximum),
    *((0, 0), (0.0, 0), (128, 128), np.zeros(2)),
)
_OPERATORS = (nl.add, nl.bitwise_and, nl.exp, nl.maximum, nl.rsqrt, nl.abs, np.add, max)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_what_passed_before_lets_nothing_else_pass(target: str) -> None:
    run(_kernel, target, options=Options(target=target, numerics=False))


def _kernel(target: str) -> None:
    core = machine.core("test")
    for function, *given in common_calls(target).values():
        for call in _changed(function, given):
            core.checked.clear()
            core.plans.clear()
            alone = _outcome(core, function, call)
            function(*given)
            assert _outcome(core, function, call) == alone, f"nisa.{function.__name__}{call}"
    core.stream.clear()


def _changed(function: Callable[..., Any], given: list[Any]) -> Iterator[Call]:
    """The call with one argument changed, or one more given."""
    for position, value in enumerate(given):
        for other in (*_STRANGERS, *_relatives(value)):
            yield [*given[:position], other, *given[position + 1 :]], {}
    for parameter in list(inspect.signature(function).parameters)[len(given) :]:
        if parameter != "name":
            for other in (*_STRANGERS, *_OPTIONS):
                yield given, {parameter: other}


def _relatives(value: Any) -> list[Any]:
    if isinstance(value, NkiTensor):
        return _other_tensors(value)
    if isinstance(value, (int, float)):
        return [float(value), value + 1, -1, np.float32(value), 1 << 40, float("nan")]
    if isinstance(value, list):
        as_floats = [[float(v) for v in entry] if isinstance(entry, list) else entry for entry in value]
        return [as_floats, tuple(value), []]
    return list(_OPERATORS)


def _other_tensors(tensor: NkiTensor) -> list[NkiTensor]:
    """Of the same shape at other bytes, of other types, at other partitions, and chosen by a register."""
    shape, found = tensor.shape, [tensor[:, 0:1]]
    chip = tensor.buffer in (nl.sbuf, nl.psum)
    for dtype in (tensor.dtype, nl.bfloat16, nl.int32, nl.float8_e4m3):
        found.append(nl.ndarray(shape, dtype, tensor.buffer))
    if chip:
        wider = nl.ndarray((shape[0], shape[1] + 3), tensor.dtype, tensor.buffer)
        found += [wider[:, 1 : 1 + shape[1]], wider[:, 2 : 2 + shape[1]]]
        found.append(tensor[:, nl.ds(nisa.register_alloc(0), shape[1])])
    if chip and shape[0] == 128:
        found += [tensor[0:64], tensor[32:96], tensor[64:128]]
    return found


def _outcome(core: machine.Core, function: Callable[..., Any], call: Call) -> Any:
    """The records, or the error's class and message."""
    before = len(core.stream)
    positional, named = call
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*positional, **named)
    except NkiValidationError as error:
        return type(error), str(error).partition("\n")[0]
    return [(r.op, r.engine, r.writes, r.reads, repr(r.detail)) for r in core.stream[before:]]
