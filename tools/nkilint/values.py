"""Which local names of a kernel function hold tensors, registers, dictionaries and loop counters."""

from __future__ import annotations

import ast
from enum import Enum

from tools.nkilint.code import Function, Source

_VIEWS = (
    "ap", "broadcast", "expand_dim", "flatten_dims", "indirect", "permute", "rearrange", "reinterpret_cast", "reshape",
    "reshape_dim", "select", "slice", "squeeze_dim", "vector_select", "view",
)  # fmt: skip
_NO_TENSORS = (
    "affine_range", "arange", "device_print", "ds", "dynamic_range", "fori_loop", "is_hbm", "is_on_chip", "is_psum",
    "is_sbuf", "no_reorder", "num_programs", "par_dim", "program_id", "program_ndim", "random_seed", "range",
    "sequential_range", "static_range", "store", "while_loop",
)  # fmt: skip
COMPARISONS = ("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")
_RANGES = ("range", "nki.language.affine_range", "nki.language.sequential_range", "nki.language.static_range")
_LANGUAGE = "nki.language."


class Kind(Enum):
    """What is known of a value."""

    TENSOR = "tensor"
    FLAGS = "the result of a comparison"
    REGISTER = "register"
    LOOP_VARIABLE = "variable of a dynamic loop"
    DICTIONARY = "dictionary"
    INTEGER = "integer"


class Values:
    """Kinds of the values of one function, as far as its own assignments tell.

    The names of the function around it are known in a nested function too.
    """

    def __init__(self, source: Source, function: Function, around: Values | None = None) -> None:
        self._source = source
        self._kinds: dict[str, Kind | None] = dict(around._kinds) if around else {}
        self._parameters(function)

    def bind(self, target: ast.AST, kind: Kind | None) -> None:
        """A name gets a value; of a kind or of none that matters."""
        if isinstance(target, ast.Name):
            self._kinds[target.id] = kind
        elif isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                self.bind(element, None)

    def of(self, node: ast.AST) -> Kind | None:
        """What is known of an expression."""
        if isinstance(node, ast.Name):
            return self._kinds.get(node.id)
        if isinstance(node, ast.Constant):
            return Kind.INTEGER if type(node.value) is int else None
        if isinstance(node, (ast.Dict, ast.DictComp)):
            return Kind.DICTIONARY
        if isinstance(node, ast.Subscript):
            return Kind.TENSOR if self._is_tensor(node.value) else None
        return self._of_call(node) if isinstance(node, ast.Call) else None

    def of_loop(self, iterable: ast.AST) -> Kind | None:
        """What the variable of a loop over `iterable` is."""
        called = self._source.meaning(iterable.func) if isinstance(iterable, ast.Call) else ""
        if called == "nki.language.dynamic_range":
            return Kind.LOOP_VARIABLE
        return Kind.INTEGER if called in _RANGES else None

    def _is_tensor(self, node: ast.AST) -> bool:
        return self.of(node) in (Kind.TENSOR, Kind.FLAGS)

    def _of_call(self, node: ast.Call) -> Kind | None:
        called = self._source.meaning(node.func)
        if called == "dict":
            return Kind.DICTIONARY
        if called == "nki.isa.register_alloc":
            return Kind.REGISTER
        name = called.removeprefix(_LANGUAGE)
        if called.startswith(_LANGUAGE) and "." not in name and name not in _NO_TENSORS:
            return Kind.FLAGS if name in COMPARISONS else Kind.TENSOR
        viewed = isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWS and self._is_tensor(node.func.value)
        return Kind.TENSOR if viewed else None

    def _parameters(self, function: Function) -> None:
        arguments = function.args
        for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            annotation = self._source.meaning(parameter.annotation) if parameter.annotation else ""
            self._kinds[parameter.arg] = Kind.TENSOR if annotation == "nki.language.NkiTensor" else None
