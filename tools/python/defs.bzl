"""pytest_test and lint_test: how this workspace's Python is tested."""

load("@rules_python//python:defs.bzl", "py_test")

_PYTEST_MAIN = "//tools/python:pytest_main.py"
_LINT_CHECKS = "//tools/python:lint_checks.py"

def pytest_test(name, srcs, deps = [], args = [], **kwargs):
    """A py_test whose sources are collected and run by pytest.

    Every test case is one in the test's XML. Sharding, --test_filter (pytest's -k syntax), timeouts
    and TEST_TMPDIR work as for any other Bazel test. Nothing collected is a failure.

    Args:
      name: the target's name.
      srcs: the test files.
      deps: what they import, pytest aside.
      args: further arguments for pytest.
      **kwargs: passed on to py_test (size, data, env, shard_count, tags, ...).
    """
    py_test(
        name = name,
        srcs = srcs + [_PYTEST_MAIN],
        args = ["$(rootpath %s)" % src for src in srcs] + args,
        main = _PYTEST_MAIN,
        deps = deps + ["//tools/python:pytest_main_deps"],
        **kwargs
    )

def lint_test(name, srcs, deps = [], bazel_files = [], size = "medium", **kwargs):
    """ruff check, ruff format --check and mypy on `srcs`; buildifier on this package's Bazel files.

    Args:
      name: the target's name.
      srcs: the Python files to check; may be empty.
      deps: what they import, so that mypy knows its types.
      bazel_files: further Bazel files than this package's.
      size: the test's size.
      **kwargs: passed on to py_test.
    """
    bazel_files = bazel_files + native.glob([
        "BUILD.bazel",
        "WORKSPACE",
        "*.bzl",
    ])
    pytest_test(
        name = name,
        size = size,
        srcs = [_LINT_CHECKS],
        data = srcs + bazel_files + [
            "//:pyproject.toml",
            "@buildifier//:buildifier",
        ],
        env = {
            "LINT_BAZEL_FILES": " ".join(["$(rootpath %s)" % file for file in bazel_files]),
            "LINT_BUILDIFIER": "$(rootpath @buildifier//:buildifier)",
            "LINT_PYTHON_FILES": " ".join(["$(rootpath %s)" % src for src in srcs]),
        },
        deps = deps + ["//tools/python:lint_deps"],
        **kwargs
    )
