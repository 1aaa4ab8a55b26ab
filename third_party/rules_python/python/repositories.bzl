"""python_register_toolchains: a Python toolchain from an interpreter of this machine."""

_BUILD = """
load("@rules_python//python:defs.bzl", "py_runtime", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

py_runtime(
    name = "runtime",
    files = ["interpreter.json"],
    interpreter = "python3",
    python_version = "PY3",
    stub_shebang = "#!/usr/bin/env python3",
)

py_runtime_pair(
    name = "runtime_pair",
    py3_runtime = ":runtime",
)

toolchain(
    name = "toolchain",
    toolchain = ":runtime_pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

# An action's inputs are this script and interpreter.json, neither of which
# names a folder of this machine: two machines with the same interpreter share
# cached results. PYTHONSAFEPATH keeps the folder of the main script off
# sys.path, so that only declared dependencies can be imported.
_LAUNCHER = """#!/bin/sh
here="$(dirname "$(readlink -f "$0")")"
export PYTHONSAFEPATH=1
exec "$here/venv/bin/python3" "$@"
"""

_IDENTIFY = """
import hashlib, json, os, sys, sysconfig
executable = os.path.realpath(sys.executable)
library = os.path.join(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or "")
digest = hashlib.sha256()
for name in [executable] + [library] * os.path.isfile(library):
    with open(name, "rb") as f:
        digest.update(f.read())
print(json.dumps({"executable": executable, "sha256": digest.hexdigest(), "version": sys.version}))
"""

def _find_interpreter(rctx, version):
    # A virtual environment is made with pip in it, which Debian's bare Python cannot do.
    probe = "import ensurepip, sys; assert '%d.%d' % sys.version_info[:2] == '" + version + "'"
    chosen = rctx.os.environ.get("MONOREPO_PYTHON")
    for name in [chosen] if chosen else ["python" + version, "python3"]:
        path = rctx.which(name) if "/" not in name else name
        if path and rctx.execute([path, "-I", "-c", probe]).return_code == 0:
            return path
    fail(("Python %s with its ensurepip module is needed: install python%s and python%s-venv, " +
          "or set MONOREPO_PYTHON to the interpreter's path") % (version, version, version))

def _make_venv(rctx, executable, path, *options):
    result = rctx.execute([executable, "-I", "-m", "venv"] + list(options) + [path])
    if result.return_code:
        fail("python -m venv failed:\n" + result.stdout + result.stderr)

def _python_repository_impl(rctx):
    version = rctx.attr.python_version
    found = rctx.execute([_find_interpreter(rctx, version), "-I", "-c", _IDENTIFY])
    if found.return_code:
        fail("the interpreter could not be identified:\n" + found.stderr)
    interpreter = json.decode(found.stdout)
    executable = interpreter.pop("executable")

    # venv runs the workspace's code and holds nothing but the path hook;
    # installer has the pip that installs locked packages elsewhere.
    _make_venv(rctx, executable, "venv", "--without-pip")
    _make_venv(rctx, executable, "installer")
    site_packages = "venv/lib/python%s/site-packages" % version
    rctx.symlink(Label("@trainium_kernels//third_party/pip:stamped_path.py"), site_packages + "/_stamped_path.py")
    rctx.file(site_packages + "/_stamped_path.pth", "import _stamped_path\n")

    rctx.file("python3", _LAUNCHER, executable = True)
    rctx.file("interpreter.json", json.encode(interpreter) + "\n")
    rctx.file("BUILD.bazel", _BUILD)

_python_repository = repository_rule(
    implementation = _python_repository_impl,
    attrs = {"python_version": attr.string(mandatory = True)},
    environ = ["MONOREPO_PYTHON"],
    doc = "A Python toolchain around an interpreter found on this machine.",
)

def python_register_toolchains(name, python_version):
    """Declares repository `name` and registers its toolchain.

    Args:
      name: the repository's name.
      python_version: major and minor version, such as "3.11".
    """
    _python_repository(name = name, python_version = python_version)
    native.register_toolchains("@%s//:toolchain" % name)
