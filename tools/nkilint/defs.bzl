"""nkilint_test: kernels use only Python that the NKI compiler accepts."""

load("@rules_python//python:defs.bzl", "py_test")

_MAIN = "//tools/nkilint:main.py"

def nkilint_test(name, srcs, size = "small", **kwargs):
    """Passes where nkilint has no finding in `srcs`, taken together.

    Args:
      name: the target's name.
      srcs: the kernel's Python files; host code among them is left alone.
      size: the test's size.
      **kwargs: passed on to py_test.
    """
    py_test(
        name = name,
        size = size,
        srcs = [_MAIN],
        args = ["$(rootpath %s)" % src for src in srcs],
        data = srcs,
        main = _MAIN,
        deps = ["//tools/nkilint:lib"],
        **kwargs
    )
