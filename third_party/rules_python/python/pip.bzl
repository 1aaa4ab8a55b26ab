"""pip_parse: one repository per package of a hash-locked requirements file.

Stand-in for rules_python's pip.bzl with the same load labels, macros and target names.
"""

def _normalized(name):
    return name.strip().lower().replace("-", "_").replace(".", "_")

def _read_lock(text):
    """Returns {normalized name: requirement with all its hashes} of a lock file's text."""
    requirements = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = [word for word in line.split(" ") if word]
        if not words or words[0].startswith("#"):
            continue
        if "==" not in line or "--hash=sha256:" not in line:
            fail("not pinned by version and hash: " + line)
        requirements[_normalized(line.split("==")[0].split("[")[0])] = " ".join(words)
    return requirements

_HUB_PACKAGE = """
alias(
    name = "{package}",
    actual = "@{hub}_{package}//:pkg",
    visibility = ["//visibility:public"],
)
"""

_HUB_MACROS = """
load("@rules_python//python:pip.bzl", "whl_library")

_LOCKED = {locked}

def requirement(name):
    return "@{hub}//" + name.lower().replace("-", "_").replace(".", "_")

def install_deps():
    for name, locked in _LOCKED.items():
        whl_library(
            name = "{hub}_" + name,
            hub = "{hub}",
            locked_names = sorted(_LOCKED.keys()),
            python_interpreter_target = "{interpreter}",
            requirement = locked,
        )
"""

def _pip_hub_impl(rctx):
    locked = _read_lock(rctx.read(rctx.attr.requirements_lock))
    for package in locked:
        rctx.file(package + "/BUILD.bazel", _HUB_PACKAGE.format(hub = rctx.attr.hub, package = package))
    rctx.file("BUILD.bazel")
    rctx.file("requirements.bzl", _HUB_MACROS.format(
        hub = rctx.attr.hub,
        interpreter = rctx.attr.python_interpreter_target,
        locked = repr(locked),
    ))

_pip_hub = repository_rule(
    implementation = _pip_hub_impl,
    attrs = {
        "hub": attr.string(mandatory = True),
        "python_interpreter_target": attr.label(mandatory = True),
        "requirements_lock": attr.label(mandatory = True, allow_single_file = True),
    },
)

def pip_parse(name, requirements_lock, python_interpreter_target):
    """Declares the hub repository `name`: @name//numpy and @name//:requirements.bzl.

    Args:
      name: the hub's name.
      requirements_lock: requirements file in which every line is pinned by version and hash.
      python_interpreter_target: interpreter with pip, which installs the packages.
    """
    _pip_hub(
        name = name,
        hub = name,
        python_interpreter_target = python_interpreter_target,
        requirements_lock = requirements_lock,
    )

def _whl_library_impl(rctx):
    python = rctx.path(rctx.attr.python_interpreter_target)
    install = rctx.path(Label("@trainium_kernels//third_party/pip:install_package.py"))
    rctx.path(Label("@trainium_kernels//third_party/pip:locked_packages.py"))  # imported by the former
    result = rctx.execute(
        [python, "-s", install, rctx.attr.hub, rctx.attr.requirement] + rctx.attr.locked_names,
        # Empty is as good as unset: a caller's own settings, such as those of `bazel run`, do not count.
        environment = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": "", "PYTHONSAFEPATH": ""},
        timeout = 3600,
    )
    if result.return_code:
        fail(result.stdout + result.stderr)

whl_library = repository_rule(
    implementation = _whl_library_impl,
    attrs = {
        "hub": attr.string(mandatory = True),
        "locked_names": attr.string_list(mandatory = True),
        "python_interpreter_target": attr.label(mandatory = True),
        "requirement": attr.string(mandatory = True),
    },
    doc = "One installed package: target :pkg, whose only file is the package's stamp.",
)
