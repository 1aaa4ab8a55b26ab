"""Calls with arguments that make no sense: each is refused by an error of the simulator's own, or does something."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import nki.collectives
import nki.isa
import nki.language
from fuzz.instructions import INSTRUCTIONS
from fuzz.session import Session, SpoiledError

_LEFT_OUT = ("fori_loop", "while_loop", "device_print", "NkiValidationError", "get_nc_version")
"""They call a function of the kernel's, whose errors are its own, or print."""
_ODD = (
    "None", "True", "0", "1", "-1", "3", "2.5", "10**30", "-2**31", "float('nan')", "float('inf')", "1e40", "''",
    "'a'", "'float32'", "()", "(1,)", "(0, 1)", "(4, 8)", "(4, -1)", "(1.5, 2)", "('a', 'b')", "[]", "[[1, 4]]",
    "[[1, 2], [3]]", "[None]", "{}", "{'a': 2}", "...", "slice(None)", "object()", "object", "len", "np.zeros(2)",
    "np.float32(1)", "np.int64(2)", "np.float32", "np.bool_(True)", "np.array([1, 2])", "np.array(['a'])",
    "np.str_('a')", "np.complex64(1)", "np.timedelta64(1, 's')", "np.datetime64(1, 's')", "np.void(b'ab')",
    "10**400", "1 << 70", "nl", "nl.add", "nl.exp", "nl.bitwise_and", "nl.multiply", "nl.max",
    "nl.float32", "nl.int32", "nl.bfloat16", "nl.uint8", "nl.bool_", "nl.float8_e4m3fn_x4", "nl.float8_e8m0fnu",
    "nl.sbuf", "nl.psum", "nl.hbm", "nl.ds(0, 2)", "nl.ds(None, 'a')", "nisa.engine.vector", "nisa.engine.gpsimd",
    "nisa.engine", "nisa.reduce_cmd.reduce", "nisa.reduce_cmd.reset_reduce", "nisa.oob_mode.skip",
    "nisa.dge_mode.hwdge", "nisa.matmul_perf_mode.double_row", "nisa.register_alloc()", "nisa.register_alloc(2)",
    "(lambda *a: a)",
)  # fmt: skip
_TENSORS = (
    "nl.ndarray((4, 8), nl.float32)", "nl.ndarray((128, 1), nl.bfloat16)",
    "nl.ndarray((4, 8), nl.float32, buffer=nl.psum)", "nl.ndarray((4, 8), nl.int32)",
    "nl.ndarray((4, 4), nl.float8_e5m2)", "nl.ndarray((16, 8), nl.float32, buffer=nl.hbm)",
    "nl.ndarray((4, 2, 4), nl.uint8)", "nl.ndarray((1, 1), nl.int32)", "nl.ndarray((128, 8), nl.float32)[3:40]",
    "nl.ndarray((4, 8), nl.tfloat32)", "nl.ndarray((4, 8), nl.bool_)",
)  # fmt: skip
_VIEWS = (
    "[0:2]", "[..., 0:1]", "[:, 0]", ".permute((1, 0))", ".reshape((4, -1))", ".view(nl.uint8)", ".view(nl.int32)",
    ".expand_dim(1)", ".ap([[8, 4], [1, 2]])", ".ap([[8, 4], [1, 99]])", ".select(1, nisa.register_alloc(1))",
    ".vector_select(0, nl.ndarray((4, 1), nl.int32))", "[nl.ds(nisa.register_alloc(1), 2)]",
    ".expand_dim(2).broadcast(2, 3)", ".indirect(nl.ndarray((4, 1), nl.uint16))",
)  # fmt: skip
_METHODS = (
    "permute", "broadcast", "expand_dim", "squeeze_dim", "reshape_dim", "flatten_dims", "reshape", "rearrange",
    "slice", "select", "vector_select", "indirect", "ap", "view", "reinterpret_cast", "is_contiguous", "get_pattern",
    "__getitem__", "__setitem__",
)  # fmt: skip


_OPERATORS = ("nl.add", "nl.multiply", "nl.exp", "nl.maximum", "nl.bitwise_or", "nl.abs", "nl.invert", "nl.copy")


def _functions(module: Any, prefix: str) -> list[tuple[str, Any]]:
    found = []
    for name in dir(module):
        value = getattr(module, name)
        if name[0] != "_" and inspect.isfunction(value) and name not in _LEFT_OUT:
            found.append((f"{prefix}.{name}", value))
    return found


CALLS = [*_functions(nki.isa, "nisa"), *_functions(nki.language, "nl"), *_functions(nki.collectives, "ncc")]
"""Every function of the public package, with its name in a kernel."""


def hostile_call(session: Session) -> None:
    """One call of any function, or of a tensor's method, or an instruction with an argument exchanged."""
    match session.integer(0, 4):
        case 0:
            method = session.sample(_METHODS)
            function: Callable[..., Any] = getattr(nki.language.NkiTensor, method)
            session.hostile(f"({_tensor(session)}).{method}({_arguments(session, function, skip=1)})")
        case 1 | 2:
            session.spoil = _spoiled
            with contextlib.suppress(SpoiledError):
                session.sample(INSTRUCTIONS)(session)
            session.spoil = None
        case _:
            name, function = session.sample(CALLS)
            session.hostile(f"{name}({_arguments(session, function, skip=0)})")


def _spoiled(session: Session, given: dict[str, str]) -> dict[str, str]:
    """The arguments of a correct call, one or two of them exchanged."""
    for name in {session.sample(sorted(given)) for _ in range(session.integer(1, 2))}:
        given[name] = _argument(session, name, tensor=session.chance(2))
    return given


def _arguments(session: Session, function: Callable[..., Any], skip: int) -> str:
    given = []
    same = _tensor(session) if session.chance(2) else None
    for parameter in list(inspect.signature(function).parameters.values())[skip:]:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        if parameter.default is not inspect.Parameter.empty and not session.chance(4):
            continue
        tensor = "NkiTensor" in str(parameter.annotation) or parameter.name in ("x", "y", "value")
        value = same if same and tensor else _argument(session, parameter.name, tensor=tensor)
        positional = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)
        given.append(value if positional else f"{parameter.name}={value}")
    return ", ".join(given)


def _argument(session: Session, name: str, *, tensor: bool) -> str:
    if tensor and not session.chance(5):
        return _tensor(session)
    if "op" in name and not session.chance(4):
        return str(session.sample(_OPERATORS))
    if session.chance(3):
        return _tensor(session)
    return str(session.sample(_ODD))


def _tensor(session: Session) -> str:
    """An existing tensor or a new one, some of them a view."""
    existing = [t.name for t in session.tensors.values()]
    base = str(session.sample(existing if existing and session.chance(2) else _TENSORS))
    return base + (str(session.sample(_VIEWS)) if session.chance(3) else "")
