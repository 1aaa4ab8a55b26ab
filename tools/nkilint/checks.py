"""The rules, applied to the kernel code of a set of files."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tools.nkilint import code, findings
from tools.nkilint.body import check_body
from tools.nkilint.code import Function, Source
from tools.nkilint.findings import Finding, at

_LIST_TYPES = ("list", "List", "typing.List")


def check(sources: list[Source]) -> list[Finding]:
    """All findings, in order of file and line."""
    kernels = code.find(sources)
    found: set[Finding] = set()
    enumerations = {definition.name for _, definition in kernels.classes if code.is_enumeration(definition)}
    for source, function in kernels.functions:
        found.update(check_body(sources, source, function, enumerations))
    for source, function in kernels.entries:
        found.update(_signature(source, function))
    for source, definition in kernels.classes:
        found.update(_class(source, definition))
    return sorted(found, key=lambda f: (f.path, f.line, f.rule.name, f.what))


def _class(source: Source, definition: ast.ClassDef) -> Iterator[Finding]:
    if not code.is_simple_class(definition) and not code.is_enumeration(definition):
        bases = ", ".join(ast.unparse(base) for base in definition.bases) or "no base"
        yield at(source.path, definition, findings.CLASS, f"kernel code uses class {definition.name} with {bases}")


def _signature(source: Source, function: Function) -> Iterator[Finding]:
    arguments = function.args
    if arguments.kwonlyargs:
        names = ", ".join(a.arg for a in arguments.kwonlyargs)
        yield at(source.path, function, findings.KEYWORD_ONLY, f"kernel {function.name} has keyword-only {names}")
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = dict(
        zip([a.arg for a in positional[len(positional) - len(arguments.defaults) :]], arguments.defaults, strict=True)
    )
    for parameter in (*positional, *arguments.kwonlyargs):
        default = defaults.get(parameter.arg)
        annotation = parameter.annotation
        outer = annotation.value if isinstance(annotation, ast.Subscript) else annotation
        if isinstance(default, ast.List) or (outer is not None and source.meaning(outer) in _LIST_TYPES):
            yield at(
                source.path,
                parameter,
                findings.LIST_ARGUMENT,
                f"kernel {function.name} takes a list as {parameter.arg}",
            )
