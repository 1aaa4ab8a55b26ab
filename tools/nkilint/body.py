"""What the body of a kernel function may say."""

from __future__ import annotations

import ast

from tools.nkilint import findings
from tools.nkilint.code import Function, Source, is_among
from tools.nkilint.findings import Finding, Rule, at
from tools.nkilint.values import Kind, Values

_STANDARD = ("__future__", "collections", "dataclasses", "enum", "math", "typing")
_OUTSIDE_STATE = ("random", "time", "os", "secrets", "datetime", "uuid")
_READING_METHODS = ("item", "tolist", "numpy")
_READING_CALLS = ("int", "float", "bool", "complex")
_NO_SEQUENCES = ("enumerate", "zip", "map", "filter", "iter", "set", "frozenset")
_STATEMENTS: dict[type[ast.AST], str] = {
    ast.Try: "try", ast.TryStar: "try", ast.Raise: "raise", ast.Match: "match", ast.AsyncFor: "async for",
    ast.AsyncWith: "async with", ast.AsyncFunctionDef: "async def", ast.Await: "await", ast.Yield: "yield",
    ast.YieldFrom: "yield from",
}  # fmt: skip
_TENSORS = (Kind.TENSOR, Kind.FLAGS)
_REGISTERS = (Kind.REGISTER, Kind.LOOP_VARIABLE)
_ORDERINGS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_OLD_NAMESPACE = "neuronxcc.nki"
_INT32_MIN, _UINT32_MAX = -(2**31), 2**32 - 1


def check_body(sources: list[Source], source: Source, function: Function, enumerations: set[str]) -> list[Finding]:
    """The findings in a function's body.

    Args:
        sources: all files of the kernel.
        source: the one that holds the function.
        enumerations: names of the Enum classes that kernel code uses.
    """
    walk = _Body(sources, source, function, enumerations)
    for statement in function.body:
        walk.visit(statement)
    return walk.found


class _Body(ast.NodeVisitor):
    """Walks one function in the order of its statements and collects findings."""

    def __init__(self, sources: list[Source], source: Source, function: Function, enumerations: set[str]) -> None:
        self._sources = sources
        self._source = source
        self._function = function
        self._enumerations = enumerations
        self._values = Values(source, function)
        self._bodies = _loop_bodies(source, function)
        self._assigned_globals = _assigned_globals(source)
        self.found: list[Finding] = []

    def visit(self, node: ast.AST) -> None:
        """Checks what the kind of node alone decides, then what its visitor does."""
        if type(node) in _STATEMENTS:
            self._report(node, findings.STATEMENT, f"`{_STATEMENTS[type(node)]}`")
        super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer = self._values
        self._values = Values(self._source, node, outer)
        kind = self._bodies.get(node.name)
        if kind is not None and node.args.args:
            self._values.bind(ast.Name(node.args.args[0].arg), kind)
        for statement in node.body:
            self.visit(statement)
        self._values = outer

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            self._check_key(target)
            self._values.bind(target, self._values.of(node.value))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self._values.bind(node.target, self._values.of(node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        self._check_arithmetic(node, node.target)

    def visit_For(self, node: ast.For) -> None:
        self._check_iterable(node.iter)
        self._values.bind(node.target, self._values.of_loop(node.iter))
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._check_iterable(node.iter)
        self._values.bind(node.target, self._values.of_loop(node.iter))
        self.generic_visit(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        for generator in node.generators:
            self.visit(generator)
        self._check_dict_key(node.key, node.key)
        self.visit(node.value)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            call = item.context_expr
            if not isinstance(call, ast.Call) or self._source.meaning(call.func) != "nki.language.no_reorder":
                self._report(node, findings.STATEMENT, f"`with {ast.unparse(call)}`")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self._check_condition(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._check_condition(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if self._values.of(node.test) is not Kind.REGISTER:
            self._check_condition(node.test)
        self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        if self._values.of(node.test) is not Kind.FLAGS:
            self._check_condition(node.test)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for value in node.values:
            self._check_condition(value)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._check_condition(node.operand)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        for operand in (node.left, node.right):
            self._check_arithmetic(node, operand)
            if self._is_member(operand):
                self._report(node, findings.ENUM_OPERATOR, f"arithmetic on {ast.unparse(operand)}")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
            if isinstance(operator, (ast.Is, ast.IsNot)):
                self._report(node, findings.IDENTITY, f"`{ast.unparse(node)}`")
            for operand, other in ((left, right), (right, left)):
                if not _is_none(other):
                    self._check_compared(node, operator, operand)
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key in node.keys:
            if key is not None:
                self._check_dict_key(key, key)
        self.generic_visit(node)

    def visit_Set(self, node: ast.Set) -> None:
        self._report(node, findings.VALUE, f"set {ast.unparse(node)}")
        self.generic_visit(node)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._report(node, findings.VALUE, "set comprehension")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, (bytes, complex)):
            self._report(node, findings.VALUE, f"{type(node.value).__name__} {node.value!r}")
        elif type(node.value) is int and not _INT32_MIN <= node.value <= _UINT32_MAX:
            self._report(node, findings.VALUE, f"integer {node.value} of more than 32 bits")

    def visit_Global(self, node: ast.Global) -> None:
        self._report(node, findings.PURITY, f"`global {', '.join(node.names)}`")

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and node.id in self._assigned_globals:
            self._report(node, findings.PURITY, f"{node.id}, a global that a function assigns")
        self._check_imported(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self._source.imports(node):
            self._check_imported(node)
        else:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = self._source.meaning(node.func)
        self._check_called(node, called)
        for keyword in node.keywords:
            if (
                keyword.arg == "buffer"
                and isinstance(keyword.value, ast.Constant)
                and isinstance(keyword.value.value, str)
            ):
                self._report(node, findings.BUFFER_NAME, f"buffer={keyword.value.value!r}")
        if called == "nki.language.shared_constant":
            return  # its argument is a numpy array by definition
        self.generic_visit(node)

    def _check_called(self, node: ast.Call, called: str) -> None:
        if called in ("set", "frozenset", "bytes", "bytearray"):
            self._report(node, findings.VALUE, f"call of {called}")
        if called in _READING_CALLS:
            for argument in node.args:
                self._check_read(node, argument, f"{called}(...) of")
        if isinstance(node.func, ast.Attribute) and node.func.attr in _READING_METHODS:
            self._check_read(node, node.func.value, f".{node.func.attr}() of")

    def _check_imported(self, node: ast.Name | ast.Attribute) -> None:
        meaning = self._source.meaning(node)
        library = meaning.partition(".")[0]
        if not self._source.imports(node) or library in ("nki", *_STANDARD) or is_among(self._sources, meaning):
            return
        rule = findings.PURITY if library in _OUTSIDE_STATE else findings.LIBRARY
        self._report(node, findings.OLD_NAMESPACE if meaning.startswith(_OLD_NAMESPACE) else rule, f"use of {meaning}")

    def _check_condition(self, test: ast.expr) -> None:
        kind = self._values.of(test)
        if kind in _TENSORS:
            self._report(test, findings.TENSOR_VALUE, f"{ast.unparse(test)} decides Python control flow")
        elif kind in _REGISTERS:
            self._report(test, findings.REGISTER, f"register {ast.unparse(test)} decides Python control flow")

    def _check_compared(self, node: ast.Compare, operator: ast.cmpop, operand: ast.expr) -> None:
        kind = self._values.of(operand)
        if kind in _TENSORS and not isinstance(operator, (ast.In, ast.NotIn)):
            self._report(node, findings.TENSOR_VALUE, f"comparison of tensor {ast.unparse(operand)}")
        elif kind in _REGISTERS:
            self._report(node, findings.REGISTER, f"comparison of register {ast.unparse(operand)}")
        elif self._is_member(operand) and isinstance(operator, _ORDERINGS):
            self._report(node, findings.ENUM_OPERATOR, f"ordering of {ast.unparse(operand)}")

    def _check_arithmetic(self, node: ast.AST, operand: ast.expr) -> None:
        kind = self._values.of(operand)
        if kind in _TENSORS:
            self._report(node, findings.TENSOR_VALUE, f"Python arithmetic on tensor {ast.unparse(operand)}")
        elif kind is Kind.LOOP_VARIABLE:
            self._report(node, findings.LOOP_VARIABLE, f"Python arithmetic on {ast.unparse(operand)}")

    def _check_read(self, node: ast.AST, value: ast.expr, how: str) -> None:
        kind = self._values.of(value)
        if kind in _TENSORS or (kind in _REGISTERS):
            rule = findings.TENSOR_VALUE if kind in _TENSORS else findings.REGISTER
            self._report(node, rule, f"{how} {ast.unparse(value)}")

    def _check_iterable(self, iterable: ast.expr) -> None:
        called = self._source.meaning(iterable.func) if isinstance(iterable, ast.Call) else ""
        if called in _NO_SEQUENCES or isinstance(iterable, (ast.GeneratorExp, ast.Set, ast.SetComp)):
            self._report(iterable, findings.LOOP, f"loop over {ast.unparse(iterable)}")
        elif self._values.of(iterable) in _TENSORS:
            self._report(iterable, findings.LOOP, f"loop over tensor {ast.unparse(iterable)}")

    def _check_key(self, target: ast.expr) -> None:
        if isinstance(target, ast.Subscript) and self._values.of(target.value) is Kind.DICTIONARY:
            self._check_dict_key(target, target.slice)

    def _check_dict_key(self, node: ast.AST, key: ast.expr) -> None:
        constant = isinstance(key, ast.Constant) and not isinstance(key.value, str)
        if constant or isinstance(key, ast.Tuple) or self._values.of(key) is Kind.INTEGER:
            self._report(node, findings.DICT_KEY, f"dictionary key {ast.unparse(key)}")

    def _is_member(self, node: ast.expr) -> bool:
        return (
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self._enumerations
        )

    def _report(self, node: ast.AST, rule: Rule, what: str) -> None:
        self.found.append(at(self._source.path, node, rule, what))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _loop_bodies(source: Source, function: Function) -> dict[str, Kind]:
    """What the parameter of each function is that is given to `fori_loop` or `while_loop`."""
    kinds = {"nki.language.fori_loop": Kind.LOOP_VARIABLE, "nki.language.while_loop": Kind.REGISTER}
    bodies: dict[str, Kind] = {}
    for node in ast.walk(function):
        kind = kinds.get(source.meaning(node.func)) if isinstance(node, ast.Call) else None
        if kind is not None and isinstance(node, ast.Call):
            given = [*node.args, *(k.value for k in node.keywords)]
            bodies.update({a.id: kind for a in given if isinstance(a, ast.Name)})
    return bodies


def _assigned_globals(source: Source) -> set[str]:
    return {name for node in ast.walk(source.tree) if isinstance(node, ast.Global) for name in node.names}
