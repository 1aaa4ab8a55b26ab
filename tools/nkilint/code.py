"""Which code of a set of files is kernel code: what `nki.jit` decorates and whatever that calls.

Kernel code is a function that is decorated with or passed to `nki.jit` or `nki.simulate`, a function that itself
issues an instruction (calls something of `nki.isa`) or makes a tensor, and every function and class of the files
that such code names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
_LAUNCHERS = ("nki.jit", "nki.simulate")
_ISSUING = ("nki.isa.", "nki.collectives.")
_TENSOR_MAKERS = ("nki.language.ndarray", "nki.language.zeros", "nki.language.load", "nki.language.full")


@dataclass
class Source:
    """One file.

    Attributes:
        names: what a name at the top level stands for: "nki.isa" for `nisa`, "kernels.x.f" for an imported f.
        functions, classes: its top-level definitions; methods are found through their class.
    """

    path: str
    tree: ast.Module
    names: dict[str, str] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)

    def meaning(self, node: ast.AST) -> str:
        """Dotted name of what an expression refers to, imports followed; empty where it is no dotted name."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            base = self.meaning(node.value)
            return f"{base}.{node.attr}" if base else ""
        return ""

    def imports(self, node: ast.AST) -> bool:
        """Whether a dotted name begins with an imported one."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self.names


@dataclass
class Kernels:
    """The kernel code of the files.

    Attributes:
        functions: with the file they lie in; nested functions belong to the one around them.
        entries: those that `nki.jit` decorates.
        classes: those that kernel code uses.
    """

    functions: list[tuple[Source, Function]] = field(default_factory=list)
    entries: list[tuple[Source, Function]] = field(default_factory=list)
    classes: list[tuple[Source, ast.ClassDef]] = field(default_factory=list)


def parse(path: str, text: str) -> Source:
    """Reads one file.

    Raises:
        SyntaxError: it is no Python.
    """
    source = Source(path, ast.parse(text, path))
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                known = alias.asname or alias.name.partition(".")[0]
                source.names[known] = alias.name if alias.asname else known
        elif isinstance(node, ast.ImportFrom) and node.module:
            source.names.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})
    for statement in source.tree.body:
        if isinstance(statement, Function):
            source.functions[statement.name] = statement
        elif isinstance(statement, ast.ClassDef):
            source.classes[statement.name] = statement
    return source


def find(sources: list[Source]) -> Kernels:
    """The kernel code of all files together."""
    kernels = Kernels()
    pending: list[tuple[Source, Function | ast.ClassDef]] = []
    for source in sources:
        launched = set(_launched(source))
        for function in _all_functions(source):
            if is_entry(source, function):
                kernels.entries.append((source, function))
            if is_entry(source, function) or function.name in launched or _issues(source, function):
                pending.append((source, function))
    seen: set[int] = set()
    while pending:
        source, definition = pending.pop()
        if id(definition) in seen:
            continue
        seen.add(id(definition))
        if isinstance(definition, ast.ClassDef):
            kernels.classes.append((source, definition))
            if is_simple_class(definition):
                pending += [(source, s) for s in definition.body if isinstance(s, Function)]
            continue
        kernels.functions.append((source, definition))
        pending += _named(sources, source, definition)
    return kernels


def is_entry(source: Source, function: Function) -> bool:
    """Whether `nki.jit` decorates it."""
    decorators = [d.func if isinstance(d, ast.Call) else d for d in function.decorator_list]
    return any(source.meaning(d) == "nki.jit" for d in decorators)


def is_among(sources: list[Source], dotted: str) -> bool:
    """Whether a dotted name such as "kernels.x.f" is one of the files, or something in it."""
    parts = dotted.split(".")
    return any(_is_module(source, parts[:end]) for source in sources for end in range(1, len(parts) + 1))


def is_simple_class(definition: ast.ClassDef) -> bool:
    """Whether NKIObject is its only base."""
    return [_last(base) for base in definition.bases] == ["NKIObject"]


def is_enumeration(definition: ast.ClassDef) -> bool:
    """Whether Enum is its only base."""
    return [_last(base) for base in definition.bases] == ["Enum"]


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _all_functions(source: Source) -> Iterator[Function]:
    yield from source.functions.values()
    for definition in source.classes.values():
        yield from (s for s in definition.body if isinstance(s, Function))


def _launched(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and source.meaning(node.func) in _LAUNCHERS:
            yield from (a.id for a in node.args if isinstance(a, ast.Name))


def _issues(source: Source, function: Function) -> bool:
    called = [source.meaning(n.func) for n in ast.walk(function) if isinstance(n, ast.Call)]
    return any(name.startswith(_ISSUING) or name in _TENSOR_MAKERS for name in called)


def _named(
    sources: list[Source], source: Source, function: Function
) -> Iterator[tuple[Source, Function | ast.ClassDef]]:
    """Definitions of the files that a function names, in its body or in its parameters' annotations."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            yield from _definition(sources, source, node.id)
        elif isinstance(node, ast.Attribute):
            yield from _by_module(sources, source.meaning(node))


def _definition(sources: list[Source], source: Source, name: str) -> Iterator[tuple[Source, Function | ast.ClassDef]]:
    local = source.functions.get(name) or source.classes.get(name)
    if local is not None:
        yield source, local
    else:
        yield from _by_module(sources, source.names.get(name, ""))


def _by_module(sources: list[Source], dotted: str) -> Iterator[tuple[Source, Function | ast.ClassDef]]:
    """The definition that a dotted name such as "kernels.x.f" means, where that module is among the files."""
    module, _, name = dotted.rpartition(".")
    if not module:
        return
    for source in sources:
        if _is_module(source, module.split(".")):
            found = source.functions.get(name) or source.classes.get(name)
            if found is not None:
                yield source, found


def _is_module(source: Source, module: list[str]) -> bool:
    """Whether the file is that module, as far as its path tells."""
    parts = Path(source.path).with_suffix("").parts
    parts = parts[:-1] if parts[-1:] == ("__init__",) else parts
    return list(parts[-len(module) :]) == module
