"""What the linter says: one finding per place, one rule per kind of fault."""

from __future__ import annotations

import ast
from dataclasses import dataclass

_GUIDE = "get-started/nki-language-guide.rst"
_MIGRATION = "migration/index.rst"


@dataclass(frozen=True)
class Rule:
    """Python that the simulator runs but the NKI compiler rejects.

    Attributes:
        name: in brackets in every finding.
        source: the page of the SDK documentation and its section.
        instead: the supported way.
    """

    name: str
    source: str
    instead: str


@dataclass(frozen=True, order=True)
class Finding:
    """One place in one file that breaks a rule."""

    path: str
    line: int
    what: str
    rule: Rule

    def __str__(self) -> str:
        rule = self.rule
        return f"{self.path}:{self.line}: [{rule.name}] {self.what}; instead: {rule.instead} ({rule.source})"


def _guide(section: str) -> str:
    return f'{_GUIDE}, "{section}"'


def _migration(section: str) -> str:
    return f'{_MIGRATION}, "{section}"'


CLASS = Rule("class", _guide("Class Support"), "a class whose only base is NKIObject, or a plain Enum")
ENUM_OPERATOR = Rule("enum-operator", _guide("Enumerations"), "== and !=, the only operators of enumerations")
VALUE = Rule(
    "value",
    _guide("NKI Values"),
    "None, booleans, 32-bit numbers, strings, tensors; tuples, lists, dictionaries and simple classes of them",
)
DICT_KEY = Rule("dict-key", _guide("NKI Values"), "strings as keys, such as str(key), or a list")
LIBRARY = Rule(
    "library",
    _guide("NKI Namespaces"),
    "nki, Python's math, dataclasses, enum and typing, the kernel's own files, all given at once; an argument for what "
    "the host works out",
)
PURITY = Rule("purity", _guide("Kernel Caching"), "an argument of the kernel")
STATEMENT = Rule("statement", _guide("Control Flow"), "if, for, while and assert; `with` only for nl.no_reorder()")
LOOP = Rule("loop", _guide("Control Flow"), "a loop over range(...), a list or a tuple")
TENSOR_VALUE = Rule(
    "tensor-value",
    _guide("Tensor Values"),
    "shapes and arguments; only instructions and registers can read tensor values",
)
REGISTER = Rule(
    "register",
    _guide("Dynamic Control Flow"),
    "nl.while_loop(register, body), with the condition computed by instructions",
)
LOOP_VARIABLE = Rule("loop-variable", _migration("Rules for migrated loops"), ".ap(scalar_offset=variable)")
IDENTITY = Rule("identity", _migration("Replace is / is not with == / !="), "== and !=")
KEYWORD_ONLY = Rule(
    "keyword-only", _migration("Remove keyword-only argument separator (*)"), "parameters with defaults at the end"
)
LIST_ARGUMENT = Rule("list-argument", _migration("Replace list kernel arguments with tuples"), "a tuple")
BUFFER_NAME = Rule(
    "buffer-name", _migration("String buffer names no longer supported"), "nl.sbuf, nl.psum, nl.hbm, ..."
)
OLD_NAMESPACE = Rule(
    "old-namespace", _migration("neuronxcc.nki.* inside kernels - now a compilation error"), "import nki"
)

RULES = (
    CLASS, ENUM_OPERATOR, VALUE, DICT_KEY, LIBRARY, PURITY, STATEMENT, LOOP, TENSOR_VALUE, REGISTER, LOOP_VARIABLE,
    IDENTITY, KEYWORD_ONLY, LIST_ARGUMENT, BUFFER_NAME, OLD_NAMESPACE,
)  # fmt: skip


def at(path: str, node: ast.AST, rule: Rule, what: str) -> Finding:
    """A finding at a node of a file's syntax tree."""
    return Finding(path, getattr(node, "lineno", 1), what, rule)
