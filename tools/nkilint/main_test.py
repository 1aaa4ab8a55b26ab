"""Every rule by pairs: a kernel with the fault and one without; then the command itself."""

import re
import textwrap
from pathlib import Path

import pytest

from tools.nkilint import findings
from tools.nkilint.main import lint, main

HEADER = """
import math
import random
from dataclasses import dataclass
from enum import Enum, IntEnum
import numpy as np
import torch
import nki
import nki.isa as nisa
import nki.language as nl
from nki.language import NKIObject, NkiTensor
import neuronxcc.nki.language as old
"""


def _kernel(body, signature="x, n=4", before=""):
    text = textwrap.dedent(body).strip("\n")
    return f"{HEADER}\n{textwrap.dedent(before)}\n@nki.jit\ndef kernel({signature}):\n{textwrap.indent(text, '    ')}\n"


def _found(tmp_path, **files):
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    return lint([f"{name}.py" for name in files], tmp_path)


TENSOR = "t = nl.load(x)\n"
REGISTER = "r = nisa.register_alloc(3)\n"

# (rule, body with the fault, words of the finding, body without)
PAIRS = [
    (findings.STATEMENT, "try:\n    pass\nexcept ValueError:\n    pass", "`try`", "assert n > 0, 'n must be positive'"),
    (findings.STATEMENT, "raise ValueError(n)", "`raise`", "assert n"),
    (
        findings.STATEMENT,
        "with open('f') as f:\n    pass",
        r"`with open\('f'\)`",
        "with nl.no_reorder():\n    nl.load(x)",
    ),
    (
        findings.STATEMENT,
        "match n:\n    case 1:\n        pass",
        "`match`",
        "if n == 1:\n    pass\nelif n == 2:\n    pass",
    ),
    (findings.STATEMENT, "def body():\n    yield 1", "`yield`", "def body():\n    return 1"),
    (
        findings.LOOP,
        "for i, a in enumerate((x, x)):\n    pass",
        r"enumerate\(\(x, x\)\)",
        "for i in range(2):\n    pass",
    ),
    (findings.LOOP, "for a, b in zip(x, x):\n    pass", "zip", "for a in [x, x]:\n    pass"),
    (findings.LOOP, "for a in (i for i in range(3)):\n    pass", "loop over", "for i in range(0, n, 2):\n    print(i)"),
    (findings.LOOP, TENSOR + "for row in t:\n    pass", "loop over tensor t", TENSOR + "for a in (t, t):\n    pass"),
    (findings.VALUE, "a = {1, 2}", r"set \{1, 2\}", "a = [1, 2]\nb = (1, 2)"),
    (findings.VALUE, "a = set()", "call of set", "a = list((1, 2))\nd = dict()"),
    (findings.VALUE, "a = b'bytes'", "bytes b'bytes'", "a = 'text'\nb = f'{n}'"),
    (findings.VALUE, "a = 4294967296", "integer 4294967296 of more than 32 bits", "a = 4294967295\nb = -2147483648"),
    (findings.DICT_KEY, "d = {1: 2}", "dictionary key 1", "d = {'a': 2}"),
    (findings.DICT_KEY, "d = {}\nd[0] = 1", "dictionary key 0", "d = {}\nd['0'] = 1\nl = [1]\nl[0] = 2"),
    (
        findings.DICT_KEY,
        "d = {}\nfor i in range(n):\n    d[i] = 1",
        "key i",
        "d = {}\nfor i in range(n):\n    d[str(i)] = i",
    ),
    (findings.DICT_KEY, "d = dict()\nd[0, 1] = 1", r"key \(0, 1\)", "d = dict()\nfor k in d.keys():\n    d[k] = 1"),
    (
        findings.LIBRARY,
        "a = np.arange(n)",
        "use of numpy.arange",
        "a = nl.shared_constant(np.eye(4))\nb = math.ceil(n / 2)",
    ),
    (findings.LIBRARY, "a = torch.zeros(n)", "use of torch.zeros", "a = nl.zeros((4, 4), nl.float32)"),
    (findings.LIBRARY, "a = nl.zeros((4, 4), np.float32)", "use of numpy.float32", "a = math.ceil(n / 3)"),
    (
        findings.LIBRARY,
        "import host.call\na = host.call.f(n)",
        r"use of host\.call\.f",
        "a = nl.shared_constant(np.ones(3))",
    ),
    (findings.PURITY, "a = random.random()", "use of random.random", "a = nl.rand((4, 4), nl.float32)"),
    (findings.PURITY, "global calls\ncalls = 1", "`global calls`", "calls = 1"),
    (
        findings.TENSOR_VALUE,
        TENSOR + "if t:\n    pass",
        "t decides Python control flow",
        TENSOR + "if t.shape[0] > 4:\n    pass",
    ),
    (findings.TENSOR_VALUE, TENSOR + "if nl.equal(t, t):\n    pass", "decides", TENSOR + "assert nl.equal(t, t)"),
    (
        findings.TENSOR_VALUE,
        TENSOR + "a = t[0:1, 0:1] > 3",
        "comparison of tensor",
        TENSOR + "a = t == None or t != None",
    ),
    (
        findings.TENSOR_VALUE,
        TENSOR + "a = float(t[0, 0])",
        r"float\(...\) of t\[0, 0\]",
        TENSOR + "a = float(t.shape[0])",
    ),
    (findings.TENSOR_VALUE, TENSOR + "a = t.reshape((4,)).item()", r".item\(\) of", TENSOR + "a = t.reshape((4,))"),
    (
        findings.TENSOR_VALUE,
        TENSOR + "a = t + 1",
        "arithmetic on tensor t",
        TENSOR + "a = nl.add(t, 1)\nb = t.size + 1",
    ),
    (findings.TENSOR_VALUE, TENSOR + "a = 1 if not t else 2", "t decides", TENSOR + "t = 3\na = 1 if not t else 2"),
    (
        findings.REGISTER,
        REGISTER + "while r > 0:\n    pass",
        "comparison of register r",
        REGISTER + "while r:\n    pass",
    ),
    (findings.REGISTER, REGISTER + "if r:\n    pass", "register r decides", "i = 0\nwhile i < 10:\n    i += 1"),
    (
        findings.REGISTER,
        "def body(r):\n    return r if r > 1 else r\nnl.while_loop(nisa.register_alloc(1), body)",
        "comparison of register r",
        "def body(r):\n    nisa.register_load(r, x)\n    return r\nnl.while_loop(nisa.register_alloc(1), body)",
    ),
    (
        findings.LOOP_VARIABLE,
        "def body(i):\n    nl.load(x[nl.ds(i * 128, 128)])\nnl.fori_loop(0, 4, body)",
        "arithmetic on i",
        "def body(i):\n    nl.load(x.ap([[1, 4]], scalar_offset=i))\nnl.fori_loop(0, 4 * n, body)",
    ),
    (
        findings.LOOP_VARIABLE,
        "for i in nl.dynamic_range(4):\n    a = i + 1",
        "on i",
        "for i in nl.affine_range(4):\n    a = i + 1",
    ),
    (findings.IDENTITY, "if n is True:\n    pass", "`n is True`", "if n == True:\n    pass"),
    (findings.IDENTITY, "a = 1 if n is None else 2", "`n is None`", "a = 1 if n == None else 2"),
    (findings.IDENTITY, "a = n is not None", "`n is not None`", "a = n != None"),
    (
        findings.BUFFER_NAME,
        "nl.ndarray((4, 4), nl.int8, buffer='sbuf')",
        "buffer='sbuf'",
        "nl.ndarray((4, 4), nl.int8, buffer=nl.sbuf)",
    ),
    (findings.OLD_NAMESPACE, "old.load(x)", "use of neuronxcc.nki.language.load", "nl.load(x)"),
]


@pytest.mark.parametrize(
    ("rule", "faulty", "words", "clean"), PAIRS, ids=[f"{i}-{p[0].name}" for i, p in enumerate(PAIRS)]
)
def test_bodies(tmp_path, rule, faulty, words, clean):
    found = _found(tmp_path, faulty=_kernel(faulty))
    assert [f.rule for f in found] == [rule]
    assert re.search(words, found[0].what)
    assert _found(tmp_path, clean=_kernel(clean)) == []


@pytest.mark.parametrize(
    ("rule", "faulty", "clean"),
    [
        (findings.KEYWORD_ONLY, "x, *, n=4", "x, n=4"),
        (findings.LIST_ARGUMENT, "x, n=[1, 2]", "x, n=(1, 2)"),
        (findings.LIST_ARGUMENT, "x, n: list[int]", "x, n: tuple[int, ...]"),
        (findings.LIST_ARGUMENT, "x, n: list", "x, n"),
    ],
)
def test_signatures_of_kernels(tmp_path, rule, faulty, clean):
    (found,) = _found(tmp_path, faulty=_kernel("pass", faulty))
    assert found.rule is rule
    assert "kernel kernel" in found.what
    assert _found(tmp_path, clean=_kernel("pass", clean)) == []


@pytest.mark.parametrize(
    ("rule", "faulty", "words", "clean"),
    [
        (findings.CLASS, "class C:\n    pass", "class C with no base", "class C(NKIObject):\n    x: int = 1"),
        (
            findings.CLASS,
            "class C(NKIObject, dict):\n    pass",
            "with NKIObject, dict",
            "@dataclass\nclass C(nl.NKIObject):\n    x: int",
        ),
        (findings.CLASS, "class C(IntEnum):\n    x = 1", "with IntEnum", "class C(Enum):\n    x = 1"),
    ],
)
def test_classes_that_kernels_use(tmp_path, rule, faulty, words, clean):
    for body, signature in (("c = C()", "x"), ("pass", "x, c: C"), ("a = C.x", "x")):
        (found,) = _found(tmp_path, faulty=_kernel(body, signature, before=faulty))
        assert found.rule is rule
        assert words in found.what
        assert _found(tmp_path, clean=_kernel(body, signature, before=clean)) == []
    assert _found(tmp_path, unused=_kernel("pass", before=faulty)) == []


def test_methods_of_such_classes_are_kernel_code(tmp_path):
    text = "class C(NKIObject):\n    def f(self):\n        return {1, 2}\n"
    assert [f.rule for f in _found(tmp_path, k=_kernel("C().f()", before=text))] == [findings.VALUE]


def test_enumerations_have_two_operators(tmp_path):
    before = "class E(Enum):\n    x = 1\n    y = 2\n"
    (found,) = _found(tmp_path, faulty=_kernel("a = E.x < E.y", before=before))[:1]
    assert found.rule is findings.ENUM_OPERATOR
    assert _found(tmp_path, clean=_kernel("a = n == E.x or n != E.y", before=before)) == []


def test_globals_that_functions_assign(tmp_path):
    before = "calls = 0\ndef count():\n    global calls\n    calls = 1\n"
    found = _found(tmp_path, k=_kernel("a = calls", before=before))
    assert [(f.rule, f.what) for f in found] == [(findings.PURITY, "calls, a global that a function assigns")]
    assert _found(tmp_path, k=_kernel("a = SIZE", before="SIZE = 3\n")) == []


HOST = """
def host(a):
    try:
        return {1: np.zeros(3)}
    except ValueError as error:
        raise TypeError from error
"""


def test_host_code_is_left_alone(tmp_path):
    assert _found(tmp_path, k=_kernel("pass", before=HOST)) == []


def test_what_kernels_call_is_kernel_code(tmp_path):
    assert len(_found(tmp_path, k=_kernel("host(n)", before=HOST))) == 4
    helper = f"{HEADER}\ndef helper(t):\n    nisa.memset(t, 0)\n    return {{1, 2}}\n"
    assert [f.rule for f in _found(tmp_path, helper=helper)] == [findings.VALUE]
    passed = f"{HEADER}\ndef plain(t):\n    return {{1, 2}}\nrun = nki.jit(plain)\n"
    assert [f.rule for f in _found(tmp_path, passed=passed)] == [findings.VALUE]


def test_calls_into_other_files(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "parts.py").write_text(f"{HEADER}\n{HOST}")
    (tmp_path / "pkg" / "k.py").write_text("from pkg.parts import host\n" + _kernel("host(n)"))
    both = lint(["pkg/k.py", "pkg/parts.py"], tmp_path)
    assert {f.path for f in both} == {"pkg/parts.py"}
    assert len(both) == 4
    (alone,) = lint(["pkg/k.py"], tmp_path)
    assert (alone.rule, alone.what) == (findings.LIBRARY, "use of pkg.parts.host")
    (tmp_path / "pkg" / "k.py").write_text("from pkg import parts\n" + _kernel("parts.host(n)"))
    assert len(lint(["pkg/k.py", "pkg/parts.py"], tmp_path)) == 4


@pytest.mark.parametrize(
    ("imported", "body"),
    [
        ("from pkg.device.config import SIZE", "a = SIZE"),
        ("from pkg.device import config", "a = config.SIZE"),
        ("import pkg.device.config", "a = pkg.device.config.SIZE"),
    ],
)
def test_kernels_take_from_their_own_files_only(tmp_path, imported, body):
    for folder in ("device", "host"):
        (tmp_path / "pkg" / folder).mkdir(parents=True)
        (tmp_path / "pkg" / folder / "config.py").write_text("SIZE = 3\n")
    text = f"{imported}\n{_kernel(body)}"
    (tmp_path / "pkg" / "device" / "k.py").write_text(text)
    files = ["pkg/device/k.py", "pkg/device/config.py"]
    assert lint(files, tmp_path) == []
    (tmp_path / "pkg" / "device" / "k.py").write_text(text.replace("pkg.device", "pkg.host"))
    (outside,) = lint(files, tmp_path)
    assert (outside.rule, outside.what) == (findings.LIBRARY, "use of pkg.host.config.SIZE")


def test_relative_imports_name_the_kernels_own_files(tmp_path):
    (tmp_path / "k.py").write_text(f"from .config import SIZE\n{_kernel('a = SIZE')}")
    (tmp_path / "config.py").write_text("SIZE = 3\n")
    assert lint(["k.py", "config.py"], tmp_path) == []
    assert [f.rule for f in lint(["k.py"], tmp_path)] == [findings.LIBRARY]


def test_every_rule_has_a_pair():
    tested = {pair[0] for pair in PAIRS} | {
        findings.KEYWORD_ONLY,
        findings.LIST_ARGUMENT,
        findings.CLASS,
        findings.ENUM_OPERATOR,
    }
    assert tested == set(findings.RULES)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BUILD_WORKING_DIRECTORY", str(tmp_path))
    (tmp_path / "clean.py").write_text(_kernel("pass"))
    (tmp_path / "faulty.py").write_text(_kernel("a = {1, 2}"))
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe")
    return tmp_path


def test_exit_status_0(folder, capsys):
    assert main(["clean.py"]) == 0
    assert capsys.readouterr() == ("", "no findings in 1 files\n")


def test_exit_status_1(folder, capsys):
    assert main(["clean.py", "faulty.py"]) == 1
    out, err = capsys.readouterr()
    line = (folder / "faulty.py").read_text().splitlines().index("    a = {1, 2}") + 1
    assert out == (
        f"faulty.py:{line}: [value] set {{1, 2}}; instead: {findings.VALUE.instead} "
        f'(get-started/nki-language-guide.rst, "NKI Values")\n'
    )
    assert err == "1 findings in 2 files\n"


@pytest.mark.parametrize(
    ("name", "words"), [("none.py", "No such file"), ("broken.py", "broken.py, line 1"), ("binary.py", "decode")]
)
def test_exit_status_2(folder, capsys, name, words):
    assert main([name]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("nkilint: ")
    assert words in err


@pytest.mark.parametrize("arguments", [[], ["--unknown"]])
def test_bad_usage(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: nkilint" in capsys.readouterr().err


def test_help_and_rules(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    assert "bazel run //tools/nkilint -- kernels/qkv_cte/device/*.py" in capsys.readouterr().out
    assert main(["--rules"]) == 0
    printed = capsys.readouterr().out
    assert all(rule.name in printed and rule.source in printed for rule in findings.RULES)


def test_absolute_paths(folder):
    assert main([str(Path(folder, "clean.py"))]) == 0
