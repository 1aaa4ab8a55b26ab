"""Prints what of the documented API is simulated: `bazel run //tools/nkisim:coverage`.

The table is read off the code. A call is simulated unless nothing but an error stands behind it; where it refuses
some of its modes (NotSimulatedError), what it says then is listed. Names, parameters and defaults are compared with
`api_signatures.json`, a list of the documentation's signatures.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

from nkisim.errors import NotSimulatedError

SIGNATURES = Path(__file__).with_name("api_signatures.json")
_UNDOCUMENTED = "..."
"""A default of which the documentation shows that there is one, but not which."""


@dataclass(frozen=True)
class Row:
    """One documented call.

    Attributes:
        name: with its module or class, as kernels write it.
        status: "simulated", "refused" or "missing".
        refusals: what it says of the modes that it refuses.
        differences: how its signature differs from the documentation's; none if it does not.
    """

    name: str
    status: str
    refusals: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()


def documented() -> dict[str, Any]:
    """Per module: functions with their parameters as [name, default or null], classes, constants."""
    listed: dict[str, Any] = json.loads(SIGNATURES.read_text())
    return listed


def rows() -> Iterator[Row]:
    """Every documented function, and every method of a documented class."""
    for module_name, listed in documented().items():
        module = importlib.import_module(module_name)
        for name, parameters in listed["functions"].items():
            yield _row(f"{module_name}.{name}", getattr(module, name, None), parameters)
        for class_name, members in listed["classes"].items():
            owner = getattr(module, class_name, None)
            for name, parameters in members["methods"].items():
                if name != "__init__":
                    yield _row(f"{module_name}.{class_name}.{name}", getattr(owner, name, None), parameters)


def missing_names() -> list[str]:
    """Documented constants, classes and attributes that the package does not have."""
    missing = []
    for module_name, listed in documented().items():
        module = importlib.import_module(module_name)
        wanted: list[tuple[Any, str, str]]
        wanted = [(module, f"{module_name}.{name}", name) for name in (*listed["constants"], *listed["classes"])]
        for class_name, members in listed["classes"].items():
            owner = getattr(module, class_name, None)
            wanted += [(owner, f"{module_name}.{class_name}.{name}", name) for name in members["attributes"]]
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            missing += [full for owner, full, name in wanted if not _has(owner, name)]
    return missing


def _has(owner: Any, name: str) -> bool:
    """Whether an object, or a class or its instances, has the attribute."""
    known = owner if isinstance(owner, type) else type(owner)
    annotated = any(name in inspect.get_annotations(base) for base in known.__mro__)
    return annotated or inspect.getattr_static(known, name, None) is not None or hasattr(owner, name)


def _row(name: str, function: Any, parameters: list[list[Any]]) -> Row:
    if function is None:
        return Row(name, "missing")
    refusals = tuple(_refusals(function))
    status = "refused" if _only_refuses(function) else "simulated"
    return Row(name, status, refusals, tuple(_differences(function, parameters)))


def _differences(function: Callable[..., Any], parameters: list[list[Any]]) -> Iterator[str]:
    found = [(_starred(p), _default(p)) for p in inspect.signature(function).parameters.values()]
    wanted = [(name, default) for name, default in parameters]
    if [name for name, _ in found] != [name for name, _ in wanted]:
        yield f"parameters {[name for name, _ in found]}; documented: {[name for name, _ in wanted]}"
        return
    for (name, default), (_, documented_default) in zip(found, wanted, strict=True):
        if default != documented_default and documented_default != _UNDOCUMENTED:
            yield f"{name} defaults to {default}; documented: {documented_default}"


def _starred(parameter: inspect.Parameter) -> str:
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return stars.get(parameter.kind, "") + parameter.name


def _default(parameter: inspect.Parameter) -> str | None:
    """The default as the documentation writes it."""
    value = parameter.default
    if value is inspect.Parameter.empty:
        return None
    if isinstance(value, Enum):
        kind = type(value).__name__
        return value.name if kind == "MemoryRegion" else f"{kind}.{value.name}"
    if callable(value) or hasattr(value, "__name__"):
        return str(value.__name__)
    return str(value) if isinstance(value, str) and value else repr(value)


def _source(function: Any) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    (definition,) = tree.body
    return definition if isinstance(definition, ast.FunctionDef) else None


def _only_refuses(function: Any) -> bool:
    definition = _source(function)
    if definition is None:
        return False
    body = [s for s in definition.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    return len(body) == 1 and _refusal(body[0]) is not None


def _refusals(function: Any) -> Iterator[str]:
    """What it raises NotSimulatedError with, itself or in helpers of its module."""
    module = inspect.getmodule(function)
    seen: set[Any] = set()
    pending = [function]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        definition = _source(current)
        if definition is None:
            continue
        for node in ast.walk(definition):
            message = _refusal(node)
            if message is not None:
                yield message
            if isinstance(node, ast.Name):
                pending += _helper(module, node.id)


def _helper(module: ModuleType | None, name: str) -> list[Any]:
    found = getattr(module, name, None)
    return [found] if inspect.isfunction(found) and inspect.getmodule(found) is module else []


def _refusal(node: ast.AST) -> str | None:
    """The message of a `raise NotSimulatedError(...)`, placeholders in braces."""
    if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
        return None
    if getattr(node.exc.func, "id", None) != NotSimulatedError.__name__:
        return None
    text = ast.unparse(node.exc.args[0])
    return text.removeprefix("f").strip("'\"")


def table(listed: list[Row]) -> str:
    """The rows as text, with a count at the end."""
    width = max(len(row.name) for row in listed)
    lines = []
    for row in listed:
        lines.append(f"{row.name:<{width}}  {row.status}")
        lines += [f"{'':<{width}}    refuses: {text}" for text in row.refusals if row.status == "simulated"]
        lines += [f"{'':<{width}}    differs: {text}" for text in row.differences]
    counts = ", ".join(f"{sum(r.status == s for r in listed)} {s}" for s in ("simulated", "refused", "missing"))
    return "\n".join([*lines, "", f"{len(listed)} documented calls: {counts}"])


def main(arguments: list[str]) -> int:
    """Prints the table; 1 where a call or name is missing or a signature differs."""
    parser = argparse.ArgumentParser(
        prog="coverage", description="Lists each documented NKI call and whether the simulator implements it."
    )
    parser.parse_args(arguments)
    listed, missing = list(rows()), missing_names()
    print(table(listed))
    for name in missing:
        print(f"missing name: {name}")
    return 1 if missing or any(row.status == "missing" or row.differences for row in listed) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
